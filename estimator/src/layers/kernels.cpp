#include "layers/kernels.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/sinks.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// What parts of the keys came to, in fp32, while they are joined.
void join_parts(Eager& g, const Tensor& q, const SplitKeys& keys) {
  constexpr std::int64_t kRounded = 32, kWide = 128;
  const std::int64_t parts = keys.parts(q.shape), width = q.shape[3].coefficient;
  if (parts == 1) return;
  Shape rows{Dim(parts), q.shape[0], q.shape[1], q.shape[2]};
  Tensor lse = g.make("attention.lse_accum", rows, DType::fp32, Category::workspace);
  rows.push_back(Dim(round_up(width, width <= kWide ? kRounded : 2 * kRounded)));
  Tensor out = g.make("attention.out_accum", rows, DType::fp32, Category::workspace);
}

/// flash-attention 2: saves q, k, v, out, log-sum-exp and the state of the generator.
/// Backward buffers inside the kernel: flash-attention csrc/flash_attn/flash_api.cpp mha_bwd, mha_varlen_bwd (2.8): dq in fp32
/// and one fp32 per row, both in whole tiles, and k, v gradients expanded to all heads under grouped queries.
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
  auto results = g.kept(false, [&] {
    Eager::Results made{g.make("attention.out", sdpa ? q.shape : out_shape, q.dtype)};
    made.push_back(g.make("attention.lse", {q.shape[0], heads, rows}, DType::fp32));
    made.push_back(g.make("attention.rng", {Dim(2)}, DType::int64));
    if (sdpa) made.push_back(g.make("attention.rng_offset", {}, DType::int64));
    return made;
  });
  Tensor out = std::move(results[0]), lse = std::move(results[1]), rng = std::move(results[2]);
  Tensor offset = sdpa ? std::move(results[3]) : Tensor();
  if (sdpa) join_parts(g, q, options.split_keys);
  out.shape = std::move(out_shape);
  if (!recorded) return out;
  Tensor as_made = out;
  as_made.transposed = q.transposed;
  Saved sl = sdpa ? g.save(lse) : Saved(), so = g.save(as_made);  // derivatives.yaml: logsumexp, output
  if (!sdpa) sl = g.save(lse);
  Saved sr = g.save(rng), sf = sdpa ? g.save(offset) : Saved();
  as_made.reset();
  const bool grouped = q.shape[1] != k.shape[1];
  const bool internals = options.kernel_internals;
  const Shape whole = q.shape;
  const Shape rounded = flash_sums(q.shape, options.attention_tiles), by_row{rounded[0], rounded[1], rounded[2]};
  g.record(out, "FlashAttentionBackward", {&q, &k, &v}, [=, &g](Gradients in) {
    for (const Saved* s : {&sq, &sk, &sv, &so, &sl, &sr}) (void)s->get();
    if (sdpa) (void)sf.get();
    const DType dtype = in[0].dtype;
    Gradients grads;
    for (const Saved* s : {&sq, &sk, &sv})
      grads.push_back(g.make("attention.backward", s->get().shape, dtype, Category::temporaries));
    if (internals) {
      Tensor dq = g.make("attention.dq_accum", rounded, DType::fp32, Category::workspace);
      Tensor d = g.make("attention.softmax_d", by_row, DType::fp32, Category::workspace);
      Tensor dk = grouped ? g.make("attention.dk_expanded", whole, dtype, Category::workspace) : Tensor();
      Tensor dv = grouped ? g.make("attention.dv_expanded", whole, dtype, Category::workspace) : Tensor();
    }
    return grads;
  });
  return out;
}

/// What a mask becomes for the kernel: one of bools is converted, one of numbers padded where its rows are no multiple of 16.
Tensor bias_of(Eager& g, const Tensor& mask, DType dtype) {
  constexpr std::int64_t kAligned = 16;
  if (!mask) return {};
  if (mask.dtype != dtype) return g.make("attention.bias", mask.shape, dtype);
  const std::int64_t last = mask.shape.back().coefficient, whole = ceil_div(last, kAligned) * kAligned;
  return whole == last ? mask : g.make("attention.bias", with_last(mask.shape, Dim(whole)), dtype);
}

/// SDPA's memory-efficient kernel: k and v are copies for all heads, the mask is converted to the compute dtype in every layer.
Tensor efficient(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, Shape out_shape,
                 const KernelOptions& options) {
  Tensor bias = bias_of(g, mask, q.dtype);
  if (bias && options.pads_bias) {
    Tensor padded = g.make("attention.bias_padded", bias.shape, bias.dtype);
    bias = std::move(padded);
  }
  const bool recorded = g.will_record({&q, &k, &v});
  Saved sq, sk, sv, sb;
  if (recorded) {
    sq = g.save(q);
    sk = g.save(k);
    sv = g.save(v);
    if (bias) sb = g.save(bias);
  }
  Tensor out = g.make("attention.out", with_last(q.shape, v.shape.back()), q.dtype);
  Tensor lse = g.make("attention.lse", {q.shape[0], q.shape[1], q.shape[2]}, DType::fp32);
  Tensor seed = g.make("attention.rng", {}, DType::int64), offset = g.make("attention.rng", {}, DType::int64);
  if (options.kernel_internals) make_efficient_forward(g, q, v);
  out.shape = std::move(out_shape);
  if (!recorded) return out;
  Saved so = g.save(out), sl = g.save(lse), ss = g.save(seed), sf = g.save(offset);
  const bool internals = options.kernel_internals;
  g.record(out, "EfficientAttentionBackward", {&q, &k, &v}, [=, &g, tiles = options.attention_tiles](Gradients in) {
    for (const Saved* s : {&sq, &sk, &sv, &sb, &so, &sl, &ss, &sf}) (void)s->get();
    Gradients grads;
    for (const Saved* s : {&sq, &sk, &sv})
      grads.push_back(g.make("attention.backward", s->get().shape, in[0].dtype, Category::temporaries));
    if (internals) {
      make_efficient_backward(g, sq.get(), sk.get(), sv.get(), in[0].dtype, tiles);
    } else {
      Tensor delta = g.make("attention.delta", sl.get().shape, DType::fp32, Category::temporaries);
    }
    return grads;
  });
  return out;
}

/// The last axis padded from v's width to q's: F.pad. Its gradient is cut out of the padded one's, as a copy.
Tensor pad_values(Eager& g, const Tensor& v, Dim width) {
  const Shape narrow = v.shape;
  Tensor out = g.make("attention.v_padded", {v.shape[0], v.shape[2], v.shape[1], width}, v.dtype);
  out.shape = with_last(v.shape, width);
  g.record(out, "ConstantPadNdBackward0", {&v},
           [&g, narrow](Gradients in) { return Gradients{g.make("pad_backward", narrow, in[0].dtype, Category::temporaries)}; });
  return out;
}

Shape scores_shape(const Tensor& q, const Tensor& k) { return {q.shape[0], q.shape[1], q.shape[2], k.shape[2]}; }

/// SDPA's math kernel (aten/src/ATen/native/transformers/attention.cpp, 2.13: _scaled_dot_product_attention_math). Sixteen-bit
/// inputs are computed in fp32 throughout; the casts, the scaled queries, the keys and values for all heads and the mask are
/// names of the function. matmul folds batch and heads: queries of several sequences are copied for that.
/// `broadcast`: not grouped queries (enable_gqa), but one head that the products broadcast, each when it comes to it; of
/// `several` sequences it is copied for all heads then. `casts_inside`: the result and the probabilities are cast while all of
/// that is there; `masks_rows`: what the softmax makes inside is counted.
struct MathForm {
  bool folds_queries = false, broadcast = false, several = false, casts_inside = false, masks_rows = false;
};
Tensor math(Eager& g, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& mask, Shape out_shape,
            const MathForm& form) {
  const auto& [folds_queries, broadcast, several, casts_inside, masks_rows] = form;
  const DType dtype = q_in.dtype;
  const Shape expanded{q_in.shape[0], q_in.shape[1], k_in.shape[2], k_in.shape[3]};
  Tensor out;
  {
    const Tensor wide_q = to(g, q_in, DType::fp32, "attention.q_fp32");
    const Tensor wide_k = to(g, k_in, DType::fp32, "attention.k_fp32");
    const Tensor wide_v = to(g, v_in, DType::fp32, "attention.v_fp32");
    const Tensor q = scale(g, wide_q, "attention.q_scaled");
    const Tensor causal =
        mask ? Tensor() : g.make("attention.causal", {q_in.shape[2], k_in.shape[2]}, DType::fp32, Category::temporaries);
    const bool one = !broadcast && k_in.shape[1] == Dim(1) && q_in.shape[1] != Dim(1);  // enable_gqa repeats it by a copy
    const auto for_all = [&](const Tensor& x, const Shape& shape, const char* name) {
      if (broadcast) return x;
      return one ? repeat_interleave(g, x, shape, name) : repeat_kv(g, x, shape, name);
    };
    const Tensor keys = for_all(wide_k, expanded, "attention.k_expanded");
    Tensor values = for_all(wide_v, expanded, "attention.v_expanded");
    Tensor scores;
    {
      Tensor k = keys;
      std::swap(k.shape[2], k.shape[3]);
      k = scale(g, std::move(k), "attention.k_scaled");  // of the transposed keys
      const Shape turned{expanded[0], expanded[1], expanded[3], expanded[2]};
      if (broadcast) k = repeat_kv(g, std::move(k), turned, "attention.k_expanded");
      if (broadcast && several) k = copy(g, std::move(k), turned, "attention.k_contiguous");
      Tensor folded = folds_queries ? copy(g, q, q.shape, "attention.q_contiguous") : q;
      scores = matmul(g, std::move(folded), std::move(k), scores_shape(q_in, k_in), "attention.scores");
    }
    if (mask) scores = add(g, std::move(scores), mask, "attention.masked");
    Tensor given = masks_rows ? scores : Tensor();
    Tensor probabilities = softmax(g, std::move(scores), DType::fp32, "attention.probabilities");
    if (masks_rows) {  // aten/src/ATen/native/SoftMax.cpp, 2.13: _safe_softmax
      const Tensor masked = g.make("attention.masked_scores", given.shape, DType::boolean, Category::workspace);
      const Tensor chosen = g.make("attention.safe", given.shape, DType::fp32, Category::workspace);
    }
    given.reset();
    if (broadcast) values = repeat_kv(g, std::move(values), expanded, "attention.v_expanded");
    if (broadcast && several) values = copy(g, std::move(values), expanded, "attention.v_contiguous");
    const Tensor weights = casts_inside ? probabilities : Tensor();
    out = matmul(g, std::move(probabilities), values, q_in.shape, "attention.out_fp32");
    if (casts_inside) {
      Tensor narrow = to(g, out, dtype, "attention.out_cast");
      const Tensor of_weights = g.make("attention.probabilities_cast", weights.shape, dtype, Category::temporaries);
      out = std::move(narrow);
    }
  }
  if (!casts_inside) out = to(g, std::move(out), dtype, "attention.out_cast");
  return copy(g, std::move(out), std::move(out_shape), "attention.out");  // transpose(1, 2).contiguous()
}

/// softmax in fp32, cast back; or in the dtype of the scores, of which autocast makes an fp32 copy first.
Tensor probabilities_of(Eager& g, Tensor& scores, DType dtype, bool in_dtype) {
  if (in_dtype && !g.autocast) {
    Tensor narrow = softmax(g, scores, scores.dtype, "attention.probabilities");
    scores.reset();
    return narrow;
  }
  Tensor wide = in_dtype ? to(g, scores, DType::fp32, "attention.scores_fp32") : scores;
  Tensor probabilities = softmax(g, std::move(wide), DType::fp32, "attention.probabilities");
  Tensor cast = to(g, std::move(probabilities), dtype, "attention.weights");
  scores.reset();
  return cast;
}

/// tanh(scores / cap) * cap, each step bound to the same name.
void soft_cap(Eager& g, Tensor& scores) {
  Tensor next = scale(g, scores, "attention.capped_in");
  scores = std::move(next);
  next = tanh(g, scores, "attention.capped");
  scores = std::move(next);
  next = scale(g, scores, "attention.capped_out");
  scores = std::move(next);
}

/// Autocast's own format, 16 bits: what has 16 bits has it already.
Tensor narrowed(Eager& g, Tensor x, const std::string& name) {
  return x.dtype == DType::fp32 ? to(g, std::move(x), DType::bf16, name) : x;
}

/// torch.matmul under autocast: what is wider is cast, the last argument first.
Tensor product(Eager& g, Tensor a, Tensor b, Shape out_shape, const std::string& name) {
  if (g.autocast) {
    b = narrowed(g, std::move(b), name + ".right_bf16");
    a = narrowed(g, std::move(a), name + ".left_bf16");
  }
  return matmul(g, std::move(a), std::move(b), std::move(out_shape), name);
}

/// eager_attention_forward of the modeling files. matmul folds batch and heads into one axis: a transposed tensor of several
/// sequences has to be copied for that; one that lies by head, or was repeated to all heads, need not.
Attended eager(Eager& g, const Attention& in, const KernelOptions& options) {
  const Tensor &query = in.query, &key = in.key, &value = in.value;
  const auto all_heads = [&](const Tensor& x) { return Shape{query.shape[0], query.shape[1], x.shape[2], x.shape[3]}; };
  Tensor keys = key, values = value;
  const auto expand_keys = [&] { keys = repeat_kv(g, key, all_heads(key), "attention.k_expanded"); };
  const auto expand_values = [&] { values = repeat_kv(g, value, all_heads(value), "attention.v_expanded"); };
  expand_keys();
  if (!in.expands_late) expand_values();
  const bool repeated = query.shape[1] != key.shape[1] && key.shape[1] != Dim(1);
  const bool broadcast = query.shape[1] != key.shape[1] && !repeated;  // one head as a view of all
  const bool one = query.shape[1] == Dim(1);                           // a transposed axis of one head changes nothing
  const auto folded = [&](const Tensor& x, bool lies_by_head, Shape shape, const char* name) {
    return options.several_sequences && !lies_by_head && !one ? copy(g, x, std::move(shape), name) : x;
  };
  const Shape transposed{keys.shape[0], keys.shape[1], keys.shape[3], keys.shape[2]};
  Tensor scores;
  {
    Tensor q = folded(query, in.by_head, query.shape, "attention.q_contiguous");
    Tensor k = folded(keys, repeated || (in.by_head && !broadcast), transposed, "attention.k_contiguous");
    q.transposed = q.storage() == query.storage() && !in.by_head;
    k.transposed = k.storage() == keys.storage();
    if (g.autocast) k.shape = transposed;  // a cast is made of it as it is multiplied with
    scores = product(g, std::move(q), std::move(k), scores_shape(query, key), "attention.scores");
  }
  scores = scale(g, std::move(scores), "attention.scaled");
  if (options.softcap) soft_cap(g, scores);
  Tensor unmasked = in.expands_late ? scores : Tensor();  // Falcon: softmax(attention_scores + attention_mask)
  if (in.mask) {
    Tensor masked = add(g, scores, in.mask, "attention.masked");
    scores = std::move(masked);
  }
  Attended out;
  Tensor logits, wide;  // with the column of the sinks: names until the function returns
  if (in.sinks >= 0) {
    wide = probabilities_with_sinks(g, scores, in.sinks, logits);
    Tensor dropped = options.attention_dropout ? dropout(g, wide, "attention.dropped") : wide;
    out.weights = to(g, std::move(dropped), value.dtype, "attention.weights");
  } else if (in.shifts_scores) {
    out.weights = shifted_probabilities(g, scores);
  } else {
    out.weights = probabilities_of(g, scores, query.dtype, in.softmax_in_dtype);
  }
  if (in.shifts_scores) logits.reset();
  scores.reset();
  unmasked.reset();
  if (options.attention_dropout && in.sinks < 0) {
    Tensor dropped = dropout(g, out.weights, "attention.dropped");
    out.weights = std::move(dropped);
  }
  if (in.expands_late) expand_values();
  Tensor v = folded(values, repeated, values.shape, "attention.v_contiguous");
  v.transposed = v.storage() == values.storage() && !repeated;
  Tensor heads = product(g, out.weights, std::move(v), with_last(query.shape, value.shape.back()), "attention.out_heads");
  out.output = copy(g, std::move(heads), in.out_shape, "attention.out");
  return out;
}

/// sdpa_attention_forward with PyTorch's choice of kernel (aten sdp_utils.cpp, 2.13): flash for 16-bit without a mask, with
/// grouped queries natively; memory-efficient with a mask, in fp32, with wide heads, or with values narrower than keys (k, v
/// repeated first); math for fp32 grouped queries. Flash's output lies as q does, and transpose(1, 2).contiguous() copies one
/// that lies by head.
Tensor sdpa(Eager& g, Attention in, const KernelOptions& options) {
  Tensor &q = in.query, &k = in.key, &v = in.value;
  const int given_k = k.storage(), given_v = v.storage();
  const auto expand = [&] {
    const Shape keys{q.shape[0], q.shape[1], k.shape[2], k.shape[3]}, values = with_last(keys, v.shape.back());
    k = repeat_kv(g, std::move(k), keys, "attention.k_expanded");
    v = repeat_kv(g, std::move(v), values, "attention.v_expanded");
  };
  // transformers repeats keys and values in front of what flash does not take (integrations/sdpa_attention.py use_gqa_in_sdpa)
  const bool wide = q.shape.back().coefficient > kWidestFlash && !in.asks_for_groups;
  // one token's heads are rows of their group instead (pack_gqa, 5.24)
  const bool packs = options.kv_cache == KvCache::grows && !options.release.expands_single && q.shape[1] != k.shape[1];
  if (packs && (in.mask || wide)) {
    q.shape[2] = Dim(q.shape[1].coefficient / k.shape[1].coefficient) * q.shape[2];
    q.shape[1] = k.shape[1];
  }
  if (options.release.expands_keys || wide || (in.mask && !in.expands_late)) expand();
  if (g.autocast) {
    q = narrowed(g, std::move(q), "attention.q_bf16");
    k = narrowed(g, std::move(k), "attention.k_bf16");
    v = narrowed(g, std::move(v), "attention.v_bf16");
  }
  const bool grouped = q.shape[1] != k.shape[1];
  const bool broadcast = grouped && in.expands_late;  // without enable_gqa: check_batch_size_and_num_heads_dense
  if (options.sdpa_math || broadcast || (q.dtype == DType::fp32 && grouped && !in.mask))
    return math(g, q, k, v, in.mask, in.out_shape,
                {.folds_queries = options.several_sequences && !in.by_head,
                 .broadcast = broadcast,
                 .several = options.several_sequences,
                 .casts_inside = in.asks_for_groups,
                 .masks_rows = in.asks_for_groups && options.kernel_internals});
  if (q.dtype != DType::fp32 && !in.mask && !wide && v.shape.back() == q.shape.back()) {
    q.transposed = !in.by_head;
    k.transposed = !in.by_head && k.storage() == given_k;
    v.transposed = v.storage() == given_v;
    Tensor out = flash(g, q, k, v, in.out_shape, options, true);
    return in.by_head ? copy(g, std::move(out), in.out_shape, "attention.out_contiguous") : out;
  }
  expand();
  return efficient(g, q, k, v, in.mask, in.out_shape, options);
}

/// A 16-bit copy as [B, S, heads, d], which is how flash-attention takes it.
Tensor cast_by_token(Eager& g, const Tensor& x, const std::string& name) {
  Tensor by_token = x;
  std::swap(by_token.shape[1], by_token.shape[2]);
  Tensor out = to(g, std::move(by_token), DType::bf16, name);
  out.shape = x.shape;
  return out;
}

/// flash_attention_forward: values are padded to the width of queries, the output is cut back.
Tensor flash_forward(Eager& g, const Attention& given, const KernelOptions& options) {
  Attention in = given;
  if (in.flash_repeats && options.release.expands_keys) {
    in.key =
        repeat_kv(g, given.key, {in.query.shape[0], in.query.shape[1], in.key.shape[2], in.key.shape[3]}, "attention.k_expanded");
    in.value = repeat_kv(g, given.value, {in.query.shape[0], in.query.shape[1], in.value.shape[2], in.value.shape[3]},
                         "attention.v_expanded");
  }
  if (options.flash_takes_rows && in.key.shape[1] != Dim(1)) {  // prepare_fa2_from_position_ids
    in.key = copy(g, given.key, given.key.shape, "attention.k_rows");
    in.value = copy(g, given.value, given.value.shape, "attention.v_rows");
  }
  const Dim width = in.query.shape.back(), narrow = in.value.shape.back();
  Tensor v = in.value;
  if (narrow != width) v = pad_values(g, in.value, width);
  Tensor out;
  if (in.query.dtype != DType::fp32) {
    out = flash(g, in.query, in.key, v, with_last(in.out_shape, width), options, false);
  } else {
    // fp32 inputs (norms and rotary positions of an fp32 model) are cast to the compute dtype
    Tensor q16 = cast_by_token(g, in.query, "attention.q_bf16");
    Tensor k16 = cast_by_token(g, in.key, "attention.k_bf16");
    Tensor v16 = cast_by_token(g, v, "attention.v_bf16");
    out = flash(g, q16, k16, v16, with_last(in.out_shape, width), options, false);
  }
  // flash's result lies as its queries do (flash_api.cpp, 2.8: empty_like); the layer's reshape copies one that lies by head
  const bool copied = in.by_head && in.query.shape[1] != Dim(1) && options.kernel_internals;
  if (narrow == width) return copied ? copy(g, std::move(out), in.out_shape, "attention.out_flat") : out;
  Tensor cut = slice(g, out, in.out_shape);
  return cut;
}

}  // namespace

Attended attend(Eager& g, const Attention& in, const KernelOptions& options) {
  switch (options.kernels) {
    case Kernels::hf_eager:
      return eager(g, in, options);
    case Kernels::hf_sdpa:
    case Kernels::torchtitan:
    case Kernels::litgpt:
    case Kernels::litgpt_0_4_5:
    case Kernels::torchtune:
    case Kernels::torchtune_packed:
    case Kernels::transformer_engine:  // layers of its own
      return {sdpa(g, in, options), {}, {}};
    case Kernels::archon:  // attention of its own
    case Kernels::hf_flash:
      break;
  }
  return {flash_forward(g, in, options), {}, {}};
}

}  // namespace oomplan
