#include "layers/sinks.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

Tensor wide_gradient(Eager& g, const char* name, const Tensor& like) {
  return g.make_with_column(name, like.shape, like.dtype, Category::temporaries);
}

/// torch.cat([scores, sinks], dim=-1)
Tensor with_column(Eager& g, const Tensor& scores, int sinks) {
  Tensor out = g.make_with_column("attention.with_sinks", scores.shape, scores.dtype);
  Tensor column = g.leaf(sinks);  // reshape and expand: a view
  const Shape part = scores.shape, one = with_last(scores.shape, 1);
  g.record(out, "CatBackward0", {&scores, &column},
           [part, one](Gradients in) { return Gradients{in[0].alias(part), in[0].alias(one)}; });
  return out;
}

/// logits.max(dim=-1, keepdim=True).values: the indices are saved.
Tensor row_maximum(Eager& g, const Tensor& logits, bool column) {
  const Shape by_row = with_last(logits.shape, 1);
  Tensor values = g.make("attention.max", by_row, logits.dtype);
  Tensor indices = g.make("attention.max_indices", by_row, DType::int64);
  if (!g.will_record({&logits})) return values;
  Saved saved = g.save(indices);
  Tensor like = Tensor();
  like.shape = logits.shape;
  like.dtype = logits.dtype;
  g.record(values, "MaxBackward0", {&logits}, [&g, saved, like, column](const Gradients&) {
    (void)saved.get();
    if (!column) return Gradients{gradient(g, "max_backward", like.shape, like.dtype)};
    return Gradients{wide_gradient(g, "max_backward", like)};  // zeros, then scatter
  });
  return values;
}

/// logits - highest
Tensor shifted(Eager& g, const Tensor& logits, const Tensor& highest) {
  Tensor out = g.make_with_column("attention.shifted", logits.shape, logits.dtype);
  const Shape by_row = highest.shape;
  g.record(out, "SubBackward0", {&logits, &highest}, [&g, by_row](Gradients in) {
    Tensor negative = wide_gradient(g, "sub_backward", in[0]);
    Tensor summed = g.make("sub_backward.sum", by_row, in[0].dtype, Category::temporaries);
    return Gradients{in[0], summed};
  });
  return out;
}

Tensor wide_softmax(Eager& g, const Tensor& logits) {
  Tensor out = g.make_with_column("attention.probabilities", logits.shape, logits.dtype);
  if (!g.will_record({&logits})) return out;
  Saved saved = g.save(out);
  g.record(out, "SoftmaxBackward0", {&logits}, [&g, saved](const Gradients& in) {
    (void)saved.get();
    return Gradients{wide_gradient(g, "softmax_backward", in[0])};
  });
  return out;
}

/// Without a column.
Tensor shifted_by(Eager& g, const Tensor& logits, const Tensor& highest) {
  Tensor out = g.make("attention.shifted", logits.shape, logits.dtype);
  const Shape by_row = highest.shape;
  g.record(out, "SubBackward0", {&logits, &highest}, [&g, by_row](Gradients in) {
    Tensor negative = gradient(g, "sub_backward", in[0].shape, in[0].dtype);
    Tensor summed = g.make("sub_backward.sum", by_row, in[0].dtype, Category::temporaries);
    return Gradients{in[0], summed};
  });
  return out;
}

/// probabilities[..., :-1]
Tensor without_column(Eager& g, const Tensor& probabilities) {
  Tensor out = probabilities.alias(probabilities.shape);
  g.record(out, "SliceBackward0", {&probabilities},
           [&g](const Gradients& in) { return Gradients{wide_gradient(g, "slice_backward", in[0])}; });
  return out;
}

}  // namespace

Tensor probabilities_with_sinks(Eager& g, const Tensor& scores, int sinks, Tensor& logits) {
  logits = with_column(g, scores, sinks);
  {
    Tensor highest = row_maximum(g, logits, true);
    Tensor next = shifted(g, logits, highest);
    highest.reset();
    logits = std::move(next);
  }
  Tensor probabilities = wide_softmax(g, logits);
  return without_column(g, probabilities);
}

Tensor shifted_probabilities(Eager& g, Tensor& scores) {
  {
    Tensor highest = row_maximum(g, scores, false);
    Tensor next = shifted_by(g, scores, highest);
    highest.reset();
    scores = std::move(next);
  }
  return softmax(g, scores, scores.dtype, "attention.probabilities");
}

}  // namespace oomplan
