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
  /// A tensor that wants a gradient, which stays: later ones are added into it.
  Tensor input(const std::string& name, Shape shape, DType dtype) const {
    Tensor x = g.make(name, std::move(shape), dtype, Category::inputs);
    auto kept = std::make_shared<Tensor>();
    auto collector = std::make_shared<Node>();
    collector->name = "AccumulateGrad";
    collector->sequence = kAccumulates;
    collector->apply = [kept](Gradients given) {
      if (!*kept) *kept = std::move(given[0]);
      return Gradients{};
    };
    x.grad_fn = std::move(collector);
    return x;
  }
  int weight(const std::string& name, Shape shape) const { return g.parameter(name, std::move(shape), call.weights); }
};

}  // namespace oomplan
