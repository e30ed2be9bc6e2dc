// torchtitan's cross_entropy_loss under torch.compile (torchtitan/components/loss.py from April 2025 on; until then the loss was
// not compiled). inductor's program of PyTorch 2.13: no logits in fp32 and no log-probs are written down, two numbers a row are.
#include "layers/compiled_layer.hpp"

#include <memory>

namespace oomplan {

Tensor compiled_cross_entropy(Eager& g, Tensor logits, const Tensor& labels) {
  const Shape rows{axis::TK, Dim(1)};
  Tensor largest = g.make("loss.row_max", rows, DType::fp32), sum = g.make("loss.row_log_sum", rows, DType::fp32);
  Tensor loss = g.make("loss", {}, DType::fp32);
  if (!g.will_record({&logits})) return loss;
  struct Kept {
    Saved logits, largest, sum, labels;
  };
  auto kept = std::make_shared<Kept>(Kept{g.save(logits), g.save(largest), g.save(sum), g.save(labels)});
  g.record(loss, "CompiledFunctionBackward", {&logits}, [&g, kept](Gradients) {
    const Tensor& given = kept->logits.get();
    return Gradients{g.make("logits.gradient", given.shape, given.dtype, Category::logits)};
  });
  return loss;
}

}  // namespace oomplan
