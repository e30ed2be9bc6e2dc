// What every operator that is played by itself starts from: the call, its sizes, and inputs and weights that stay.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "layers/kernels.hpp"
#include "layers/operators.hpp"

namespace oomplan {

struct OperatorSetup {
  /// Makes what the operator is called with, and gives the call.
  using Forward = std::function<Tensor()>;

  Eager& g;
  const OperatorCall& call;
  std::int64_t multiprocessors;
  LigerCode code;

  std::int64_t size(std::string_view name) const { return call.sizes.find(name)->second; }
  /// Of Liger-Kernel.
  std::string_view release() const {
    const auto space = call.by.find(' ');
    return space == std::string::npos ? kNewestLiger : std::string_view(call.by).substr(space + 1);
  }
  bool is(std::string_view by) const { return without_release(call.by) == by; }
  KernelOptions kernels() const {
    const bool on = is("liger");
    KernelOptions k;
    k.liger = {on, on, on, code, multiprocessors};
    return k;
  }
  /// A tensor that wants a gradient, which stays in `kept`: later ones are added into it. `copies`: the gradient comes as a
  /// tensor that another input gets too, so that accumulate_grad.hpp makes one of its own; views of what others hold it takes.
  Tensor input(const std::string& name, Shape shape, DType dtype, std::shared_ptr<Tensor> kept = std::make_shared<Tensor>(),
               bool copies = false) const {
    Tensor x = g.make(name, std::move(shape), dtype, Category::inputs);
    auto collector = std::make_shared<Node>();
    collector->name = "AccumulateGrad";
    collector->sequence = kAccumulates;
    collector->apply = [kept, copies, eager = &g, name](Gradients given) {
      if (!*kept)
        *kept = copies ? eager->make(name + ".grad", given[0].shape, given[0].dtype, Category::gradients) : std::move(given[0]);
      return Gradients{};
    };
    x.grad_fn = std::move(collector);
    return x;
  }
  /// torch.autograd.backward((a, b), (gradient of the call, gradient_b)): what backward begins with.
  Tensor both(const Tensor& a, const Tensor& b, const Tensor& gradient_b) const {
    Tensor root = a.alias(a.shape);
    g.record(root, "GraphRoot", {&a, &b}, [gradient_b](const Gradients& in) { return Gradients{in[0], gradient_b}; });
    return root;
  }
  int weight(const std::string& name, Shape shape) const { return g.parameter(name, std::move(shape), call.weights); }
};

}  // namespace oomplan
