#include "layers/heads_parallel.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

constexpr Category kLogits = Category::logits;

Tensor by_row(Eager& g, const Tensor& x, DType dtype, const char* name) { return g.make(name, {x.shape[0], Dim(1)}, dtype); }

/// What one chunk keeps for backward: probabilities, expected logit, log-sum-exp, labels and whether they are another rank's.
struct KeptChunk {
  Saved softmax, expected, total, foreign, labels;
  void read() const {
    for (const Saved* one : {&softmax, &expected, &total, &foreign, &labels}) (void)one->get();
  }
};

/// softmax * (E[x] - log Z) - xlogy(softmax, softmax), then minus softmax * gradient: each operator's result is new.
Gradients backward_of_chunk(Eager& g, const KeptChunk& kept) {
  kept.read();
  const Shape shape = kept.softmax.get().shape;
  Tensor none = g.make("chunk.entropy_gradient", {shape[0]}, DType::fp32);
  Tensor gradient = g.make("chunk.gradient_fp32", shape, DType::fp32, kLogits);
  for (const char* name : {"chunk.xlogy", "chunk.scaled"}) Tensor term = g.make(name, shape, DType::fp32, kLogits);
  return Gradients{gradient};
}

}  // namespace

Tensor areal_vocab_parallel_chunk(Eager& g, Tensor part) {
  Tensor full = to(g, std::move(part), DType::fp32, "chunk.logits_fp32");
  const Shape shape = full.shape;
  const bool recorded = g.will_record({&full});
  Tensor largest = by_row(g, full, DType::fp32, "chunk.max");
  Tensor shifted = g.make("chunk.shifted", shape, DType::fp32, kLogits);
  Tensor softmax = g.make("chunk.exp", shape, DType::fp32, kLogits);  // becomes the softmax in place
  Tensor sum = by_row(g, full, DType::fp32, "chunk.sum");
  Tensor foreign = by_row(g, full, DType::boolean, "chunk.foreign");
  Tensor labels = by_row(g, full, DType::int64, "chunk.local_labels");
  Tensor expected;
  if (recorded) {
    Tensor product = g.make("chunk.product", shape, DType::fp32, kLogits);
    expected = by_row(g, full, DType::fp32, "chunk.expected");
  }
  Tensor total = by_row(g, full, DType::fp32, "chunk.log_z");
  Tensor out = by_row(g, full, DType::fp32, "chunk.token");
  if (!recorded) return out;
  const KeptChunk kept{g.save(softmax), g.save(expected), g.save(total), g.save(foreign), g.save(labels)};
  g.record(out, "_VocabParallelLogProbsEntropyBackward", {&full},
           [&g, kept](const Gradients&) { return backward_of_chunk(g, kept); });
  return out;
}

Tensor loss_parallel(Eager& g, const Tensor& logits, const Tensor& labels) {
  Tensor full = to(g, logits, DType::fp32, "logits_fp32");
  const bool recorded = g.will_record({&full});
  const Shape row = with_last(full.shape, 1);
  Tensor log_probs;
  {
    Tensor largest = g.make("logits_max", row, DType::fp32);
    Tensor shifted = g.make("logits_shifted", full.shape, DType::fp32, kLogits);
    {
      Tensor power = g.make("logits_exp", full.shape, DType::fp32, kLogits);
    }
    Tensor sum = g.make("logits_sum", row, DType::fp32), log = g.make("logits_log_sum", row, DType::fp32);
    log_probs = g.make("log_probs", full.shape, DType::fp32, kLogits);
  }
  Tensor loss = g.make("loss", {}, DType::fp32);
  Tensor weight = g.make("loss.total_weight", {}, DType::fp32);
  if (!recorded) return loss;
  Saved saved = g.save(log_probs), target = g.save(labels), saved_weight = g.save(weight);
  log_probs.reset();
  g.record(loss, "NllLossBackward0", {&full}, [&g, saved, target, saved_weight](const Gradients&) {
    (void)target.get();
    (void)saved_weight.get();
    const Shape shape = saved.get().shape, per_row = with_last(shape, 1);
    Tensor valid = g.make("nll_loss_backward.labels", per_row, DType::int64);
    Tensor chosen = g.make("nll_loss_backward", shape, DType::fp32, kLogits);
    Tensor foreign = g.make("nll_loss_backward.foreign", per_row, DType::boolean);
    Tensor local = g.make("nll_loss_backward.local_labels", per_row, DType::int64);
    Tensor update = g.make("nll_loss_backward.update", per_row, DType::fp32);
    Tensor rows = g.make("nll_loss_backward.rows", per_row, DType::int64);
    Tensor scale = g.make("nll_loss_backward.scale", per_row, DType::fp32);
    Tensor out;
    {
      Tensor sum;
      {
        Tensor power = g.make("log_softmax_backward.exp", shape, DType::fp32, kLogits);
        sum = g.make("log_softmax_backward.sum", shape, DType::fp32, kLogits);
      }
      out = g.make("log_softmax_backward", shape, DType::fp32, kLogits);
    }
    return Gradients{out};
  });
  return loss;
}

}  // namespace oomplan
