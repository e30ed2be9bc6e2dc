#include "layers/attention.hpp"

#include "layers/ops.hpp"
#include "layers/ulysses.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// q * cos + rotate_half(q) * sin.
Tensor rotary(Eager& g, const Tensor& q, const LayerContext& context, const std::string& name) {
  Tensor straight = mul(g, q, context.cos, name + ".cos");
  const Shape half{q.shape[0], q.shape[1], q.shape[2], Dim(q.shape[3].coefficient / 2)};
  Tensor rotated;
  {
    Tensor first = slice(g, q, half), second = slice(g, q, half);
    std::vector<Tensor> parts;
    parts.push_back(neg(g, second, name + ".negated"));
    parts.push_back(first);
    rotated = cat(g, std::move(parts), q.shape, name + ".rotated");
  }
  Tensor turned = mul(g, std::move(rotated), context.sin, name + ".sin");
  return add(g, std::move(straight), std::move(turned), name);
}

/// flash-attention 2: saves q, k, v, out, log-sum-exp and the state of the generator.
/// Backward buffers inside the kernel: flash-attention csrc/flash_attn/flash_api.cpp mha_bwd (2.8): dq in fp32, one fp32 per
/// row, and k, v gradients expanded to all heads under grouped queries.
Tensor flash(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, Shape out_shape, const KernelOptions& options, bool sdpa) {
  const bool recorded = g.will_record({&q, &k, &v});
  Saved sq, sk, sv;
  if (recorded) {
    sq = g.save(q);
    sk = g.save(k);
    sv = g.save(v);
  }
  const Dim heads = q.shape[1], rows = q.shape[2];
  Tensor out = g.make("attention.out", sdpa ? q.shape : out_shape, q.dtype);
  Tensor lse = g.make("attention.lse", {q.shape[0], heads, rows}, DType::fp32);
  Tensor rng = g.make("attention.rng", {Dim(2)}, DType::int64);
  Tensor offset = sdpa ? g.make("attention.rng_offset", {}, DType::int64) : Tensor();
  out.shape = std::move(out_shape);
  if (!recorded) return out;
  Saved so = g.save(out), sl = g.save(lse), sr = g.save(rng), sf = sdpa ? g.save(offset) : Saved();
  const bool grouped = q.shape[1] != k.shape[1];
  const bool internals = options.kernel_internals;
  const Shape whole = q.shape, by_row = lse.shape;
  g.record(out, "FlashAttentionBackward", {&q, &k, &v}, [=, &g](Gradients in) {
    for (const Saved* s : {&sq, &sk, &sv, &so, &sl, &sr}) (void)s->get();
    if (sdpa) (void)sf.get();
    const DType dtype = in[0].dtype;
    Gradients grads;
    for (const Saved* s : {&sq, &sk, &sv})
      grads.push_back(g.make("attention.backward", s->get().shape, dtype, Category::temporaries));
    if (internals) {
      Tensor dq = g.make("attention.dq_accum", whole, DType::fp32, Category::workspace);
      Tensor d = g.make("attention.softmax_d", by_row, DType::fp32, Category::workspace);
      Tensor dk = grouped ? g.make("attention.dk_expanded", whole, dtype, Category::workspace) : Tensor();
      Tensor dv = grouped ? g.make("attention.dv_expanded", whole, dtype, Category::workspace) : Tensor();
    }
    return grads;
  });
  return out;
}

/// SDPA's memory-efficient kernel: k and v are copies for all heads, the mask is converted to the compute dtype in every layer.
Tensor efficient(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, Shape out_shape) {
  Tensor bias = mask ? g.make("attention.bias", mask.shape, q.dtype) : Tensor();
  const bool recorded = g.will_record({&q, &k, &v});
  Saved sq, sk, sv, sb;
  if (recorded) {
    sq = g.save(q);
    sk = g.save(k);
    sv = g.save(v);
    if (bias) sb = g.save(bias);
  }
  Tensor out = g.make("attention.out", q.shape, q.dtype);
  Tensor lse = g.make("attention.lse", {q.shape[0], q.shape[1], q.shape[2]}, DType::fp32);
  Tensor seed = g.make("attention.rng", {}, DType::int64), offset = g.make("attention.rng", {}, DType::int64);
  out.shape = std::move(out_shape);
  if (!recorded) return out;
  Saved so = g.save(out), sl = g.save(lse), ss = g.save(seed), sf = g.save(offset);
  g.record(out, "EfficientAttentionBackward", {&q, &k, &v}, [=, &g](Gradients in) {
    for (const Saved* s : {&sq, &sk, &sv, &sb, &so, &sl, &ss, &sf}) (void)s->get();
    Gradients grads;
    for (const Saved* s : {&sq, &sk, &sv})
      grads.push_back(g.make("attention.backward", s->get().shape, in[0].dtype, Category::temporaries));
    Tensor delta = g.make("attention.delta", sl.get().shape, DType::fp32, Category::temporaries);
    return grads;
  });
  return out;
}

Shape scores_shape(const Tensor& q, const Tensor& k) { return {q.shape[0], q.shape[1], q.shape[2], k.shape[2]}; }

/// SDPA's math kernel. Sixteen-bit inputs are computed in fp32 throughout.
Tensor math(Eager& g, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& mask, Shape out_shape) {
  const DType dtype = q_in.dtype;
  const Shape expanded{q_in.shape[0], q_in.shape[1], k_in.shape[2], k_in.shape[3]};
  Tensor q = to(g, q_in, DType::fp32, "attention.q_fp32");
  Tensor k = to(g, k_in, DType::fp32, "attention.k_fp32");
  Tensor v = to(g, v_in, DType::fp32, "attention.v_fp32");
  q = scale(g, std::move(q), "attention.q_scaled");
  k = repeat_kv(g, std::move(k), expanded, "attention.k_expanded");
  v = repeat_kv(g, std::move(v), expanded, "attention.v_expanded");
  std::swap(k.shape[2], k.shape[3]);
  k = scale(g, std::move(k), "attention.k_scaled");  // of the transposed keys
  Tensor scores = matmul(g, std::move(q), std::move(k), scores_shape(q_in, k_in), "attention.scores");
  { Tensor causal = g.make("attention.causal", {q_in.shape[2], k_in.shape[2]}, DType::fp32, Category::temporaries); }
  if (mask) scores = add(g, std::move(scores), mask, "attention.masked");
  Tensor probabilities = softmax(g, std::move(scores), DType::fp32, "attention.probabilities");
  Tensor out = matmul(g, std::move(probabilities), std::move(v), q_in.shape, "attention.out_fp32");
  out = to(g, std::move(out), dtype, "attention.out_cast");
  return copy(g, std::move(out), std::move(out_shape), "attention.out");  // transpose(1, 2).contiguous()
}

/// eager_attention_forward of the modeling files.
Attended eager(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value, const LayerContext& context,
               const KernelOptions& options, Shape out_shape) {
  const Shape expanded{query.shape[0], query.shape[1], key.shape[2], key.shape[3]};
  Tensor keys = repeat_kv(g, key, expanded, "attention.k_expanded");
  Tensor values = repeat_kv(g, value, expanded, "attention.v_expanded");
  // matmul folds batch and heads into one axis: a transposed tensor of several sequences has to be copied for that
  const bool copies_kv = options.several_sequences && query.shape[1] == key.shape[1];
  Tensor scores;
  {
    Tensor q = options.several_sequences ? copy(g, query, query.shape, "attention.q_contiguous") : query;
    Tensor k = copies_kv ? copy(g, keys, expanded, "attention.k_contiguous") : keys;
    scores = matmul(g, std::move(q), std::move(k), scores_shape(query, key), "attention.scores");
  }
  scores = scale(g, std::move(scores), "attention.scaled");
  if (context.mask) {
    Tensor masked = add(g, scores, context.mask, "attention.masked");
    scores = std::move(masked);
  }
  Attended out;
  {
    Tensor probabilities = softmax(g, scores, DType::fp32, "attention.probabilities");
    Tensor cast = to(g, std::move(probabilities), query.dtype, "attention.weights");
    scores.reset();
    out.weights = std::move(cast);
  }
  Tensor v = copies_kv ? copy(g, values, expanded, "attention.v_contiguous") : values;
  Tensor product = matmul(g, out.weights, std::move(v), query.shape, "attention.out_heads");
  out.output = copy(g, std::move(product), std::move(out_shape), "attention.out");
  return out;
}

/// sdpa_attention_forward with PyTorch's choice of kernel (aten sdp_utils.cpp, 2.13): flash for 16-bit without a mask, with
/// grouped queries natively; memory-efficient with a mask or in fp32 (k, v repeated first); math for fp32 grouped queries.
Tensor sdpa(Eager& g, Tensor q, Tensor k, Tensor v, const LayerContext& context, const KernelOptions& options, Shape out_shape) {
  if (g.autocast) {
    q = to(g, std::move(q), DType::bf16, "attention.q_bf16");
    k = to(g, std::move(k), DType::bf16, "attention.k_bf16");
    v = to(g, std::move(v), DType::bf16, "attention.v_bf16");
  }
  const bool grouped = q.shape[1] != k.shape[1];
  if (options.sdpa_math || (q.dtype == DType::fp32 && grouped && !context.mask)) return math(g, q, k, v, context.mask, std::move(out_shape));
  if (q.dtype != DType::fp32 && !context.mask) return flash(g, q, k, v, std::move(out_shape), options, true);
  const Shape expanded{q.shape[0], q.shape[1], k.shape[2], k.shape[3]};
  k = repeat_kv(g, std::move(k), expanded, "attention.k_expanded");
  v = repeat_kv(g, std::move(v), expanded, "attention.v_expanded");
  return efficient(g, q, k, v, context.mask, std::move(out_shape));
}

/// A 16-bit copy as [B, S, heads, d], which is how flash-attention takes it.
Tensor cast_by_token(Eager& g, const Tensor& x, const std::string& name) {
  Tensor by_token = x;
  std::swap(by_token.shape[1], by_token.shape[2]);
  Tensor out = to(g, std::move(by_token), DType::bf16, name);
  out.shape = x.shape;
  return out;
}

Attended kernel(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const LayerContext& context, const KernelOptions& options,
                Shape out_shape) {
  switch (options.kernels) {
    case Kernels::hf_eager: return eager(g, q, k, v, context, options, std::move(out_shape));
    case Kernels::hf_sdpa: return {sdpa(g, q, k, v, context, options, std::move(out_shape)), {}};
    case Kernels::hf_flash: break;
  }
  if (q.dtype != DType::fp32) return {flash(g, q, k, v, std::move(out_shape), options, false), {}};
  // flash_attention_forward casts fp32 inputs (norms and rotary positions of an fp32 model) to the compute dtype
  Tensor q16 = cast_by_token(g, q, "attention.q_bf16");
  Tensor k16 = cast_by_token(g, k, "attention.k_bf16");
  Tensor v16 = cast_by_token(g, v, "attention.v_bf16");
  return {flash(g, q16, k16, v16, std::move(out_shape), options, false), {}};
}

/// q_proj(x).view(heads), with the norm over one head where the family has it.
Tensor project(Eager& g, const Tensor& x, int weight, int bias, int norm, Dim heads, Dim width, const std::string& name) {
  Tensor out = linear(g, x, weight, bias, T, {B, S, heads * width}, name);
  out.shape = {B, S, heads, width};
  if (norm >= 0) out = run_norm(g, NormKind::rms, Tensor(out), norm, name + "_norm");
  out.shape = {B, heads, S, width};
  return out;
}

}  // namespace

Attended run_attention(Eager& g, const Mixer& m, std::int64_t hidden, const LayerLeaves& w, const KernelOptions& options,
                       const LayerContext& context, const Tensor& x) {
  Tensor query = project(g, x, w.q, w.q_bias, w.q_norm, m.heads, m.head_dim, "q");
  Tensor key = project(g, x, w.k, w.k_bias, w.k_norm, m.kv_heads, m.head_dim, "k");
  Tensor value = project(g, x, w.v, w.v_bias, -1, m.kv_heads, m.head_dim, "v");
  if (m.rotary_dim > 0) {
    Tensor q = rotary(g, query, context, "q_rotary");
    Tensor k = rotary(g, key, context, "k_rotary");
    query = std::move(q);
    key = std::move(k);
  }
  Attended out;
  if (options.ulysses > 1) {
    out.output = exchange_around(g, query, key, value, options, [&](const Tensor& q, const Tensor& k, const Tensor& v, Shape shape) {
      return kernel(g, q, k, v, context, options, std::move(shape)).output;
    });
  } else {
    out = kernel(g, query, key, value, context, options, {B, S, Dim(m.heads), Dim(m.head_dim)});
  }
  out.output.shape = {B, S, Dim(m.out_width())};
  Tensor projected = linear(g, out.output, w.o, w.o_bias, T, {B, S, Dim(hidden)}, "o");
  out.output = std::move(projected);
  return out;
}

}  // namespace oomplan
