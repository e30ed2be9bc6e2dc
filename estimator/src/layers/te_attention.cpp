// DotProductAttention of Transformer Engine: cuDNN's fused kernel, flash-attention 2, and both under context parallelism
// (transformer_engine/pytorch/attention/dot_product_attention/{backends,context_parallel}.py, 2.9).
#include <vector>

#include "layers/ops.hpp"
#include "layers/te.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// A copy with another last axis: padded or cut.
Tensor resized(Eager& g, const Tensor& x, Dim width, const std::string& name) {
  Tensor y = g.make(name, with_last(x.shape, width), x.dtype);
  const Shape before = x.shape;
  g.record(y, "ConstantPadNdBackward0", {&x},
           [&g, before, name](Gradients) { return Gradients{gradient(g, (name + "_backward").c_str(), before, DType::bf16)}; });
  return y;
}

/// One kernel that saves q, k, v, its output and the log-sum-exp. `joint`: gradients are views of one block, as q, k and v are.
Tensor one_kernel(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Shape& out_shape, bool joint = false) {
  Tensor out = g.make("attention.out", out_shape, q.dtype);
  Tensor lse = g.make("attention.lse", {B, q.shape[2], q.shape[0], Dim(1)}, DType::fp32);
  if (!g.will_record({&q, &k, &v})) return out;
  Saved sq = g.save(q), sk = g.save(k), sv = g.save(v), so = g.save(out), sl = g.save(lse);
  g.record(out, "FusedAttnFunc", {&q, &k, &v}, [&g, sq, sk, sv, so, sl, joint](Gradients) {
    (void)so.get();
    (void)sl.get();
    const Tensor &query = sq.get(), &key = sk.get(), &value = sv.get();
    Gradients grads;
    if (joint) {
      const Tensor block = gradient(g, "attention_backward.qkv", with_last(query.shape, Dim(3) * query.shape[3]), DType::bf16);
      for (const Tensor* part : {&query, &key, &value}) grads.push_back(block.alias(part->shape));
      return grads;
    }
    grads.push_back(gradient(g, "attention_backward.q", query.shape, DType::bf16));
    grads.push_back(gradient(g, "attention_backward.k", key.shape, DType::bf16));
    grads.push_back(gradient(g, "attention_backward.v", value.shape, DType::bf16));
    return grads;
  });
  return out;
}

/// AttnFuncWithCPAndKVP2P: keys and values go round in buffers, of which the last one is kept. Every step has an output of its
/// own (of all tokens on the last rank, which is described); they are summed in fp32. Backward: two pairs of buffers go round,
/// and the gradients that come out are views of one of them.
Tensor ring(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Shape& out_shape, std::int64_t ranks) {
  const Shape joint{k.shape[0], B, k.shape[2], Dim(k.shape[3].coefficient + v.shape[3].coefficient)};
  Tensor kept, out;
  {
    std::vector<Tensor> round, steps;
    for (std::int64_t i = 0; i < ranks; ++i) {
      round.push_back(g.make("attention.kv", joint, q.dtype, Category::communication));
      steps.push_back(g.make("attention.step", out_shape, q.dtype, Category::temporaries));
    }
    Tensor sum = g.make("attention.sum", out_shape, DType::fp32, Category::temporaries);
    kept = std::move(round.back());
    out = g.make("attention.out", out_shape, q.dtype);
  }
  Tensor lse = g.make("attention.lse", {B, q.shape[2], q.shape[0]}, DType::fp32);
  if (!g.will_record({&q, &k, &v})) return out;
  const Shape keys = k.shape, values = v.shape;
  Saved sq = g.save(q), skv = g.save(kept), so = g.save(out), sl = g.save(lse);
  g.record(out, "AttnFuncWithCPAndKVP2P", {&q, &k, &v}, [&g, sq, skv, so, sl, keys, values](Gradients) {
    (void)so.get();
    (void)sl.get();
    const Shape pair = with_last(skv.get().shape, Dim(2) * skv.get().shape.back());
    Tensor queries = gradient(g, "attention_backward.q", sq.get().shape, DType::bf16);
    Tensor comes = gradient(g, "attention_backward.ring", pair, DType::bf16);
    Tensor goes = gradient(g, "attention_backward.ring", pair, DType::bf16);
    const Tensor step_q = gradient(g, "attention_backward.step_q", sq.get().shape, DType::bf16);
    const Tensor step_kv = gradient(g, "attention_backward.step_kv", skv.get().shape, DType::bf16);
    return Gradients{std::move(queries), goes.alias(keys), goes.alias(values)};
  });
  return out;
}

/// AttnFuncWithCPAndQKVOA2A: heads for tokens and back; the output is kept before and, by the next layer, behind the way back.
Tensor exchanged(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Shape& out_shape) {
  Tensor out;
  {
    Tensor queries = g.make("attention.q_exchanged", q.shape, q.dtype, Category::communication);
    Tensor keys = g.make("attention.k_exchanged", k.shape, q.dtype, Category::communication);
    Tensor values = g.make("attention.v_exchanged", v.shape, q.dtype, Category::communication);
    out = one_kernel(g, q, k, v, out_shape);
  }
  Tensor back = g.make("attention.out_exchanged", out_shape, q.dtype);
  g.record(back, "AllToAll", {&out}, [&g, out_shape](Gradients) {
    return Gradients{gradient(g, "attention_backward.out_exchanged", out_shape, DType::bf16)};
  });
  return back;
}

/// A copy whose gradient has the shape of what was copied.
Tensor copied(Eager& g, const Tensor& x, Shape shape, const std::string& name) {
  Tensor y = g.make(name, std::move(shape), x.dtype);
  const Shape before = x.shape;
  g.record(y, "Copy", {&x},
           [&g, before, name](Gradients) { return Gradients{gradient(g, (name + "_backward").c_str(), before, DType::bf16)}; });
  return y;
}

/// UnfusedDotProductAttention: keys and values of all heads, scores, probabilities; the mask is inside of the softmax's kernel,
/// whose backward pass works in place.
Tensor unfused(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value, const TeOptions& o) {
  const Dim tokens = query.shape[0], heads = query.shape[2];
  const Shape square{B, heads, tokens, tokens};
  Tensor k = key, v = value;
  if (!(key.shape[2] == heads)) {
    k = copied(g, key, {tokens, B, heads, key.shape[3]}, "attention.k_repeated");
    v = copied(g, value, {tokens, B, heads, value.shape[3]}, "attention.v_repeated");
  }
  Tensor scores;
  {
    Tensor empty = g.make("attention.scores_empty", square, DType::bf16, Category::temporaries);
    scores = g.make("attention.scores", square, DType::bf16);
  }
  if (g.will_record({&query, &k})) {
    Saved sq = g.save(query), sk = g.save(k);
    g.record(scores, "BaddbmmBackward0", {&query, &k}, [&g, sq, sk](Gradients) {
      Gradients grads;
      grads.push_back(gradient(g, "attention_backward.q", sq.get().shape, DType::bf16));
      grads.push_back(gradient(g, "attention_backward.k", sk.get().shape, DType::bf16));
      return grads;
    });
  }
  Tensor probabilities = g.make("attention.probabilities", square, DType::bf16);
  if (g.will_record({&scores})) {
    Saved saved = g.save(probabilities);
    g.record(probabilities, "ScaledUpperTriangMaskedSoftmax", {&scores}, [saved](Gradients in) {
      (void)saved.get();
      return in;
    });
  }
  if (o.attention_dropout) probabilities = dropout(g, std::move(probabilities), "attention.dropped");
  Tensor product = g.make("attention.product", {B, heads, tokens, value.shape[3]}, DType::bf16);
  if (g.will_record({&probabilities, &v})) {
    Saved sp = g.save(probabilities), sv = g.save(v);
    g.record(product, "BmmBackward0", {&probabilities, &v}, [&g, sp, sv](Gradients) {
      Gradients grads;
      grads.push_back(gradient(g, "attention_backward.probabilities", sp.get().shape, DType::bf16));
      grads.push_back(gradient(g, "attention_backward.v", sv.get().shape, DType::bf16));
      return grads;
    });
  }
  return copied(g, product, {tokens, B, heads, value.shape[3]}, "attention.out");
}

}  // namespace

Tensor te_attention(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value, AttentionViews views,
                    const TeOptions& o) {
  const Dim width = value.shape[3];
  Shape out_shape{query.shape[0], B, query.shape[2], width};
  const auto block = [&g](const Tensor& x, bool view, const char* name) { return view ? te_contiguous(g, x, name) : x; };
  if (o.context > 1 && o.attention == TeAttention::fused) {
    const Tensor k = block(key, views.key, "k_contiguous");
    const Tensor q = block(query, views.query, "q_contiguous");
    if (o.exchange == ContextExchange::p2p) return ring(g, q, k, value, out_shape, o.context);
    return exchanged(g, q, k, block(value, views.value, "v_contiguous"), out_shape);
  }
  if (o.attention == TeAttention::unfused) return unfused(g, query, key, value, o);
  if (o.attention == TeAttention::flash) {
    // flash-attention 2 has one width for all: values are padded to it, the output is cut
    const bool pads = !(width == query.shape[3]);
    if (pads) out_shape = with_last(out_shape, query.shape[3]);
    Tensor q = query, k = key, v = pads ? resized(g, value, query.shape[3], "v_padded") : value;
    if (o.several_sequences) {  // it wants sequences in front: each of them is copied, and so is its output back
      q = te_contiguous(g, query, "attention.q_by_sequence");
      k = te_contiguous(g, key, "attention.k_by_sequence");
    } else {
      q = block(query, views.query, "q_contiguous");
      k = block(key, views.key, "k_contiguous");
    }
    if (!pads && (o.several_sequences || views.value)) v = te_contiguous(g, value, "attention.v_by_sequence");
    Tensor out = o.context > 1 && o.exchange == ContextExchange::p2p ? ring(g, q, k, v, out_shape, o.context)
                 : o.context > 1                                     ? exchanged(g, q, k, v, out_shape)
                                                                     : one_kernel(g, q, k, v, out_shape);
    if (pads) return resized(g, out, width, "attention.out_cut");
    return o.several_sequences ? te_contiguous(g, out, "attention.out_by_token") : out;
  }
  if (views.joint) return one_kernel(g, query, key, value, out_shape, true);
  // the kernels take views of the fused projection only where all three lie in it head by head: they are copied
  const Tensor q = block(query, views.query, "q_contiguous");
  const Tensor k = block(key, views.key, "k_contiguous");
  return one_kernel(g, q, k, block(value, views.value, "v_contiguous"), out_shape);
}

}  // namespace oomplan
