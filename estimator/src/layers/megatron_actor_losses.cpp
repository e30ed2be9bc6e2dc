// Losses of actors behind Megatron's output layer, on this rank's part of the vocabulary: verl's and slime's.
//
// verl: logits_processor (verl/workers/actor/megatron_actor.py, verl/workers/engine/megatron/transformer_impl.py) with
// vocab_parallel_entropy (verl/utils/megatron/tensor_parallel.py), 0.7.0; before 0.6 without temperature and copy (0.4.1). slime:
// get_log_probs_and_entropy (slime/backends/megatron_utils/loss.py) with _VocabParallelLogProbEntropy (slime/utils/ppo_utils.py),
// 624b824a of August 2026. Executed: tests/data/executed_actor_losses.jsonl.
//
// Legend: K tokens of the micro-batch, M rows of a chunk.
#include "layers/megatron_actor_losses.hpp"

#include "layers/heads_verl_fused.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::M;

constexpr Category kLogits = Category::logits;

Tensor per_row(Eager& g, const Tensor& x, DType dtype, const char* name) { return g.make(name, with_last(x.shape, 1), dtype); }

/// What stays of the targets: whether they are another rank's, and their columns in this rank's part.
struct TargetRows {
  Tensor foreign, columns;
  TargetRows(Eager& g, const Tensor& x)
      : foreign(per_row(g, x, DType::boolean, "targets.foreign")), columns(per_row(g, x, DType::int64, "targets.columns")) {}
};

}  // namespace

Tensor vocab_parallel_cross_entropy(Eager& g, const Tensor& logits) {
  const bool recorded = g.will_record({&logits});
  Tensor largest = per_row(g, logits, DType::fp32, "logits.max");
  const TargetRows targets(g, logits);
  Tensor predicted = per_row(g, logits, DType::fp32, "logits.of_target"), total = per_row(g, logits, DType::fp32, "logits.sum");
  Tensor loss = per_row(g, logits, DType::fp32, "token_loss");
  if (!recorded) return loss;
  Saved softmax = g.save(logits), foreign = g.save(targets.foreign), columns = g.save(targets.columns);
  g.record(loss, "VocabParallelCrossEntropyBackward", {&logits}, [softmax, foreign, columns](const Gradients&) {
    (void)foreign.get();
    (void)columns.get();
    return Gradients{softmax.get()};
  });
  return loss;
}

Tensor vocab_parallel_entropy(Eager& g, const Tensor& logits) {
  const bool recorded = g.will_record({&logits});
  Tensor largest = per_row(g, logits, DType::fp32, "logits.max");
  Tensor softmax = g.make("entropy.softmax", logits.shape, DType::fp32, kLogits);
  Tensor total = per_row(g, logits, DType::fp32, "logits.sum");
  Tensor expected = per_row(g, logits, DType::fp32, "entropy.expected_logit");
  Tensor out = per_row(g, logits, DType::fp32, "entropy");
  if (!recorded) return out;
  Saved whole = g.save(logits), kept = g.save(softmax), rows = g.save(expected);
  g.record(out, "VocabParallelEntropyBackward", {&logits}, [whole, kept, rows](const Gradients&) {
    (void)whole.get();
    (void)rows.get();
    return Gradients{kept.get()};
  });
  return out;
}

namespace {

/// logits.div_(temperature): a number, so that nothing is kept; the gradient is a new tensor.
Tensor divided_in_place(Eager& g, const Tensor& logits) {
  Tensor out = logits.alias(logits.shape);
  const Shape shape = logits.shape;
  g.record(out, "DivBackward0", {&logits},
           [&g, shape](const Gradients&) { return Gradients{gradient(g, "division_backward", shape, DType::fp32)}; });
  return out;
}

Tensor mean_of_tokens(Eager& g, const Tensor& per_token) {
  Tensor loss = g.make("loss", {}, DType::fp32);
  const Shape whole = per_token.shape;
  g.record(loss, "MeanBackward0", {&per_token},
           [&g, whole](const Gradients&) { return Gradients{gradient(g, "loss_backward", whole, DType::fp32)}; });
  return loss;
}

Tensor sum_of(Eager& g, const Tensor& a, const Tensor& b) {
  Tensor out = g.make("loss.sum", {}, DType::fp32);
  g.record(out, "AddBackward0", {&a, &b}, [](const Gradients& in) { return Gradients{in[0], in[0]}; });
  return out;
}

Tensor verl_loss(Eager& g, const ActorLoss& o, Tensor logits) {
  const Tensor divided = o.undivided ? logits : divided_in_place(g, logits);
  logits.reset();
  if (!o.entropy) return mean_of_tokens(g, vocab_parallel_cross_entropy(g, divided));
  const Tensor copied = o.undivided ? divided : copy(g, divided, divided.shape, "logits.clone");
  const Tensor entropy = vocab_parallel_entropy(g, divided);
  const Tensor log_probs = vocab_parallel_cross_entropy(g, copied);
  return sum_of(g, mean_of_tokens(g, log_probs), mean_of_tokens(g, entropy));
}

struct Pair {
  Tensor log_probs, entropy;
};

/// One softmax serves both; its gradient is written over it. Only an entropy that is part of the loss keeps the logits, and its
/// gradient is one more tensor.
Pair slime_chunk(Eager& g, const ActorLoss& o, const Tensor& logits) {
  const bool recorded = g.will_record({&logits});
  const TargetRows targets(g, logits);
  Tensor largest = per_row(g, logits, DType::fp32, "logits.max");
  Tensor softmax = g.make("softmax", logits.shape, DType::fp32, kLogits);
  Tensor predicted = per_row(g, logits, DType::fp32, "logits.of_target"), total = per_row(g, logits, DType::fp32, "logits.sum");
  Tensor expected;
  Pair out;
  if (o.entropy) {
    expected = per_row(g, logits, DType::fp32, "entropy.expected_logit");
    out.entropy = per_row(g, logits, DType::fp32, "entropy");
  }
  out.log_probs = per_row(g, logits, DType::fp32, "token_log_probs");
  if (!recorded) return out;
  const bool both = o.entropy && o.entropy_gradient;
  Saved kept = g.save(softmax), foreign = g.save(targets.foreign), columns = g.save(targets.columns);
  Saved whole = both ? g.save(logits) : Saved(), rows = both ? g.save(expected) : Saved();
  const auto back = [&g, kept, foreign, columns, whole, rows, both](const Gradients&) {
    (void)foreign.get();
    (void)columns.get();
    Tensor of_entropy;
    if (both) {
      (void)rows.get();
      of_entropy = gradient(g, "entropy_backward", whole.get().shape, DType::fp32);
    }
    return Gradients{kept.get()};
  };
  g.record(out.log_probs, "VocabParallelLogProbEntropyBackward", {&logits}, back);
  return out;
}

/// Whoever calls holds the logits as they were until the loss is there.
Tensor slime_loss(Eager& g, const ActorLoss& o, const Tensor& given, const std::function<void(int)>& scope) {
  const Tensor logits = o.temperature ? scale(g, given, "logits.divided", kLogits) : given;
  if (o.chunks == 0) return mean_of_tokens(g, slime_chunk(g, o, logits).log_probs);
  const Shape one{M, logits.shape.back()};
  const Dim tokens = logits.shape[0] * B;
  const std::vector<Tensor> parts = split(g, logits, std::vector<Shape>(static_cast<std::size_t>(o.chunks), one));
  std::vector<Tensor> log_probs;
  for (int i = 0; i < o.chunks; ++i) {
    scope(i);
    log_probs.push_back(slime_chunk(g, o, parts[static_cast<std::size_t>(i)]).log_probs);
  }
  scope(-1);
  return mean_of_tokens(g, cat(g, std::move(log_probs), {tokens, 1}, "token_log_probs"));
}

}  // namespace

Tensor fused_actor_loss(Eager& g, const ActorLoss& o, const Tensor& hidden, const Tensor& labels, const Tensor& weight,
                        std::int64_t columns) {
  const VerlFusedRows rows = verl_fused_over_ranks(g, hidden, labels, weight, columns, hidden.shape[0] * B, o.entropy);
  if (!o.entropy) return mean_of_tokens(g, rows.log_probs);
  return sum_of(g, mean_of_tokens(g, rows.log_probs), mean_of_tokens(g, rows.entropy));
}

Tensor actor_loss(Eager& g, const ActorLoss& o, Tensor logits, const std::function<void(int)>& scope) {
  if (o.kind == ActorLossKind::verl) return verl_loss(g, o, std::move(logits));
  if (!o.checkpoint) return slime_loss(g, o, logits, scope);
  // run again when this has returned
  return g.checkpoint_reentrant(logits, [&g, o, scope](const Tensor& x) { return slime_loss(g, o, x, scope); });
}

}  // namespace oomplan
