// Output layer and cross-entropy of Megatron-core over a split vocabulary.
#include "layers/megatron.hpp"
#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// What backward multiplies with. A gradient in fp32 is cast for it, which takes no memory where it lies in the logits' own
/// storage: it is packed into the first half (areal/models/mcore/vocab_parallel_head.py: _pack_fp32_to_half_inplace).
Tensor narrowed(Eager& g, const Tensor& gradient_of_logits, int logits) {
  if (gradient_of_logits.dtype != DType::fp32 || gradient_of_logits.storage() == logits) return {};
  return gradient(g, "logits.gradient_in_16_bits", gradient_of_logits.shape, DType::bf16);
}

/// ColumnParallelLinear (megatron/core/tensor_parallel/layers.py): gathers into the buffer that all of them share.
Tensor output_layer(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden, const SharedWeight& shared,
                    DType format) {
  const TeOptions& te = o.te;
  const std::int64_t columns = o.padded_vocab / te.tensor;
  Tensor logits = g.make("logits", {te.whole(), B, Dim(columns)}, format, Category::logits);
  const int own_storage = logits.storage();
  Saved saved = g.save(hidden);
  const std::int64_t width = a.hidden;
  std::vector<const Tensor*> inputs{&hidden};
  const Tensor own = shared.weight || te.fused_gradients ? Tensor() : te_weight(g);
  if (shared.weight) inputs.push_back(&shared.weight);
  if (own) inputs.push_back(&own);
  const Tensor placeholder = shared.weight && te.fused_gradients ? shared.placeholder : Tensor();
  g.record(logits, "LinearWithGradAccumulation", inputs, [&g, saved, te, columns, width, placeholder, own_storage](Gradients in) {
    const Tensor narrow = narrowed(g, in[0], own_storage);
    const Tensor& input = saved.get();
    Tensor whole = gradient(g, "output_layer_backward", {te.whole(), B, Dim(width)}, DType::bf16);
    Tensor scattered;
    if (te.sequence_parallel && te.tensor > 1)
      scattered = gradient(g, "output_layer_backward.scattered", input.shape, DType::bf16);
    Tensor weight =
        te.fused_gradients ? placeholder : gradient(g, "output_layer.weight_gradient", {Dim(columns), Dim(width)}, DType::bf16);
    Gradients grads;
    grads.push_back(scattered ? std::move(scattered) : std::move(whole));
    grads.push_back(std::move(weight));
    return grads;
  });
  return logits;
}

/// Gemma4OutputLayer (models/gemma/modeling_gemma4.py): the logits are a name of its caller until they are capped.
Tensor capped(Eager& g, const Tensor& logits) {
  Tensor divided = scale(g, logits, "logits.divided", Category::logits);
  Tensor curved = tanh(g, std::move(divided), "logits.curved");
  return scale(g, std::move(curved), "logits.capped", Category::logits);
}

/// The same with its matrix frozen (linear_with_frozen_weight): the gathering is an operator of its own, and nothing is kept.
Tensor frozen_output_layer(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden, DType format) {
  const TeOptions& te = o.te;
  const std::int64_t columns = o.padded_vocab / te.tensor;
  const Shape whole{te.whole(), B, Dim(a.hidden)};
  const bool gathers = te.sequence_parallel && te.tensor > 1;
  const Tensor input = gathers ? moved_rows(g, hidden, whole, {}, DType::bf16, "output_layer.input_gathered") : hidden;
  Tensor logits = g.make("logits", {te.whole(), B, Dim(columns)}, format, Category::logits);
  g.record(logits, "LinearWithFrozenWeight", {&input}, [&g, whole, own_storage = logits.storage()](Gradients in) {
    const Tensor narrow = narrowed(g, in[0], own_storage);
    return Gradients{gradient(g, "output_layer_backward", whole, DType::bf16)};
  });
  return logits;
}

/// Megatron's own: fp32 logits in which everything else happens, up to their gradient. Unfused it leaves as fp32 and is cast by
/// autograd, fused it is cast inside; both are 16 bits beside 32. `compiled`: torch.compile makes a function of the gradient, in
/// which the subtraction at the targets is no longer in place: a second fp32 tensor beside the first and the result (Inductor's
/// code for fused_cross_entropy.calculate_gradients, PyTorch 2.13).
/// Numbers of every token are names of _VocabParallelCrossEntropy.forward until it returns: the largest logit, the target's, the
/// sum; unfused the last two by themselves, beside the rows' numbers while the targets' logits are picked.
Tensor own_loss(Eager& g, const Tensor& logits, bool fused, bool compiled) {
  const Shape rows{logits.shape[0], B};
  Tensor wide = g.make("logits.fp32", logits.shape, DType::fp32, Category::logits);
  const Tensor largest = g.make("loss.largest", rows, DType::fp32);
  const Tensor target_mask = g.make("loss.target_mask", rows, DType::boolean);
  const Tensor targets = g.make("loss.target", rows, DType::int64);
  Tensor order = compiled ? Tensor() : g.make("loss.row_numbers", rows, DType::int64);
  Tensor picked = g.make("loss.target_logits", rows, DType::fp32), sums = g.make("loss.sums", rows, DType::fp32);
  order.reset();
  if (fused && !compiled) {
    picked = g.make("loss.target_logits_and_sums", {logits.shape[0], B, Dim(2)}, DType::fp32);
    sums.reset();
  }
  const Tensor logarithms = compiled ? Tensor() : g.make("loss.logarithms", rows, DType::fp32);
  Tensor loss = g.make("loss", rows, DType::fp32);
  Saved softmax = g.save(wide), mask = g.save(target_mask), numbers = g.save(targets);
  g.record(loss, "VocabParallelCrossEntropy", {&logits}, [&g, softmax, mask, numbers, compiled](Gradients) {
    (void)mask.get();
    (void)numbers.get();
    if (!compiled) return Gradients{softmax.get()};
    const Tensor copied = gradient(g, "loss_backward.fp32", softmax.get().shape, DType::fp32);
    return Gradients{gradient(g, "loss_backward", softmax.get().shape, DType::bf16)};
  });
  return loss;
}

/// Transformer Engine's: the gradient is written into the logits in the forward pass.
Tensor te_loss(Eager& g, const Tensor& logits) {
  Tensor loss = g.make("loss", {logits.shape[0], B}, DType::fp32);
  Saved saved = g.save(logits);
  g.record(loss, "TECrossEntropy", {&logits}, [saved](Gradients) { return Gradients{saved.get()}; });
  return loss;
}

/// LanguageModule.compute_language_model_loss (megatron/core/models/common/language_module/language_module.py): labels are put
/// by tokens, the losses by sequences.
Tensor loss_of(Eager& g, const ChunkOptions& o, const Tensor& logits) {
  const Shape rows{logits.shape[0], B};
  const Tensor labels = o.te.several_sequences ? g.make("labels.by_token", rows, DType::int64) : Tensor();
  // beside an actor's loss the models' own configuration says it: GPTModelProvider fuses it (models/gpt_provider.py, 0.5.2)
  // unless Relax hands on --cross-entropy-loss-fusion (relax/backends/megatron/model_provider.py: bridge_keys)
  const bool provider = o.settings.maker == ModelMaker::megatron_bridge && !o.patched;
  const bool native = provider || o.settings.mtp_fused_loss;
  const MegatronLoss kind = !o.actor ? o.settings.loss : native ? MegatronLoss::native : MegatronLoss::unfused;
  const bool fused = kind == MegatronLoss::native;
  Tensor loss = kind == MegatronLoss::te ? te_loss(g, logits) : own_loss(g, logits, fused, fused && o.settings.jit_fuser);
  return o.te.several_sequences ? te_contiguous(g, loss, "loss.by_sequence") : loss;
}

}  // namespace

Tensor megatron_output_layer(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden,
                             const SharedWeight& weight, DType format) {
  if (o.adapters) return frozen_output_layer(g, a, o, hidden, format);
  const Tensor logits = output_layer(g, a, o, hidden, weight, format);
  return o.gemma && a.final_softcap ? capped(g, logits) : logits;
}

// Sequence-parallel rows are gathered by an operator of their own, not into the buffer that the output layer uses.
// CausalLMOutputForPPO names the rows of this rank until the stage's forward pass returns.
Tensor run_verl_fused_megatron_head(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden,
                                    const Tensor& labels, const SharedWeight& shared) {
  const TeOptions& te = o.te;
  const bool gathers = te.sequence_parallel && te.tensor > 1;
  const Tensor whole =
      gathers ? moved_rows(g, hidden, {te.whole(), B, Dim(a.hidden)}, {}, DType::bf16, "output_layer.input_gathered") : hidden;
  const Tensor weight = o.adapters ? g.scalar(DType::bf16) : shared.weight ? shared.weight : te_weight(g);
  return fused_actor_loss(g, *o.actor, whole, labels, weight, o.padded_vocab / te.tensor);
}

// The states are gathered by an operator of their own, whose gradient is a part of the whole one. Rows of the output layer are
// those of a layer that gathers nothing.
Tensor run_megatron_head_in_loss(Eager& g, const Architecture& a, const ChunkOptions& o, Tensor hidden,
                                 const SharedWeight& shared) {
  const TeOptions& te = o.te;
  const Dim columns(o.padded_vocab / te.tensor), width(a.hidden);
  Tensor states = hidden;
  if (te.sequence_parallel && te.tensor > 1) {
    states = g.make("output_layer.input_gathered", {te.whole(), B, width}, DType::bf16);
    g.record(states, "GatherFromSequenceParallelRegion", {&hidden},
             [shape = hidden.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  }
  hidden.reset();  // GPTModel.forward has returned
  const bool frozen = static_cast<bool>(o.adapters);
  const Tensor own = frozen ? Tensor() : shared.weight ? shared.weight : te_weight(g);
  const Shape matrix{columns, width};
  // Transformer Engine's one dummy of that shape: what several calls hand on is added into a tensor of its own
  const Tensor dummy =
      !frozen && te.fused_gradients ? g.make("placeholder_gradient", {Dim(0)}, DType::bf16).alias(matrix) : Tensor();
  const auto rows = [&g, columns, own, dummy, matrix, frozen](const Tensor& x) {
    Tensor logits = g.make("logits.of_rows_in_16_bits", {x.shape[0], columns}, DType::bf16, Category::logits);
    const Saved saved = frozen ? Saved() : g.save(x);
    std::vector<const Tensor*> inputs{&x};
    if (own) inputs.push_back(&own);
    g.record(logits, "LinearWithGradAccumulation", inputs, [&g, saved, dummy, matrix, shape = x.shape, frozen](Gradients) {
      if (!frozen) (void)saved.get();
      Gradients out{gradient(g, "output_layer_backward", shape, DType::bf16)};
      if (!frozen) out.push_back(dummy ? dummy : gradient(g, "output_layer.weight_gradient", matrix, DType::bf16));
      return out;
    });
    return logits;
  };
  const Tensor wide = to(g, std::move(states), DType::fp32, "hidden.fp32");
  return actor_loss_of_states(g, *o.actor, wide, rows);
}

Tensor run_megatron_head(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden,
                         const SharedWeight& weight) {
  const Tensor logits = megatron_output_layer(g, a, o, hidden, weight);
  return loss_of(g, o, logits);
}

namespace {

/// `logits`: of the last block.
Tensor carry_losses(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& all, const SharedWeight& weight,
                    Tensor& logits) {
  const Shape one{axis::S, B, Dim(a.hidden)};
  std::vector<Tensor> hidden = split(g, all, std::vector<Shape>(static_cast<std::size_t>(o.mtp) + 1, one));
  for (std::size_t block = 1; block < hidden.size(); ++block) {
    // slime's patch takes the matrix out of the blocks' gradients
    Tensor next = o.patched && predicts_apart(o) ? frozen_output_layer(g, a, o, hidden[block], DType::bf16)
                                                 : output_layer(g, a, o, hidden[block], weight, DType::bf16);
    logits = std::move(next);
    const Tensor loss = loss_of(g, o, logits);
    Tensor carried = hidden[0].alias(one);
    g.record(carried, "MTPLossAutoScaler", {&hidden[0], &loss},
             [&g](Gradients in) { return Gradients{in[0], g.scalar(DType::fp32)}; });
    hidden[0] = std::move(carried);
  }
  return std::move(hidden[0]);
}

}  // namespace

Tensor run_megatron_mtp_losses(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& all,
                               const SharedWeight& weight) {
  Tensor logits;
  return carry_losses(g, a, o, all, weight, logits);
}

Tensor run_megatron_heads(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& all, const SharedWeight& weight) {
  Tensor logits;  // a name until the function returns
  const Tensor hidden = carry_losses(g, a, o, all, weight, logits);
  const Tensor own = output_layer(g, a, o, hidden, weight, DType::bf16);
  return loss_of(g, o, own);
}

}  // namespace oomplan
