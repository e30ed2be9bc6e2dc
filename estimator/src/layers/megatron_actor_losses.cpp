// Losses of actors behind Megatron's output layer, on this rank's part of the vocabulary: verl's and slime's.
//
// verl: logits_processor (verl/workers/actor/megatron_actor.py, verl/workers/engine/megatron/transformer_impl.py) with
// vocab_parallel_entropy (verl/utils/megatron/tensor_parallel.py), 0.7.0; before 0.6 without temperature and copy (0.4.1). slime:
// get_log_probs_and_entropy (slime/backends/megatron_utils/loss.py) with _VocabParallelLogProbEntropy (slime/utils/ppo_utils.py),
// 624b824a of August 2026; calculate_log_probs_and_entropy with _VocabParallelEntropy and Megatron's
// fused_vocab_parallel_cross_entropy (megatron/core/fusions/fused_cross_entropy.py, 0.16.1) of 0.3.0 and of 0.2.4, and of Relax
// (redai-infra/Relax relax/utils/training/ppo_utils.py, 0db3b6d3). Executed: tests/data/executed_actor_losses.jsonl.
// Distillation: compute_forward_kl_topk with _VocabParallelKLDivergence (verl/trainer/distillation/megatron/losses.py), the same
// from 0.8 to 0.10. Executed: tests/data/executed_topk_losses.jsonl.
//
// Relax's most likely tokens: compute_log_probs_on_topk_token_ids and compute_policy_opd_loss (relax/utils/opd/opd_utils.py,
// redai-studio/Relax 02bf712a and 92106a46). Executed: tests/data/executed_relax_topk.jsonl.
//
// Legend: K tokens of the micro-batch, or of a sample, M rows of a chunk, k of the teacher's most likely tokens for each.
#include "layers/megatron_actor_losses.hpp"

#include "layers/heads_verl_fused.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::K, axis::M;

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

/// vocab_parallel_log_softmax: its names last until it returns.
Tensor vocab_parallel_log_softmax(Eager& g, const Tensor& logits) {
  Tensor largest = per_row(g, logits, DType::fp32, "logits.max");
  Tensor shifted = g.make("teacher_loss.shifted", logits.shape, DType::fp32, kLogits);
  Tensor exponentials = g.make("teacher_loss.exponentials", logits.shape, DType::fp32, kLogits);
  Tensor total = per_row(g, logits, DType::fp32, "logits.sum"), log_total = per_row(g, logits, DType::fp32, "logits.log_sum");
  return g.make("teacher_loss.log_probs", logits.shape, DType::fp32, kLogits);
}

/// What the loss makes for the teacher's k tokens of every row.
struct TopRows {
  Tensor probabilities, columns, active, mass;  ///< saved
  Tensor differences;                           ///< of log-probs, which the diagnostics read
};

TopRows top_rows(Eager& g, const Tensor& logits, const Shape& top) {
  TopRows out;
  Tensor global = g.make("teacher_loss.ids", top, DType::int32);
  Tensor own = g.make("teacher_loss.own", top, DType::boolean);
  out.columns = g.make("teacher_loss.columns", top, DType::int32);
  Tensor given = g.make("teacher_loss.given", top, DType::fp32);
  Tensor clamped = g.make("teacher_loss.clamped", top, DType::fp32);
  given.reset();
  out.probabilities = g.make("teacher_loss.teacher_probs", top, DType::fp32);
  Tensor whole = per_row(g, logits, DType::fp32, "teacher_loss.teacher_mass");
  Tensor numbers = per_row(g, logits, DType::int64, "teacher_loss.rows");
  Tensor gathered = g.make("teacher_loss.student", top, DType::fp32);
  out.active = g.make("teacher_loss.active", top, DType::boolean);
  Tensor student = g.make("teacher_loss.student_clamped", top, DType::fp32);
  gathered.reset();
  {
    Tensor of_active = g.make("teacher_loss.active_probs", top, DType::fp32);
    out.mass = per_row(g, logits, DType::fp32, "teacher_loss.active_mass");
  }
  out.differences = g.make("teacher_loss.differences", top, DType::fp32);
  return out;
}

/// The student's most likely tokens, of all ranks, and how many of the teacher's are among them. `top`: [.., k].
void overlap(Eager& g, const Shape& top) {
  Tensor values = g.make("overlap.values", top, DType::fp32), places = g.make("overlap.places", top, DType::int64);
  Tensor of_ranks = g.make("overlap.of_ranks", with_last(top, Dim(2) * top.back()), DType::fp32);
  Tensor ids_of_ranks = g.make("overlap.ids_of_ranks", with_last(top, Dim(2) * top.back()), DType::int64);
  Shape pairs = top;
  pairs.push_back(top.back());
  Tensor equal = g.make("overlap.equal", std::move(pairs), DType::boolean);
  Tensor among = g.make("overlap.among", top, DType::boolean);
}

/// The divergence of every row: it keeps the softmax, and its gradient is one more tensor.
Tensor teacher_divergence(Eager& g, const Tensor& logits, std::int64_t k) {
  const bool recorded = g.will_record({&logits});
  const Shape top = with_last(logits.shape, Dim(k));
  Tensor packed = g.make("teacher.log_probs_packed", top, DType::fp32), ids = g.make("teacher.ids_packed", top, DType::int32);
  const Tensor log_probs = vocab_parallel_log_softmax(g, logits);
  const Tensor softmax = g.make("teacher_loss.softmax", logits.shape, DType::fp32, kLogits);
  const TopRows rows = top_rows(g, logits, top);
  Tensor out = per_row(g, logits, DType::fp32, "teacher_loss");
  overlap(g, top);
  if (!recorded) return out;
  const Saved kept = g.save(softmax), probabilities = g.save(rows.probabilities), columns = g.save(rows.columns),
              active = g.save(rows.active), mass = g.save(rows.mass);
  g.record(out, "_VocabParallelKLDivergenceBackward", {&logits},
           [&g, kept, probabilities, columns, active, mass, top](const Gradients&) {
             (void)probabilities.get();
             (void)columns.get();
             (void)active.get();
             (void)mass.get();
             Tensor made = gradient(g, "teacher_backward", kept.get().shape, DType::fp32);
             Tensor taken = g.make("teacher_backward.taken", top, DType::fp32);
             Tensor negative = g.make("teacher_backward.negative", top, DType::fp32);
             return Gradients{std::move(made)};
           });
  return out;
}

Tensor with_teacher(Eager& g, const ActorLoss& o, const Tensor& logits, const Tensor& entropy) {
  const Tensor divergence = teacher_divergence(g, logits, o.topk);
  const Tensor log_probs = o.topk_alone ? Tensor() : vocab_parallel_cross_entropy(g, logits);
  Tensor loss;
  for (const Tensor* part : {&log_probs, &entropy, &divergence}) {
    if (!*part) continue;
    Tensor mean = mean_of_tokens(g, *part);
    loss = loss ? sum_of(g, loss, mean) : std::move(mean);
  }
  return loss;
}

Tensor verl_loss(Eager& g, const ActorLoss& o, Tensor logits) {
  const Tensor divided = o.undivided ? logits : divided_in_place(g, logits);
  logits.reset();
  if (!o.entropy && o.topk > 0) return with_teacher(g, o, divided, {});
  if (!o.entropy) return mean_of_tokens(g, vocab_parallel_cross_entropy(g, divided));
  const Tensor copied = o.undivided ? divided : copy(g, divided, divided.shape, "logits.clone");
  const Tensor entropy = vocab_parallel_entropy(g, divided);
  if (o.topk > 0) return with_teacher(g, o, copied, entropy);
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
  Tensor numbers = per_row(g, logits, DType::int64, "targets.rows");
  Tensor largest = per_row(g, logits, DType::fp32, "logits.max");
  Tensor softmax = g.make("softmax", logits.shape, DType::fp32, kLogits);
  Tensor predicted = per_row(g, logits, DType::fp32, "logits.of_target"), total = per_row(g, logits, DType::fp32, "logits.sum");
  Tensor expected;
  Pair out;
  if (o.entropy) {
    expected = per_row(g, logits, DType::fp32, "entropy.expected_logit");
    out.entropy = per_row(g, logits, DType::fp32, "entropy");
  }
  {
    Tensor log_total = per_row(g, logits, DType::fp32, "logits.log_sum");
    out.log_probs = per_row(g, logits, DType::fp32, "token_log_probs");
  }
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

/// Megatron's compiled cross-entropy: the copy becomes the softmax. Its gradient is made in bf16, which autograd casts to fp32.
Tensor fused_cross_entropy(Eager& g, const Tensor& copied) {
  const bool recorded = g.will_record({&copied});
  Tensor largest = per_row(g, copied, DType::fp32, "logits.max");
  const TargetRows targets(g, copied);
  Tensor sums = g.make("logits.of_target_and_sum", with_last(copied.shape, 2), DType::fp32);
  Tensor loss = per_row(g, copied, DType::fp32, "token_log_probs");
  if (!recorded) return loss;
  Saved softmax = g.save(copied), foreign = g.save(targets.foreign), columns = g.save(targets.columns);
  g.record(loss, "_VocabParallelCrossEntropyBackward", {&copied}, [&g, softmax, foreign, columns](const Gradients&) {
    (void)foreign.get();
    (void)columns.get();
    return Gradients{gradient(g, "cross_entropy_backward", softmax.get().shape, DType::bf16)};  // then autograd's cast
  });
  return loss;
}

/// calculate_log_probs_and_entropy up to 0.3.0: every softmax is of a copy of its own. 0.3.0 takes the entropy first.
Pair of_copies(Eager& g, const ActorLoss& o, const Tensor& logits) {
  const Dim rows = o.kind == ActorLossKind::slime_whole ? logits.shape[0] * B : logits.shape[0];
  std::vector<Tensor> parts;
  if (o.chunks == 0)
    parts.push_back(logits);
  else
    parts = split(g, logits, std::vector<Shape>(static_cast<std::size_t>(o.chunks), Shape{M, logits.shape.back()}));
  const auto all = [&](bool entropy) {
    std::vector<Tensor> out;
    for (const Tensor& part : parts) {
      const Tensor copied = copy(g, part, part.shape, "logits.clone");
      out.push_back(entropy ? vocab_parallel_entropy(g, copied) : fused_cross_entropy(g, copied));
    }
    return out.size() == 1 ? out[0] : cat(g, std::move(out), {rows, 1}, entropy ? "entropy" : "token_log_probs");
  };
  Pair out;
  if (o.entropy && o.kind == ActorLossKind::slime_whole) out.entropy = all(true);
  out.log_probs = all(false);
  if (o.entropy && o.kind == ActorLossKind::slime_samples) out.entropy = all(true);
  return out;
}

Tensor mean_of_samples(Eager& g, std::vector<Tensor> per_sample, const Dim& rows, const char* name) {
  if (per_sample.size() == 1) return mean_of_tokens(g, per_sample[0]);
  return mean_of_tokens(g, cat(g, std::move(per_sample), {rows, 1}, name));
}

/// get_responses: a view, or with context parallelism the two parts of a sample that this rank has, put together.
Tensor rows_of_sample(Eager& g, const ActorLoss& o, const Tensor& logits) {
  const Shape part{K, logits.shape.back()};
  if (!o.context) return slice(g, logits, part);
  std::vector<Tensor> parts;
  for (int i = 0; i < 2; ++i) {
    const Tensor all = slice(g, logits, part);
    parts.push_back(slice(g, all, part));  // without the prompt
  }
  return cat(g, std::move(parts), {Dim(2) * K, logits.shape.back()}, "logits.of_sample");
}

/// One sample's rows, all at once or in chunks.
Pair of_slices(Eager& g, const ActorLoss& o, const Tensor& rows) {
  if (o.chunks == 0) return slime_chunk(g, o, rows);
  std::vector<Tensor> log_probs, entropies;
  for (const Tensor& part : split(g, rows, std::vector<Shape>(static_cast<std::size_t>(o.chunks), Shape{M, rows.shape.back()}))) {
    const Pair one = slime_chunk(g, o, part);
    log_probs.push_back(one.log_probs);
    if (o.entropy) entropies.push_back(one.entropy);
  }
  Pair out;
  out.log_probs = cat(g, std::move(log_probs), {rows.shape[0], 1}, "token_log_probs");
  if (o.entropy) out.entropy = cat(g, std::move(entropies), {rows.shape[0], 1}, "entropy");
  return out;
}

/// The logarithm of the sum of exponentials: of two tensors of the logits' size one is kept, the other is a name of `names`.
Tensor log_sum_of(Eager& g, const Tensor& logits, std::vector<Tensor>& names) {
  names.push_back(per_row(g, logits, DType::fp32, "logits.max"));
  Tensor shifted = g.make("top.shifted", logits.shape, DType::fp32, kLogits);
  g.record(shifted, "SubBackward0", {&logits}, [](const Gradients& in) { return Gradients{in[0]}; });
  Tensor total = per_row(g, logits, DType::fp32, "top.sum"), out = per_row(g, logits, DType::fp32, "top.log_sum");
  const Tensor exponentials = g.make("top.exponentials", logits.shape, DType::fp32, kLogits);
  if (g.will_record({&shifted})) {
    const Saved kept = g.save(exponentials), sum = g.save(total);
    g.record(out, "ExpBackward0", {&shifted}, [&g, kept, sum](const Gradients&) {
      (void)sum.get();
      return Gradients{gradient(g, "top.exponentials_backward", kept.get().shape, DType::fp32)};
    });
  }
  names.push_back(std::move(shifted));
  names.push_back(std::move(total));
  names.push_back(out);
  return out;
}

/// Log-probs of k tokens of every row: the gather keeps the logits, which nothing else does.
Tensor log_probs_of_top(Eager& g, const Tensor& logits, std::int64_t k) {
  const Shape top = with_last(logits.shape, Dim(k));
  std::vector<Tensor> names;
  const Tensor log_sum = log_sum_of(g, logits, names);
  const auto made = [&](const char* name, DType dtype) { return g.make(name, top, dtype); };
  const Tensor invalid = made("top.invalid", DType::boolean), safe = made("top.ids", DType::int64),
               own = made("top.own", DType::boolean), columns = made("top.columns", DType::int64);
  Tensor chosen = made("top.logits", DType::fp32);
  if (g.will_record({&logits})) {
    const Saved whole = g.save(logits), where = g.save(columns);
    g.record(chosen, "GatherBackward0", {&logits}, [&g, whole, where](const Gradients&) {
      (void)where.get();
      return Gradients{gradient(g, "top.gather_backward", whole.get().shape, DType::fp32)};
    });
  }
  const auto filled = [&g, &top](const Tensor& x, const Tensor& mask, const char* name) {
    Tensor out = g.make(name, top, DType::fp32);
    if (!g.will_record({&x})) return out;
    const Saved kept = g.save(mask);
    g.record(out, "MaskedFillBackward0", {&x}, [&g, kept](const Gradients&) {
      return Gradients{gradient(g, "top.masked_backward", kept.get().shape, DType::fp32)};
    });
    return out;
  };
  Tensor masked = filled(chosen, made("top.foreign", DType::boolean), "top.masked");
  chosen.reset();
  Tensor shifted = made("top.log_probs", DType::fp32);
  g.record(shifted, "SubBackward0", {&masked, &log_sum}, [&g, row = log_sum.shape](const Gradients& in) {
    Tensor negative = gradient(g, "top.negative", in[0].shape, DType::fp32);
    return Gradients{in[0], gradient(g, "top.log_sum_backward", row, DType::fp32)};
  });
  return filled(shifted, invalid, "top.student");
}

/// The reverse divergence with a tail. The others keep one number less for each of the k tokens, or up to five more.
Tensor divergence_of_top(Eager& g, const Tensor& student, std::int64_t k) {
  const Shape all = with_last(student.shape, Dim(k + 1));
  Tensor out = per_row(g, student, DType::fp32, "top.divergence");
  const Tensor teacher = g.make("top.teacher_with_tail", all, DType::fp32);
  const Tensor with_tail = g.make("top.student_with_tail", all, DType::fp32);
  const Tensor probabilities = g.make("top.probabilities", all, DType::fp32);
  const Tensor differences = g.make("top.differences", all, DType::fp32);
  if (!g.will_record({&student})) return out;
  const Saved given = g.save(student), weights = g.save(probabilities), ratios = g.save(differences);
  g.record(out, "OpdDivergenceBackward", {&student}, [&g, given, weights, ratios](const Gradients&) {
    (void)given.get();
    (void)weights.get();
    Tensor of_ratios = gradient(g, "top.differences_backward", ratios.get().shape, DType::fp32);
    return Gradients{gradient(g, "top.student_backward", given.get().shape, DType::fp32)};
  });
  return out;
}

/// slime up to 0.3.0: the entropy is a part of the graph, whatever its coefficient. Relax divides every sample's rows by the
/// temperature when their turn comes; its entropy is as in slime_chunk.
Tensor sampled_loss(Eager& g, const ActorLoss& o, const Tensor& given) {
  const bool sliced = o.kind == ActorLossKind::slime_sliced;
  const Tensor logits = o.temperature && !sliced ? scale(g, given, "logits.divided", kLogits) : given;
  const Dim rows = logits.shape[0] * B;
  std::vector<Tensor> log_probs, entropies, top;
  Tensor rows_of_one;  // the loop's name: that of the sample before lasts until the next one's are there
  for (int i = 0; i < o.samples; ++i) {
    Tensor next = o.kind == ActorLossKind::slime_whole ? logits : rows_of_sample(g, o, logits);
    if (o.temperature && sliced) next = scale(g, next, "logits.divided", kLogits);
    rows_of_one = std::move(next);
    const Pair of_sample = sliced ? of_slices(g, o, rows_of_one) : of_copies(g, o, rows_of_one);
    log_probs.push_back(of_sample.log_probs);
    if (o.entropy) entropies.push_back(of_sample.entropy);
    if (o.topk > 0) top.push_back(log_probs_of_top(g, rows_of_one, o.topk));
  }
  rows_of_one.reset();
  Tensor loss = mean_of_samples(g, std::move(log_probs), rows, "token_log_probs");
  if (o.entropy) {
    const Tensor entropy = mean_of_samples(g, std::move(entropies), rows, "entropy");
    if (!sliced) loss = sum_of(g, loss, entropy);
  }
  if (top.empty() || o.topk_alone) return loss;
  std::vector<Tensor> divergences;
  divergences.reserve(top.size());
  for (const Tensor& of_sample : top) divergences.push_back(divergence_of_top(g, of_sample, o.topk));
  return sum_of(g, loss, mean_of_samples(g, std::move(divergences), rows, "top.divergence"));
}

/// sft_loss_function_chunked: rows of the output layer and their loss after another; all softmaxes stay. The next rows' logits
/// are there before the name of the last ones' goes.
Tensor loss_of_states(Eager& g, const ActorLoss& o, const Tensor& hidden, const std::function<Tensor(const Tensor&)>& head) {
  const Dim rows = hidden.shape[0] * B;
  std::vector<Tensor> log_probs;
  Tensor rows_of_one, logits;
  for (int i = 0; i < o.samples; ++i) {
    Tensor next = rows_of_sample(g, o, hidden);
    rows_of_one = std::move(next);
    std::vector<Tensor> parts;
    for (int n = 0; n < o.head_chunks; ++n) {
      const Tensor narrow = to(g, slice(g, rows_of_one, {M, hidden.shape.back()}), DType::bf16, "hidden.of_rows");
      Tensor made = head(narrow);
      logits = std::move(made);
      Tensor wide = to(g, logits, DType::fp32, "logits.of_rows");
      logits = std::move(wide);
      if (o.temperature) {
        Tensor divided = scale(g, logits, "logits.divided", kLogits);
        logits = std::move(divided);
      }
      parts.push_back(o.kind == ActorLossKind::slime_sliced ? slime_chunk(g, o, logits).log_probs
                                                            : of_copies(g, o, logits).log_probs);
    }
    log_probs.push_back(cat(g, std::move(parts), {rows_of_one.shape[0], 1}, "token_log_probs"));
  }
  return mean_of_samples(g, std::move(log_probs), rows, "token_log_probs");
}

/// Whoever calls holds the logits as they were until the loss is there.
Tensor slime_loss(Eager& g, const ActorLoss& o, const Tensor& given, const std::function<void(int)>& scope) {
  const Tensor logits = o.temperature ? scale(g, given, "logits.divided", kLogits) : given;
  const Tensor targets = g.make("targets", {logits.shape[0] * B}, DType::int64);  // _build_shifted_tokens
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

Tensor actor_loss_of_states(Eager& g, const ActorLoss& o, const Tensor& hidden,
                            const std::function<Tensor(const Tensor&)>& head) {
  const auto run = [&g, o, head](const Tensor& x) { return loss_of_states(g, o, x, head); };
  return o.checkpoint ? g.checkpoint_reentrant(hidden, run) : run(hidden);
}

Tensor actor_loss(Eager& g, const ActorLoss& o, Tensor logits, const std::function<void(int)>& scope) {
  if (o.kind == ActorLossKind::verl) return verl_loss(g, o, std::move(logits));
  const auto run = [&g, o, scope](const Tensor& x) {
    return o.kind == ActorLossKind::slime ? slime_loss(g, o, x, scope) : sampled_loss(g, o, x);
  };
  if (!o.checkpoint) return run(logits);
  // slime/backends/megatron_utils/loss.py: loss_function; use_reentrant=False from 0.3.0 on, nothing before it
  if (o.kind == ActorLossKind::slime || o.kind == ActorLossKind::slime_whole) return g.checkpoint(logits, run);
  return g.checkpoint_reentrant(logits, run);  // run again when this has returned
}

}  // namespace oomplan
