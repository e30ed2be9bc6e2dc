#include "layers/liger.hpp"

#include <bit>

#include "layers/ops.hpp"

namespace oomplan::liger {

Tensor rms_norm(Eager& g, const Tensor& x, int weight, const Norm& norm, const std::string& name) {
  Tensor w = g.leaf(weight);
  Tensor out = g.make(name + ".output", x.shape, x.dtype);
  Tensor root = g.make(name + ".rstd", with_last(x.shape, 1), DType::fp32);
  if (!g.will_record({&x, &w})) return out;
  Saved saved = g.save(x), saved_weight = g.save(w), saved_root = g.save(root);
  const bool for_w = w.needs_grad();
  const Shape width = w.shape;
  const DType format = w.dtype;
  g.record(out, "LigerRMSNormFunctionBackward", {&x, &w}, [=, &g](Gradients in) {
    const Shape rows = saved.get().shape;
    (void)saved_weight.get();
    (void)saved_root.get();
    const bool by_row = norm.code.norm_gradient_by_row;
    const Shape parts = by_row ? rows : Shape{Dim(norm.multiprocessors), width[0]};
    Gradients grads(2);
    Tensor every =
        g.make(name + ".weight_gradients", parts, by_row && !norm.in_fp32 ? format : DType::fp32, Category::temporaries);
    grads[0] = norm.in_place || by_row ? in[0].alias(in[0].shape)
                                       : g.make(name + ".backward", in[0].shape, in[0].dtype, Category::temporaries);
    Tensor sum = g.row_sum(every, width, name + ".weight_gradient", Category::gradients);
    if (for_w) grads[1] = ops::to(g, std::move(sum), format, name + ".weight_gradient");
    return grads;
  });
  return out;
}

Tensor layer_norm(Eager& g, const Tensor& x, int weight, int bias, LayerNormSum sum, std::int64_t multiprocessors,
                  const std::string& name) {
  Tensor w = g.leaf(weight), b = g.leaf(bias);
  Tensor out = g.make(name + ".output", x.shape, x.dtype);
  Tensor mean = g.make(name + ".mean", with_last(x.shape, 1), x.dtype);
  Tensor root = g.make(name + ".rstd", with_last(x.shape, 1), x.dtype);
  if (!g.will_record({&x, &w, &b})) return out;
  Saved saved = g.save(x), saved_mean = g.save(mean), saved_root = g.save(root);
  const Shape parts{Dim(sum == LayerNormSum::in_place ? 1 : multiprocessors), w.shape[0]};
  const DType format = w.dtype, inner = sum == LayerNormSum::parts_in_fp32 ? DType::fp32 : format;
  g.record(out, "LigerLayerNormFunctionBackward", {&x, &w, &b}, [=, &g, width = w.shape](const Gradients& in) {
    (void)saved_mean.get();
    (void)saved_root.get();
    Gradients grads(3);
    grads[0] = g.make(name + ".backward", saved.get().shape, in[0].dtype, Category::temporaries);
    Tensor weights = g.make(name + ".weight_gradients", parts, inner, Category::temporaries);
    Tensor biases = g.make(name + ".bias_gradients", parts, inner, Category::temporaries);
    if (sum == LayerNormSum::in_place) {
      grads[1] = weights.alias(width);
      grads[2] = biases.alias(width);
      return grads;
    }
    grads[1] =
        ops::to(g, g.row_sum(weights, width, name + ".weight_gradient", Category::gradients), format, name + ".weight_gradient");
    grads[2] =
        ops::to(g, g.row_sum(biases, width, name + ".bias_gradient", Category::gradients), format, name + ".bias_gradient");
    return grads;
  });
  return out;
}

Tensor gated(Eager& g, Tensor a, Tensor b, const std::string& name) {
  Tensor out = g.make(name, a.shape, a.dtype);
  if (!g.will_record({&a, &b})) return out;
  Saved saved_a = g.save(a), saved_b = g.save(b);
  g.record(out, "LigerSiLUMulFunctionBackward", {&a, &b}, [saved_a, saved_b](const Gradients&) {
    const Tensor &left = saved_a.get(), &right = saved_b.get();
    return Gradients{left.alias(left.shape), right.alias(right.shape)};
  });
  return out;
}

Pair rope(Eager& g, const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool by_head) {
  Pair out{q.alias(q.shape), k.alias(k.shape)};
  if (!g.will_record({&q, &k})) return out;
  Saved saved_cos = g.save(cos), saved_sin = g.save(sin);
  const auto backward = [=, &g](Gradients in) {
    (void)saved_cos.get();
    (void)saved_sin.get();
    if (!by_head) return in;
    Tensor query = g.make("rope_backward.q", in[0].shape, in[0].dtype, Category::temporaries);
    Tensor key = g.make("rope_backward.k", in[1].shape, in[1].dtype, Category::temporaries);
    return Gradients{query, key};
  };
  g.record(out.query, "LigerRopeFunctionBackward", {&q, &k}, backward, 2);
  out.key.grad_fn = out.query.grad_fn;
  out.key.output = 1;
  return out;
}

Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels) {
  const Shape rows(logits.shape.begin(), logits.shape.end() - 1);
  Tensor losses = g.make("losses", rows, logits.dtype);
  Tensor mask = g.make("labels.mask", labels.shape, DType::boolean);
  Tensor loss = g.make("loss", {}, DType::fp32);
  if (!g.will_record({&logits})) return loss;
  Saved saved = g.save(logits);
  g.record(loss, "LigerCrossEntropyFunctionBackward", {&logits}, [saved](const Gradients&) {
    const Tensor& self = saved.get();
    return Gradients{self.alias(self.shape)};
  });
  return loss;
}

std::int64_t fused_head_rows(std::int64_t rows, std::int64_t hidden, std::int64_t vocab) {
  const std::int64_t larger = ceil_div(vocab, hidden);
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(ceil_div(rows, larger))));
}

namespace {

/// Names of the loop outlive their turn: a chunk's logits go when the next one's are there.
void run_chunk(Eager& g, const Tensor& x, const FusedHead& head, Dim rows, bool for_w, Tensor& logits, Tensor& gradient) {
  const Shape wide{rows, Dim(head.vocab)};
  const LigerCode& code = head.code;
  Tensor next = g.make("chunk.logits", wide, x.dtype, Category::logits);
  logits = std::move(next);
  if (code.head_upcasts) {
    next = g.make("chunk.logits_fp32", wide, DType::fp32, Category::logits);
    logits = std::move(next);
    next = g.make("chunk.logits_cast", wide, x.dtype, Category::logits);
    logits = std::move(next);
  }
  if (code.head_scales) {
    next = g.make("chunk.gradient", wide, x.dtype, Category::logits);
    gradient = std::move(next);
  } else {
    gradient = logits;
  }
  {
    Tensor product = g.make("chunk.input_gradient", {rows, Dim(head.hidden)}, x.dtype, Category::temporaries);
  }
  if (!for_w || code.head_sum == HeadSum::in_place) return;
  const Shape all{Dim(head.vocab), Dim(head.hidden)};
  Tensor product = g.make("chunk.weight_gradient", all, x.dtype, Category::temporaries);
  Tensor copy = ops::to(g, std::move(product), DType::fp32, "chunk.weight_gradient_fp32");
}

}  // namespace

Tensor fused_linear_cross_entropy(Eager& g, const Tensor& x, const FusedHead& head) {
  Tensor w = g.leaf(head.weight);
  const bool recorded = g.will_record({&x, &w}), for_w = recorded && w.needs_grad();
  const bool grad = std::exchange(g.grad_enabled, false);
  Tensor input_gradient = g.make("input_gradient", {head.rows, Dim(head.hidden)}, x.dtype, Category::temporaries);
  Tensor weight_gradient = for_w ? g.make("weight_gradient", w.shape, w.dtype, Category::gradients) : Tensor();
  Tensor losses = g.make("losses", {head.rows}, DType::fp32);
  Tensor mask = g.make("labels.mask", {head.rows}, DType::boolean);
  {
    Tensor logits, gradient;
    for (int i = 0; i < head.chunks; ++i) {
      head.scope(i);
      const bool last = i > 0 && i + 1 == head.chunks;
      run_chunk(g, x, head, last ? head.last_rows : head.chunk_rows, for_w, logits, gradient);
    }
    head.scope(-1);
  }
  Tensor loss = g.make("loss", {}, DType::fp32);
  g.grad_enabled = grad;
  if (!recorded) return loss;
  Saved saved_input = g.save(input_gradient), saved_weight = for_w ? g.save(weight_gradient) : Saved();
  input_gradient.reset();
  weight_gradient.reset();
  const Shape shape = x.shape;
  g.record(loss, "LigerFusedLinearCrossEntropyFunctionBackward", {&x, &w}, [=](const Gradients&) {
    Gradients grads(2);
    grads[0] = saved_input.get().alias(shape);
    if (for_w) grads[1] = saved_weight.get().alias(saved_weight.get().shape);
    return grads;
  });
  return loss;
}

}  // namespace oomplan::liger
