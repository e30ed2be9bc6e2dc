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
    g.record(out, "CopyBackwards", {&logits}, [&g](Gradients in) {
      return Gradients{g.make("logits.unpadded_backward", in[0].shape, DType::fp32, Category::logits)};
    });
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

/// _InplaceVocabParallelLogProbsEntropy (areal/utils/functional/vocab_parallel.py, development after 2.0.0): fp32 logits become
/// the softmax, and that their own gradient, chunk by chunk inside of one node.
Tensor overwritten(Eager& g, const ChunkOptions& o, const Tensor& logits) {
  const Dim tokens = o.te.whole() * B;
  const Tensor labels = g.make("labels.rolled", {tokens}, DType::int64);
  Tensor targets = g.make("loss.local_targets", {tokens}, DType::int64);
  Tensor mask = g.make("loss.foreign", {tokens}, DType::boolean);
  Tensor out = g.make("token_log_probs", {tokens}, DType::fp32);
  const Tensor entropy = g.make("token_entropy", {tokens}, DType::fp32);
  const Saved softmax = g.save(logits), kept = g.save(targets);
  g.record(out, "InplaceVocabParallelLogProbsEntropy", {&logits}, [softmax, kept](const Gradients&) {
    (void)kept.get();
    return Gradients{softmax.get()};
  });
  return out;
}

/// _ChunkedVocabParallelLMHead (areal/models/mcore/vocab_parallel_head.py, development after 2.0.0): a few rows of the output
/// layer and its loss after another, and the same again in backward. The next rows' logits are there before the name of the last
/// ones' goes.
Tensor head_in_chunks(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden, const SharedWeight& shared) {
  const TeOptions& te = o.te;
  const Dim tokens = te.whole() * B, columns(o.padded_vocab / te.tensor), width(a.hidden);
  const Shape rows{Dim(o.areal.head_chunk), columns};
  const auto logits = [&g, rows] {
    const Tensor last = g.make("logits.of_rows", rows, DType::fp32, Category::logits);
    const Tensor next = g.make("logits.of_next_rows", rows, DType::fp32, Category::logits);
  };
  const Tensor labels = g.make("labels.rolled", {tokens}, DType::int64),
               targets = g.make("loss.local_targets", {tokens}, DType::int64);
  Tensor out = g.make("token_log_probs", {tokens}, DType::fp32);
  const Tensor figures = g.make("token_figures", {tokens, 5}, DType::fp32);  // entropy, and four of the logits
  const Tensor statistics = g.make("loss.rows", {tokens, 2}, DType::fp32);
  {  // sums of 1024 columns of either factor, and a few numbers a row
    const Dim of_columns(ceil_div(columns.coefficient, 1024));
    const Tensor sums = g.make("loss.partial_sums", {2, rows[0], of_columns}, DType::fp32);
    const Tensor reduced = g.make("loss.reduced", {rows[0], 5}, DType::fp32);
    const Tensor numbers = g.make("loss.row_numbers", {rows[0]}, DType::int64);
    logits();
  }
  std::vector<const Tensor*> inputs{&hidden};
  const Tensor own = shared.weight || te.fused_gradients || o.adapters ? Tensor() : te_weight(g);
  if (shared.weight) inputs.push_back(&shared.weight);
  if (own) inputs.push_back(&own);
  const Tensor placeholder = shared.weight && te.fused_gradients ? shared.placeholder : Tensor();
  const bool makes_gradient = !te.fused_gradients && !o.adapters;
  const Saved input = g.save(hidden), kept = g.save(targets), kept_rows = g.save(statistics);
  const Shape whole{te.whole(), B, width}, matrix{columns, width};
  const bool scatters = te.sequence_parallel && te.tensor > 1;
  g.record(out, "ChunkedVocabParallelLMHead", inputs,
           [&g, input, kept, kept_rows, logits, placeholder, makes_gradient, whole, matrix, scatters](Gradients) {
             (void)kept.get();
             (void)kept_rows.get();
             Tensor product = gradient(g, "output_layer_backward", whole, DType::bf16);
             Tensor weight = makes_gradient ? gradient(g, "output_layer.weight_gradient", matrix, DType::bf16) : placeholder;
             logits();
             Tensor part = scatters ? gradient(g, "output_layer_backward.scattered", input.get().shape, DType::bf16) : Tensor();
             Gradients grads;
             grads.push_back(scatters ? std::move(part) : std::move(product));
             grads.push_back(std::move(weight));
             return grads;
           });
  return out;
}

/// postprocess_packed_seqs_context_parallel (areal/engine/megatron_utils/packed_context_parallel.py, 2.0.0): all ranks' logits,
/// put together sequence by sequence. The next one's pieces are there before the name of the last one's goes.
Tensor gathered_over_context(Eager& g, const ChunkOptions& o, const Tensor& logits) {
  const Dim ranks(o.te.context), columns = logits.shape.back();
  Tensor out = g.make("logits.gathered", {ranks * o.te.whole(), B, columns}, DType::fp32, Category::logits);
  Tensor own = g.make("logits.of_this_rank", logits.shape, DType::fp32, Category::logits);
  const Tensor others =
      g.make("logits.of_other_ranks", {Dim(o.te.context - 1) * o.te.whole(), B, columns}, DType::fp32, Category::logits);
  own.reset();  // its place is taken by the logits themselves
  if (o.areal.gathered < 3) {
    const Tensor pieces = g.make("logits.of_sequences", out.shape, DType::fp32, Category::logits);
    return out;
  }
  const Shape sequence{ranks * Dim(1, 0, 0, 1), B, columns};
  const Tensor last = g.make("logits.of_a_sequence", sequence, DType::fp32, Category::logits);
  const Tensor next = g.make("logits.of_the_next_sequence", sequence, DType::fp32, Category::logits);
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

/// ValueHead (areal/models/mcore/registry.py), or LinearForLastLayer of several columns (relax/utils/training/ppo_utils.py): a
/// product of this rank's tokens, which are gathered in fp32.
Tensor values(Eager& g, const ChunkOptions& o, const Tensor& hidden) {
  const Dim columns(o.areal.labels);
  Tensor narrow = g.make("values", {S, B, columns}, DType::bf16);
  const bool recorded = g.will_record({&hidden});
  Saved saved = recorded ? g.save(hidden) : Saved();
  g.record(narrow, "MmBackward0", {&hidden},
           [&g, saved](const Gradients&) { return Gradients{gradient(g, "values_backward", saved.get().shape, DType::bf16)}; });
  Tensor wide = to(g, std::move(narrow), DType::fp32, "values.fp32");
  if (!o.te.sequence_parallel || o.te.tensor == 1) return wide;
  Tensor gathered = g.make("values.gathered", {o.te.whole(), B, columns}, DType::fp32);
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
  if (o.areal.head_chunk > 0) return mean_of(g, head_in_chunks(g, a, o, hidden, weight));
  // Float16Module hands the last stage's output on in fp32 (megatron/core/transformer/module.py: float16_to_fp32)
  Tensor logits =
      to(g, megatron_output_layer(g, a, o, hidden, weight, o.areal.fp32 ? DType::fp32 : DType::bf16), DType::fp32, "logits.fp32");
  if (o.areal.gathered > 0 && o.forward_only) {
    logits = gathered_over_context(g, o, logits);
    logits = unpadded(g, logits, 1);
  }
  if (o.areal.parts > 0) {
    Tensor next = unpadded(g, logits, o.areal.parts);
    logits = std::move(next);
  }
  if (o.areal.in_place && !o.forward_only) return mean_of(g, overwritten(g, o, logits));
  return mean_of(g, o.areal.chunks > 0 ? log_probs(g, o, logits, scope) : whole_log_probs(g, o, logits));
}

}  // namespace oomplan
