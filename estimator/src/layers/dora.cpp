// huggingface/peft, src/peft/tuners/lora/dora.py and variants.py (DoraLinearVariant), 0.21.2.
#include "layers/dora.hpp"

#include <utility>

namespace oomplan::ops {
namespace {

/// One layer's leaves.
struct Decomposed {
  Eager& g;
  const Leaf& base;
  int bias;
  std::string name;

  Tensor low_rank(Tensor x, Dim rows, Shape out_shape) const {
    const Dim rank = g.leaves[static_cast<std::size_t>(base.low_rank_in)].shape[0];
    Shape low_shape = with_last(out_shape, rank);
    Tensor low = linear(g, std::move(x), base.low_rank_in, -1, rows, std::move(low_shape), name + ".lora_A");
    return linear(g, std::move(low), base.low_rank_out, -1, rows, std::move(out_shape), name + ".lora_B");
  }

  /// The product of the pair and what its graph keeps. Backward never asks for it: the graph goes with the product, and a
  /// checkpoint that runs again keeps nothing of it.
  struct Product {
    Tensor eye, low, matrix;
  };
  /// get_lora_weight: the product of the pair as what it makes of an identity matrix.
  Product product() const {
    const Leaf& first = g.leaves[static_cast<std::size_t>(base.low_rank_in)];
    const Dim out = base.shape[0], in = base.shape[1];
    const bool grad = std::exchange(g.grad_enabled, false);
    Product made;
    made.eye = g.make(name + ".dora_eye", {in, in}, first.dtype);
    made.low = linear(g, made.eye, base.low_rank_in, -1, in, {in, first.shape[0]}, name + ".dora_A");
    made.matrix = linear(g, made.low, base.low_rank_out, -1, in, {in, out}, name + ".dora_B");
    g.grad_enabled = grad;
    return made;
  }

  /// get_weight_norm of the base's weight and the detached product.
  Tensor norm(const Tensor& weight, const Tensor& product) const {
    const Tensor detached = product.alias(base.shape);
    Tensor scaled = scale(g, detached, name + ".dora_product_scaled");
    Tensor sum = add(g, weight, std::move(scaled), name + ".dora_weight");
    return g.make(name + ".dora_norm", {base.shape[0]}, sum.dtype);
  }

  /// DoraLinearLayer.forward; `base_result` is empty with dropout: it is computed again, from the dropped input.
  Tensor extra(const Tensor& x, Tensor base_result, Dim rows, const Shape& out_shape) const {
    const Product pair = product();
    const Tensor frozen = g.leaf(static_cast<int>(&base - g.leaves.data()));
    Tensor weight = to(g, frozen, x.dtype, name + ".dora_weight_cast");
    Tensor factor;
    {
      Tensor length = norm(weight, pair.matrix);
      factor = div(g, g.leaf(base.magnitude), std::move(length), name + ".dora_factor");
      factor.shape = {Dim(1), base.shape[0]};
    }
    Tensor result = low_rank(x, rows, out_shape);
    if (!base_result) {
      base_result = linear_by(g, x, weight, rows, out_shape, name + ".dora_base");
    } else if (bias >= 0) {
      Tensor unbiased = sub_vector(base_result);
      base_result = std::move(unbiased);
    }
    Tensor first;
    {
      Tensor less = add_scalar(g, factor, name + ".dora_factor_less_one");
      first = mul(g, std::move(less), base_result, name + ".dora_base_scaled");
    }
    Tensor second = mul(g, factor, result, name + ".dora_lora");
    second = scale(g, std::move(second), name + ".dora_lora_scaled");
    return add(g, std::move(first), std::move(second), name + ".dora_result");
  }

  /// base_result - bias: saves nothing, and the bias is frozen.
  Tensor sub_vector(const Tensor& x) const {
    Tensor out = g.make(name + ".dora_unbiased", x.shape, x.dtype);
    g.record(out, "SubBackward0", {&x}, [](Gradients in) { return Gradients{in[0]}; });
    return out;
  }
};

}  // namespace

Tensor with_dora(Eager& g, Tensor result, const Tensor& given, int weight, int bias, Dim rows, const std::string& name) {
  const Leaf& base = g.leaves[static_cast<std::size_t>(weight)];
  const Decomposed layer{g, base, bias, name};
  const DType back = result.dtype;
  const Tensor x = to(g, given, g.leaves[static_cast<std::size_t>(base.low_rank_in)].dtype, name + ".lora_input");
  Tensor more;
  {
    const Tensor dropped = g.low_rank_dropout ? dropout(g, x, name + ".lora_dropout") : x;
    more = layer.extra(dropped, g.low_rank_dropout ? Tensor() : result, rows, result.shape);
  }
  Tensor sum = add(g, result, std::move(more), name + ".lora_sum");
  result = std::move(sum);
  return to(g, result, back, name + ".adapted");
}

}  // namespace oomplan::ops
