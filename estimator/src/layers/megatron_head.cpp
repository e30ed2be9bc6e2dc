// Output layer and cross-entropy of Megatron-core over a split vocabulary.
#include "layers/megatron.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// ColumnParallelLinear (megatron/core/tensor_parallel/layers.py): gathers into the buffer that all of them share.
Tensor output_layer(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden) {
  const TeOptions& te = o.te;
  const std::int64_t columns = o.padded_vocab / te.tensor;
  Tensor logits = g.make("logits", {te.whole(), B, Dim(columns)}, DType::bf16, Category::logits);
  Saved saved = g.save(hidden);
  const std::int64_t width = a.hidden;
  g.record(logits, "LinearWithGradAccumulation", {&hidden}, [&g, saved, te, columns, width](Gradients in) {
    (void)in;
    const Tensor& input = saved.get();
    Tensor whole = gradient(g, "output_layer_backward", {te.whole(), B, Dim(width)}, DType::bf16);
    Tensor scattered;
    if (te.sequence_parallel && te.tensor > 1)
      scattered = gradient(g, "output_layer_backward.scattered", input.shape, DType::bf16);
    const Tensor weight =
        te.fused_gradients ? Tensor() : gradient(g, "output_layer.weight_gradient", {Dim(columns), Dim(width)}, DType::bf16);
    return Gradients{scattered ? std::move(scattered) : std::move(whole)};
  });
  return logits;
}

/// What stays of the targets: a mask and their numbers in this rank's part.
struct Targets {
  Tensor mask, numbers;
};
Targets targets(Eager& g, const Shape& rows) {
  return {g.make("loss.target_mask", rows, DType::boolean), g.make("loss.target", rows, DType::int64)};
}

/// Megatron's own: fp32 logits in which everything else happens, up to their gradient. Unfused it leaves as fp32 and is cast by
/// autograd, fused it is cast inside; both are 16 bits beside 32.
Tensor own_loss(Eager& g, const Tensor& logits) {
  const Shape rows{logits.shape[0], B};
  Tensor wide = g.make("logits.fp32", logits.shape, DType::fp32, Category::logits);
  Tensor loss = g.make("loss", rows, DType::fp32);
  const Targets kept = targets(g, rows);
  Saved softmax = g.save(wide), mask = g.save(kept.mask), numbers = g.save(kept.numbers);
  g.record(loss, "VocabParallelCrossEntropy", {&logits}, [softmax, mask, numbers](Gradients) {
    (void)mask.get();
    (void)numbers.get();
    return Gradients{softmax.get()};
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

}  // namespace

Tensor run_megatron_head(Eager& g, const Architecture& a, const ChunkOptions& o, const Tensor& hidden) {
  Tensor logits = output_layer(g, a, o, hidden);
  return o.settings.loss == MegatronLoss::te ? te_loss(g, logits) : own_loss(g, logits);
}

}  // namespace oomplan
