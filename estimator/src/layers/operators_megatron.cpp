#include "layers/operators_megatron.hpp"

#include <vector>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// What a call leaves until the next one: x.grad and the output.
struct LastCall {
  std::shared_ptr<Tensor> gradient = std::make_shared<Tensor>(), output = std::make_shared<Tensor>();
  void drop() const {
    gradient->reset();
    output->reset();
  }
};

Tensor eager_gate(Eager& g, const Tensor& y, const Shape& half) {
  const std::vector<Tensor> parts = split(g, y, {half, half});
  Tensor gated = activation(g, parts[0], "activation");
  return mul(g, std::move(gated), parts[1], "output");
}

/// One kernel: Liger's takes the output's gradient as a tensor of its own and may write into what it saved
/// (src/liger_kernel/ops/swiglu.py LigerFusedGateUpSiLUMulFunction, 0.8.1); Megatron's is TorchScript that reads it as it is
/// (megatron/core/fusions/fused_bias_swiglu.py).
Tensor fused_gate(Eager& g, const Tensor& y, const Shape& half, bool copies, bool in_place) {
  Tensor out = g.make("output", half, y.dtype);
  if (!g.will_record({&y})) return out;
  Saved saved = g.save(y);
  g.record(out, "FusedGateBackward", {&y}, [&g, saved, half, copies, in_place](const Gradients&) {
    const Tensor& self = saved.get();
    Tensor given = copies ? gradient(g, "output.gradient", half, self.dtype) : Tensor();
    return Gradients{in_place ? self.alias(self.shape) : gradient(g, "input.gradient", self.shape, self.dtype)};
  });
  return out;
}

/// Exponentials in fp32 are kept and become the gradient, which is cast to the format of the logits (Liger-Kernel
/// src/liger_kernel/ops/vocab_parallel_cross_entropy.py 0.8.1: its kernel writes the cast one; Megatron-Core
/// megatron/core/tensor_parallel/cross_entropy.py: the engine casts).
Tensor vocab_parallel_loss(Eager& g, const Tensor& logits, const Tensor& target, bool liger) {
  const Shape rows{logits.shape[0]};
  Tensor exponentials = g.make("exp_logits", logits.shape, DType::fp32, Category::logits);
  Tensor sums = g.make("sum_exp", rows, DType::fp32);
  Tensor masked = liger ? Tensor() : g.make("masked_target", rows, DType::int64);
  Tensor mask = liger ? Tensor() : g.make("target_mask", rows, DType::boolean);
  Tensor losses = g.make("losses", rows, DType::fp32);
  if (!g.will_record({&logits})) return losses;
  std::vector<Saved> saved{g.save(exponentials), g.save(liger ? sums : masked), g.save(liger ? target : mask)};
  exponentials.reset();
  g.record(losses, "VocabParallelCrossEntropyBackward", {&logits},
           [&g, saved, liger, rows, dtype = logits.dtype](const Gradients&) {
             for (const Saved& s : saved) (void)s.get();
             const Tensor& softmax = saved[0].get();
             if (!liger) return Gradients{softmax.alias(softmax.shape)};
             Tensor given = gradient(g, "losses.gradient", rows, DType::fp32);
             return Gradients{g.make("logits.gradient", softmax.shape, dtype, Category::logits)};
           });
  return losses;
}

}  // namespace

OperatorSetup::Forward gated_activation_operator(const OperatorSetup& s) {
  const Shape half{s.size("tokens"), s.size("width")};
  const LastCall last;
  const Tensor y = s.input("gate_and_up", {s.size("tokens"), 2 * s.size("width")}, s.call.dtype, last.gradient);
  const bool in_place = s.is("liger_in_place"), liger = in_place || s.is("liger"), eager = s.is("torch");
  return [&g = s.g, y, half, last, in_place, liger, eager] {
    last.drop();
    *last.output = eager ? eager_gate(g, y, half) : fused_gate(g, y, half, liger, in_place);
    return sum(g, *last.output, {}, "loss");
  };
}

OperatorSetup::Forward vocab_parallel_loss_operator(const OperatorSetup& s) {
  const LastCall last;
  const Tensor logits = s.input("logits", {s.size("tokens"), s.size("vocab")}, s.call.dtype, last.gradient);
  const Tensor target = s.g.make("target", {s.size("tokens")}, DType::int64, Category::inputs);
  const bool liger = s.is("liger");
  return [&g = s.g, logits, target, last, liger] {
    last.drop();
    *last.output = vocab_parallel_loss(g, logits, target, liger);
    return sum(g, *last.output, {}, "loss");
  };
}

}  // namespace oomplan
