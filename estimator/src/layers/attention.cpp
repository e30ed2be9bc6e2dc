#include "layers/attention.hpp"

#include "layers/ops.hpp"
#include "layers/rotary.hpp"
#include "layers/ulysses.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// flash-attention 2: saves q, k, v, out, log-sum-exp and the state of the generator.
/// Backward buffers inside the kernel: flash-attention csrc/flash_attn/flash_api.cpp mha_bwd (2.8): dq in fp32, one fp32 per
/// row, and k, v gradients expanded to all heads under grouped queries.
Tensor flash(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, Shape out_shape, const KernelOptions& options,
             bool sdpa) {
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
  {
    Tensor causal = g.make("attention.causal", {q_in.shape[2], k_in.shape[2]}, DType::fp32, Category::temporaries);
  }
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
  const bool copies_kv = options.several_sequences && (query.shape[1] == key.shape[1] || key.shape[1] == Dim(1));
  Tensor scores;
  {
    Tensor q = options.several_sequences ? copy(g, query, query.shape, "attention.q_contiguous") : query;
    Tensor k = copies_kv ? copy(g, keys, expanded, "attention.k_contiguous") : keys;
    scores = matmul(g, std::move(q), std::move(k), scores_shape(query, key), "attention.scores");
  }
  scores = scale(g, std::move(scores), "attention.scaled");
  if (options.softcap) {
    Tensor divided = scale(g, scores, "attention.capped_in");
    scores = std::move(divided);
    Tensor bounded = tanh(g, scores, "attention.capped");
    scores = std::move(bounded);
    Tensor scaled = scale(g, scores, "attention.capped_out");
    scores = std::move(scaled);
  }
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
  if (options.attention_dropout) {
    Tensor dropped = dropout(g, out.weights, "attention.dropped");
    out.weights = std::move(dropped);
  }
  Tensor v = copies_kv ? copy(g, values, expanded, "attention.v_contiguous") : values;
  Tensor product = matmul(g, out.weights, std::move(v), query.shape, "attention.out_heads");
  out.output = copy(g, std::move(product), std::move(out_shape), "attention.out");
  return out;
}

/// sdpa_attention_forward with PyTorch's choice of kernel (aten sdp_utils.cpp, 2.13): flash for 16-bit without a mask, with
/// grouped queries natively; memory-efficient with a mask or in fp32 (k, v repeated first); math for fp32 grouped queries.
/// `by_head`: q is contiguous with heads in front of tokens; flash's output follows it, and transpose(1, 2).contiguous() copies.
Tensor sdpa(Eager& g, Tensor q, Tensor k, Tensor v, const LayerContext& context, const KernelOptions& options, bool by_head,
            Shape out_shape) {
  if (g.autocast) {
    q = to(g, std::move(q), DType::bf16, "attention.q_bf16");
    k = to(g, std::move(k), DType::bf16, "attention.k_bf16");
    v = to(g, std::move(v), DType::bf16, "attention.v_bf16");
  }
  const bool grouped = q.shape[1] != k.shape[1];
  if (options.sdpa_math || (q.dtype == DType::fp32 && grouped && !context.mask))
    return math(g, q, k, v, context.mask, std::move(out_shape));
  if (q.dtype != DType::fp32 && !context.mask) {
    Tensor out = flash(g, q, k, v, out_shape, options, true);
    return by_head ? copy(g, std::move(out), std::move(out_shape), "attention.out_contiguous") : out;
  }
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

Attended kernel(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const LayerContext& context,
                const KernelOptions& options, bool by_head, Shape out_shape) {
  switch (options.kernels) {
    case Kernels::hf_eager:
      return eager(g, q, k, v, context, options, std::move(out_shape));
    case Kernels::hf_sdpa:
      return {sdpa(g, q, k, v, context, options, by_head, std::move(out_shape)), {}};
    case Kernels::hf_flash:
      break;
  }
  if (q.dtype != DType::fp32) return {flash(g, q, k, v, std::move(out_shape), options, false), {}};
  // flash_attention_forward casts fp32 inputs (norms and rotary positions of an fp32 model) to the compute dtype
  Tensor q16 = cast_by_token(g, q, "attention.q_bf16");
  Tensor k16 = cast_by_token(g, k, "attention.k_bf16");
  Tensor v16 = cast_by_token(g, v, "attention.v_bf16");
  return {flash(g, q16, k16, v16, std::move(out_shape), options, false), {}};
}

/// What the projections give: [B, heads, S, d] each; `fused` is the name of the fused product, which the module keeps.
struct Projected {
  Tensor fused, query, key, value;
};

/// q_proj(x) with the norm over all heads where the family has it.
Tensor project(Eager& g, const Tensor& x, int weight, int bias, Dim width, const std::string& name) {
  return linear(g, x, weight, bias, T, {B, S, width}, name);
}

/// Phi-3: three slices of one product.
Projected project_fused(Eager& g, const Mixer& m, const LayerLeaves& w, const Tensor& x) {
  Projected out;
  out.fused = linear(g, x, w.qkv, -1, T, {B, S, Dim(m.q_width() + m.k_width() + m.v_width())}, "qkv");
  out.query = slice(g, out.fused, {B, S, Dim(m.q_width())});
  out.key = slice(g, out.fused, {B, S, Dim(m.k_width())});
  out.value = slice(g, out.fused, {B, S, Dim(m.v_width())});
  return out;
}

/// Norms over all heads stand in front of the view as heads, norms over one head behind it.
Projected project_all(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const Tensor& x) {
  Projected out;
  if (w.qkv >= 0) {
    out = project_fused(g, m, w, x);
  } else {
    const auto normed = [&](Tensor t, std::int64_t heads, const NormLeaf& norm, const std::string& name) {
      if (m.qk_norm == QkNorm::head) t.shape = {B, S, Dim(heads), Dim(m.head_dim)};
      if (m.qk_norm != QkNorm::none && !code.rotary.before_norm) t = run_norm(g, code.norm, Tensor(t), norm, name + "_norm");
      return t;
    };
    out.query = normed(project(g, x, w.q, w.q_bias, Dim(m.q_width()), "q"), m.heads, w.q_norm, "q");
    out.key = normed(project(g, x, w.k, w.k_bias, Dim(m.k_width()), "k"), m.kv_heads, w.k_norm, "k");
    out.value = project(g, x, w.v, w.v_bias, Dim(m.v_width()), "v");
  }
  out.query.shape = {B, Dim(m.heads), S, Dim(m.head_dim)};
  out.key.shape = out.value.shape = {B, Dim(m.kv_heads), S, Dim(m.head_dim)};
  return out;
}

/// Ministral 3: query * (1 + beta * log(1 + floor(position / original length))).to(dtype).
Tensor scale_query(Eager& g, const Tensor& query) {
  Tensor factor;
  {
    Tensor wide = g.make("query_scale_fp32", {Dim(1), Dim(1), S, Dim(1)}, DType::fp32, Category::buffers);
    factor = to(g, std::move(wide), query.dtype, "query_scale");
  }
  return mul(g, query, std::move(factor), "query_scaled");
}

/// Rotary positions and what stands behind them; names are rebound.
void place(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const LayerContext& context, Projected& p) {
  if (m.rotary_dim > 0) {
    Rotated rotated = apply_rotary(g, code.rotary, context, p.query, p.key);
    p.query = std::move(rotated.query);
    p.key = std::move(rotated.key);
  }
  if (code.rotary.scales_query) p.query = scale_query(g, p.query);
  if (!code.rotary.before_norm || m.qk_norm == QkNorm::none) return;
  Tensor query = run_norm(g, code.norm, p.query, w.q_norm, "q_norm");
  p.query = std::move(query);
  Tensor key = run_norm(g, code.norm, p.key, w.k_norm, "k_norm");
  p.key = std::move(key);
}

}  // namespace

Attended run_attention(Eager& g, const FamilyCode& code, const Mixer& m, std::int64_t hidden, const LayerLeaves& w,
                       const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  Projected p = project_all(g, code, m, w, x);
  place(g, code, m, w, context, p);
  Attended out;
  const bool by_head = m.rotary_dim > 0 && code.rotary.splits_head;  // cat makes it so
  if (options.ulysses > 1) {
    const auto inner = [&](const Tensor& q, const Tensor& k, const Tensor& v, Shape shape) {
      return kernel(g, q, k, v, context, options, by_head, std::move(shape)).output;
    };
    out.output = exchange_around(g, p.query, p.key, p.value, options, inner);
  } else {
    out = kernel(g, p.query, p.key, p.value, context, options, by_head, {B, S, Dim(m.heads), Dim(m.head_dim)});
  }
  out.output.shape = {B, S, Dim(m.out_width())};
  Tensor projected = linear(g, out.output, w.o, w.o_bias, T, {B, S, Dim(hidden)}, "o");
  out.output = std::move(projected);
  if (options.hidden_dropout) {
    Tensor dropped = dropout(g, out.output, "dropped");
    out.output = std::move(dropped);
  }
  return out;
}

}  // namespace oomplan
