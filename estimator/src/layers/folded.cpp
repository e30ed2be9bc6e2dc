#include "layers/folded.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

/// W + left @ right, without a tensor for the product: saves both factors.
Tensor baddbmm(Eager& g, const Tensor& w, const LowRankFactors& factors, const std::string& name) {
  const bool recorded = g.will_record({&factors.left, &factors.right});
  Saved right = recorded ? g.save(factors.right) : Saved();
  Saved left = recorded ? g.save(factors.left) : Saved();
  Tensor out = g.make(name, w.shape, w.dtype);
  if (!recorded) return out;
  g.record(out, "BaddbmmBackward0", {&factors.left, &factors.right}, [&g, left, right](Gradients in) {
    Gradients grads(2);
    grads[0] = g.make("baddbmm_backward", left.get().shape, in[0].dtype, Category::temporaries);
    grads[1] = g.make("baddbmm_backward", right.get().shape, in[0].dtype, Category::temporaries);
    return grads;
  });
  return out;
}

/// lora_B.weight @ lora_A.weight.
Tensor product(Eager& g, const Leaf& leaf, const std::string& name) {
  Tensor a = g.leaf(leaf.low_rank_in), b = g.leaf(leaf.low_rank_out);
  Tensor out = g.make(name, leaf.shape, a.dtype);
  const Shape a_shape = a.shape, b_shape = b.shape;
  g.record(out, "MmBackward0", {&a, &b}, [&g, a_shape, b_shape](Gradients in) {
    Gradients grads(2);
    grads[0] = g.make("mm_backward", a_shape, in[0].dtype, Category::gradients);
    grads[1] = g.make("mm_backward", b_shape, in[0].dtype, Category::gradients);
    return grads;
  });
  return out;
}

/// A name without the layer's prefix, which make() puts in front.
std::string own_name(const Eager& g, const Leaf& leaf) {
  return leaf.name.starts_with(g.prefix) ? leaf.name.substr(g.prefix.size()) : leaf.name;
}

}  // namespace

LowRankFactors low_rank_factors(Eager& g, int parameter) {
  const Leaf& leaf = g.leaves[static_cast<std::size_t>(parameter)];
  if (leaf.low_rank_in < 0) return {};
  const Dim experts = leaf.shape[0];
  Tensor a = g.leaf(leaf.low_rank_in), b = g.leaf(leaf.low_rank_out);
  const Dim rank = a.shape[0].coefficient / experts.coefficient;
  a.shape = {experts, rank, a.shape[1]};
  b.shape = {experts, b.shape[0], rank};
  LowRankFactors out;
  out.left = ops::to(g, std::move(b), leaf.dtype, own_name(g, leaf) + ".lora_B_cast");
  out.right = ops::to(g, std::move(a), leaf.dtype, own_name(g, leaf) + ".lora_A_cast");
  return out;
}

Tensor folded_stack(Eager& g, int parameter, const LowRankFactors& factors) {
  Tensor w = g.leaf(parameter);
  if (!factors.left) return w;
  return baddbmm(g, w, factors, own_name(g, g.leaves[static_cast<std::size_t>(parameter)]) + ".folded");
}

Tensor folded_matrix(Eager& g, int parameter) {
  const Leaf& leaf = g.leaves[static_cast<std::size_t>(parameter)];
  if (leaf.low_rank_in < 0) return g.leaf(parameter);
  const std::string name = own_name(g, leaf);
  Tensor cast;
  {
    Tensor bare = product(g, leaf, name + ".lora_product");
    Tensor scaled = ops::scale(g, std::move(bare), name + ".lora_scaled");
    cast = ops::to(g, std::move(scaled), leaf.dtype, name + ".lora_cast");
  }
  return ops::add(g, g.leaf(parameter), cast, name + ".folded");
}

}  // namespace oomplan
