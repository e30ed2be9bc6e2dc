// DotProductAttention of Megatron-core (megatron/core/transformer/dot_product_attention.py, 0.16.1).
#include <string>

#include "layers/megatron_local.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// repeat_interleave: a copy in which every key or value has as many neighbours as queries share it; the gradient is summed up.
Tensor repeated(Eager& g, const Tensor& x, Dim heads, const std::string& name) {
  Tensor y = g.make(name, {x.shape[0], B, heads, x.shape[3]}, x.dtype);
  const Shape before = x.shape;
  g.record(y, "RepeatInterleaveBackward", {&x},
           [&g, before, name](Gradients) { return Gradients{gradient(g, (name + "_backward").c_str(), before, DType::bf16)}; });
  return y;
}

/// baddbmm over the buffer that stays; its factor is multiplied into both gradients.
Tensor scores_of(Eager& g, const Tensor& query, const Tensor& key, const Shape& square) {
  Tensor scores = g.make("attention.scores", square, DType::bf16);
  if (!g.will_record({&query, &key})) return scores;
  Saved sq = g.save(query), sk = g.save(key);
  g.record(scores, "BaddbmmBackward0", {&query, &key}, [&g, sq, sk](Gradients) {
    const auto scaled = [&g](const Tensor& of, const char* name) {
      const Tensor product = gradient(g, "attention_backward.product", of.shape, DType::bf16);
      return gradient(g, name, of.shape, DType::bf16);
    };
    Gradients grads;
    grads.push_back(scaled(sq.get(), "attention_backward.q"));
    grads.push_back(scaled(sk.get(), "attention_backward.k"));
    return grads;
  });
  return scores;
}

/// ScaledUpperTriangMaskedSoftmax, whose backward pass writes into the gradient.
Tensor masked_softmax(Eager& g, const Tensor& scores) {
  Tensor out = g.make("attention.probabilities", scores.shape, DType::bf16);
  if (!g.will_record({&scores})) return out;
  Saved saved = g.save(out);
  g.record(out, "ScaledUpperTriangMaskedSoftmax", {&scores}, [saved](Gradients in) {
    (void)saved.get();
    return in;
  });
  return out;
}

/// What masks the scores: of the batch, or get_default_causal_mask.
Tensor mask_of(Eager& g, const Tensor& given, Dim tokens) {
  if (given) return given;
  Tensor ones = g.make("attention.ones", {tokens, tokens}, DType::fp32, Category::temporaries);
  const Tensor triangle = g.make("attention.triangle", {tokens, tokens}, DType::fp32, Category::temporaries);
  ones.reset();
  return g.make("attention.mask", {tokens, tokens}, DType::boolean);
}

/// An element-wise operator that keeps nothing: its gradient is a tensor of its own.
Tensor scaled(Eager& g, const Tensor& x) {
  Tensor y = g.make("attention.scaled", x.shape, x.dtype);
  g.record(y, "MulBackward0", {&x},
           [&g](Gradients in) { return Gradients{gradient(g, "attention_backward.scaled", in[0].shape, in[0].dtype)}; });
  return y;
}

/// masked_fill_: its result is the argument. Of a view autograd makes CopySlices
/// (torch/csrc/autograd/functions/tensor.cpp, 2.13): the gradient is copied in the shape of what is viewed, and once more for the
/// operator, whose result is copied back.
Tensor masked_in_place(Eager& g, const Tensor& x, const Saved& mask, bool view) {
  Tensor y = x.alias(x.shape);
  g.record(y, "MaskedFillBackward0", {&x}, [&g, mask, view](Gradients in) {
    const auto make = [&](const char* name) { return gradient(g, name, in[0].shape, in[0].dtype); };
    if (!view) return Gradients{make("attention_backward.masked")};
    Tensor whole = make("attention_backward.whole");
    const Tensor part = make("attention_backward.slice"), masked = make("attention_backward.masked");
    return Gradients{std::move(whole)};
  });
  return y;
}

/// forward_torch_softmax: masked in place, and a softmax with a result of its own, in fp32 where that is asked for.
Tensor plain_softmax(Eager& g, const Tensor& scores, const LocalAttention& how) {
  Tensor x = how.fp32 ? to(g, scores, DType::fp32, "attention.scores_fp32") : scores.alias(scores.shape);
  if (!how.fp32) x.grad_fn = scores.grad_fn;
  if (how.scales) {
    Tensor product = scaled(g, x);
    x = std::move(product);
  }
  const Tensor mask = mask_of(g, how.mask, scores.shape[2]);
  const bool view = !how.fp32 && !how.scales;  // of the product, by heads
  const Tensor masked = masked_in_place(g, x, g.will_record({&x}) ? g.save(mask) : Saved(), view);
  const Tensor out = softmax(g, masked, x.dtype, "attention.probabilities");
  return how.fp32 ? to(g, out, DType::bf16, "attention.probabilities_cast") : out;
}

/// bmm over views, and the way back to [S, B, heads, k]: its own result goes when it has been copied.
Tensor weighted_values(Eager& g, const Tensor& probabilities, const Tensor& value, const Shape& out) {
  Tensor product = g.make("attention.product", {B, out[2], out[0], out[3]}, DType::bf16);
  if (g.will_record({&probabilities, &value})) {
    Saved sp = g.save(probabilities), sv = g.save(value);
    g.record(product, "BmmBackward0", {&probabilities, &value}, [&g, sp, sv](Gradients) {
      Gradients grads;
      grads.push_back(gradient(g, "attention_backward.probabilities", sp.get().shape, DType::bf16));
      grads.push_back(gradient(g, "attention_backward.v", sv.get().shape, DType::bf16));
      return grads;
    });
  }
  Tensor turned = product.alias(out);
  turned.grad_fn = product.grad_fn;
  return te_contiguous(g, turned, "attention.out");
}

}  // namespace

bool local_softmax_kernel(std::int64_t sequences, std::int64_t heads, std::int64_t tokens) {
  constexpr std::int64_t kLeast = 16, kMost = 4096, kUnit = 4, kShort = 128;
  // batches of a block of the kernel (Apex, csrc/megatron/scaled_upper_triang_masked_softmax.h: 4 warps, two rows each of short
  // sequences)
  const std::int64_t block = tokens <= kShort ? 2 * kUnit : kUnit;
  return tokens > kLeast && tokens <= kMost && tokens % kUnit == 0 && sequences * heads % block == 0;
}

Tensor local_attention(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value, const LocalAttention& how) {
  const Dim tokens = query.shape[0], heads = query.shape[2];
  const bool repeats = !(key.shape[2] == heads);
  const Tensor k = repeats ? repeated(g, key, heads, "attention.k_repeated") : key;
  const Tensor v = repeats ? repeated(g, value, heads, "attention.v_repeated") : value;
  const Tensor scores = scores_of(g, query, k, {B, heads, tokens, tokens});  // a name until the function returns
  Tensor probabilities = how.fused_softmax ? masked_softmax(g, scores) : plain_softmax(g, scores, how);
  if (how.dropout) probabilities = dropout(g, std::move(probabilities), "attention.dropped");
  return weighted_values(g, probabilities, v, query.shape);
}

Tensor run_local_core(Eager& g, const std::vector<Tensor>& heads, const ChunkOptions& o, const Tensor& mask) {
  LocalAttention how;
  how.fused_softmax = o.softmax_kernel;
  how.scales = o.settings.query_key_layer_scaling;
  how.fp32 = o.settings.softmax_in_fp32 || how.scales;
  how.dropout = o.te.attention_dropout;
  if (!recomputes(o, "core_attn")) {
    how.mask = mask;
    return local_attention(g, heads[0], heads[1], heads[2], how);
  }
  std::vector<Tensor> inputs = heads;  // the checkpoint keeps the mask, too
  if (mask) inputs.push_back(mask);
  return checkpoint_several(g, inputs, [&g, how](const std::vector<Tensor>& in) {
    LocalAttention again = how;
    if (in.size() > 3) again.mask = in[3];
    return std::vector<Tensor>{local_attention(g, in[0], in[1], in[2], again)};
  });
}

}  // namespace oomplan
