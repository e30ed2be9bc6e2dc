// What AReaL's Megatron engine does behind the model: areal/engine/megatron_engine.py (forward_backward_batch,
// _compute_logprobs_and_loss), areal/utils/data.py (unpad_logits) and areal/utils/functional/vocab_parallel.py, 0.5.0 to 2.0.0.
// Before: areal/utils/functional.py (gather_logprobs_entropy, gather_logprobs) of 0.4.0 and 0.4.1.
//
// Legend: K tokens of one sequence, M rows of a chunk (logprobs_chunk_size).
#include "layers/heads_parallel.hpp"
#include "layers/megatron.hpp"
#include "layers/megatron_actor_losses.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::K, axis::M, axis::S;

/// unpad_logits: sequences are copied one after another into a new tensor. The copies are in place, so autograd rebuilds the
/// whole gradient for each of them; three show the highest level that any number of them reaches. A slice that is everything is
/// no view (torch/csrc/autograd/python_variable_indexing.cpp), so one sequence is copied as a whole.
Tensor unpadded(Eager& g, const Tensor& logits, std::int64_t parts) {
  Tensor out = g.make("logits.unpadded", logits.shape, DType::fp32, Category::logits);
  if (parts == 1) {
    g.record(out, "CopyBackwards", {&logits}, [](Gradients in) { return in; });
    return out;
  }
  const Shape part{K, B, logits.shape.back()};
  for (std::int64_t i = 0; i < parts; ++i) {
    const Tensor sequence = slice(g, logits, part);
    Tensor next = copy_into(g, out, sequence, part);
    out = std::move(next);
  }
  return out;
}

/// One chunk that torch.compile made of fp32 logits: they are kept as they are, two fp32 numbers a row beside them. Backward
/// makes one tensor of the chunk's size beside the gradient (Inductor's program, PyTorch 2.13).
Tensor compiled_chunk(Eager& g, const Tensor& part) {
  const bool recorded = g.will_record({&part});
  Saved saved = recorded ? g.save(part) : Saved();
  Tensor rows = g.make("chunk.rows", {M, 2}, DType::fp32);
  Tensor out = g.make("chunk.log_probs_and_entropy", {M, 2}, DType::fp32);
  if (!recorded) return out;
  Saved saved_rows = g.save(rows);
  g.record(out, "CompiledFunctionBackward", {&part}, [&g, saved, saved_rows](const Gradients&) {
    (void)saved_rows.get();
    const Shape shape = saved.get().shape;
    const Tensor between = g.make("chunk.backward_fp32", shape, DType::fp32, Category::logits);
    return Gradients{g.make("chunk.gradient", shape, DType::fp32, Category::logits)};
  });
  return out;
}

Tensor mean_of(Eager& g, const Tensor& per_token) {
  Tensor loss = g.make("loss", {}, DType::fp32);
  const Shape whole = per_token.shape;
  g.record(loss, "MeanBackward0", {&per_token},
           [&g, whole](const Gradients&) { return Gradients{gradient(g, "loss_backward", whole, DType::fp32)}; });
  return loss;
}

/// gather_logprobs_entropy, or gather_logprobs under no_grad.
Tensor log_probs(Eager& g, const ChunkOptions& o, const Tensor& logits, const std::function<void(int)>& scope) {
  const Dim columns = logits.shape.back(), tokens = o.te.whole() * B;
  const Tensor labels = g.make("labels.rolled", {tokens}, DType::int64);
  std::vector<Tensor> parts;
  for (int i = 0; i < o.areal.chunks; ++i) {
    scope(i);
    Tensor part = slice(g, logits, {M, columns});
    parts.push_back(o.te.tensor > 1 ? areal_vocab_parallel_chunk(g, std::move(part)) : compiled_chunk(g, part));
  }
  scope(-1);
  return cat(g, std::move(parts), {tokens, o.te.tensor > 1 ? 1 : 2}, "token_log_probs");
}

/// All rows at once, of 0.4: logits divided by the temperature, their entropy, which is detached when the log-probs are there,
/// and Megatron's cross-entropy.
Tensor whole_log_probs(Eager& g, const ChunkOptions& o, const Tensor& logits) {
  const Tensor labels = g.make("labels.rolled", {o.te.whole() * B}, DType::int64);
  const Tensor divided = scale(g, logits, "logits.divided", Category::logits);
  const Tensor entropy = o.areal.entropy && g.grad_enabled ? vocab_parallel_entropy(g, divided) : Tensor();
  return neg(g, vocab_parallel_cross_entropy(g, divided), "token_log_probs");
}

/// ValueHead (areal/models/mcore/registry.py): a product of this rank's tokens, which are gathered in fp32.
Tensor values(Eager& g, const ChunkOptions& o, const Tensor& hidden) {
  Tensor narrow = g.make("values", {S, B, 1}, DType::bf16);
  const bool recorded = g.will_record({&hidden});
  Saved saved = recorded ? g.save(hidden) : Saved();
  g.record(narrow, "MmBackward0", {&hidden},
           [&g, saved](const Gradients&) { return Gradients{gradient(g, "values_backward", saved.get().shape, DType::bf16)}; });
  Tensor wide = to(g, std::move(narrow), DType::fp32, "values.fp32");
  if (!o.te.sequence_parallel || o.te.tensor == 1) return wide;
  Tensor gathered = g.make("values.gathered", {o.te.whole(), B, 1}, DType::fp32);
  const Shape local = wide.shape;
  g.record(gathered, "GatherFromSequenceParallelRegion", {&wide},
           [&g, local](const Gradients&) { return Gradients{gradient(g, "values_backward.scattered", local, DType::fp32)}; });
  return gathered;
}

}  // namespace

Tensor run_areal_megatron_head(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden,
                               const SharedWeight& weight, const std::function<void(int)>& scope) {
  if (o.areal.value) {
    const Tensor out = values(g, o, hidden);
    scope(-1);
    return mean_of(g, out);
  }
  // Float16Module hands the last stage's output on in fp32 (megatron/core/transformer/module.py: float16_to_fp32)
  Tensor logits = to(g, megatron_output_layer(g, a, o, hidden, weight), DType::fp32, "logits.fp32");
  if (o.areal.parts > 0) {
    Tensor next = unpadded(g, logits, o.areal.parts);
    logits = std::move(next);
  }
  return mean_of(g, o.areal.chunks > 0 ? log_probs(g, o, logits, scope) : whole_log_probs(g, o, logits));
}

}  // namespace oomplan
