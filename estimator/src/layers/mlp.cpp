#include "layers/mlp.hpp"

#include "layers/liger.hpp"
#include "layers/ops.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/tiled_mlp.hpp"
#include "layers/xielu.hpp"

namespace oomplan {
namespace {

using namespace ops;
/// x's leading axes multiplied.
Dim rows_of(Shape out) {
  out.pop_back();
  return elements(out);
}

Shape rows_by(Shape rows, Dim width) {
  rows.push_back(width);
  return rows;
}

/// What a gated block multiplies down, and a half of the fused product that a name of the block's holds until it returns.
struct Gated {
  Tensor product, held;
};

/// Phi-3, GLM-4: `up_states` names the fused product, then its half, then the product with the activation; `gate` stays.
Gated fused_product(Eager& g, const Tensor& x, const Shape& rows, Dim width, const GatedLeaves& w, const std::string& name) {
  Tensor up = linear(g, x, w.gate_up, -1, elements(rows), rows_by(rows, Dim(2) * width), name + "gate_up");
  Tensor gate;
  {
    std::vector<Tensor> halves = split(g, up, {rows_by(rows, width), rows_by(rows, width)});
    gate = std::move(halves[0]);
    up = std::move(halves[1]);
  }
  Tensor active = activation(g, gate, name + "act");
  Tensor product = mul(g, up, std::move(active), name + "product");
  return {std::move(product), std::move(gate)};
}

/// 0.5 * x * (1.0 + tanh(c * (x + 0.044715 * pow(x, 3.0)))), one tensor an operator.
Tensor gelu_written_out(Eager& g, const Tensor& x) {
  Tensor half = scale(g, x, "act.half");
  Tensor inner;
  {
    Tensor cube;
    {
      Tensor base = g.autocast ? to(g, x, DType::fp32, "act.fp32") : x;  // autocast computes powers in fp32
      cube = pow2(g, std::move(base));
    }
    Tensor scaled = scale(g, std::move(cube), "act.cube");
    inner = add(g, x, std::move(scaled), "act.inner");
  }
  Tensor argument = scale(g, std::move(inner), "act.argument");
  Tensor bounded = tanh(g, std::move(argument), "act.tanh");
  Tensor shifted = add_scalar(g, std::move(bounded), "act.shifted");
  return mul(g, std::move(half), std::move(shifted), "act");
}

/// torch.square(relu(x)): a power, which autocast computes in fp32.
Tensor relu_squared(Eager& g, const Tensor& x) {
  Tensor applied = relu(g, x, "act.relu");
  Tensor base = g.autocast ? to(g, applied, DType::fp32, "act.fp32") : applied;
  return pow2(g, std::move(base));
}

}  // namespace

Tensor activate(Eager& g, Activation kind, const Tensor& x) {
  if (kind == Activation::relu_squared) return relu_squared(g, x);
  if (kind == Activation::gelu_new) return gelu_written_out(g, x);
  return kind == Activation::relu ? relu(g, x, "act") : activation(g, x, "act");
}

namespace {

Gated product(Eager& g, const Tensor& x, const Shape& rows, Dim width, const GatedLeaves& w, const std::string& name) {
  Tensor gate = linear(g, x, w.gate, w.gate_bias, elements(rows), rows_by(rows, width), name + "gate");
  Tensor active = activation(g, std::move(gate), name + "act");
  Tensor up = linear(g, x, w.up, w.up_bias, elements(rows), rows_by(rows, width), name + "up");
  return {mul(g, std::move(active), std::move(up), name + "product"), {}};
}

/// LigerSwiGLUMLP, LigerGEGLUMLP (transformers/swiglu.py, geglu.py).
Gated liger_product(Eager& g, const Tensor& x, const Shape& rows, Dim width, const GatedLeaves& w, const std::string& name) {
  Tensor gate = linear(g, x, w.gate, w.gate_bias, elements(rows), rows_by(rows, width), name + "gate");
  Tensor up = linear(g, x, w.up, w.up_bias, elements(rows), rows_by(rows, width), name + "up");
  return {liger::gated(g, std::move(gate), std::move(up), name + "product"), {}};
}

}  // namespace

Tensor gated_mlp(Eager& g, const Tensor& x, Shape rows, Dim hidden, Dim width, const GatedLeaves& w, const std::string& name,
                 const KernelOptions& options) {
  if (options.tiled_mlp) {  // TiledMLP's body is the modeling file's own line
    KernelOptions plain = options;
    plain.tiled_mlp = plain.liger.glu = false;
    const auto body = [&g, hidden, width, w, name, plain](const Tensor& part) {
      return gated_mlp(g, part, {part.shape[0], part.shape[1]}, hidden, width, w, name, plain);
    };
    return tiled_over_tokens(g, x, body);
  }
  const auto run = w.gate_up >= 0 ? &fused_product : options.liger.glu ? &liger_product : &product;
  const Gated wide = run(g, x, rows, width, w, name);
  const Dim count = elements(rows);
  Tensor out = linear(g, wide.product, w.down, w.down_bias, count, rows_by(std::move(rows), hidden), name + "down");
  return reduce_tokens(g, std::move(out), options, name + "reduced");
}

Tensor granite_mlp(Eager& g, const Tensor& x, Dim hidden, std::int64_t width, int input, int output) {
  using axis::B, axis::S, axis::T;
  const Shape half{B, S, Dim(width)};
  Tensor states = linear(g, x, input, -1, T, {B, S, Dim(2 * width)}, "shared.gate_up");
  const std::vector<Tensor> halves = split(g, states, {half, half});
  {
    Tensor active = activation(g, halves[0], "shared.act");
    states = mul(g, std::move(active), halves[1], "shared.product");
  }
  return linear(g, states, output, -1, T, {B, S, hidden}, "shared.down");
}

Tensor project(Eager& g, const FamilyCode& code, Tensor x, int weight, int bias, Shape out, const std::string& name) {
  const Dim rows = rows_of(out);
  if (code.conv1d) return conv1d(g, std::move(x), weight, bias, rows, std::move(out), name);
  const Leaf& base = g.leaves[static_cast<std::size_t>(weight)];
  if (code.weight_transposed && g.autocast && bias < 0 && base.low_rank_in < 0 && base.dtype == DType::fp32) {
    Tensor cast = to(g, g.leaf(weight), DType::bf16, name + ".weight_bf16");
    return linear_by(g, std::move(x), std::move(cast), rows, std::move(out), name);
  }
  return linear(g, std::move(x), weight, bias, rows, std::move(out), name);
}

Tensor plain_mlp(Eager& g, const FamilyCode& code, Tensor x, const Shape& rows, Dim hidden, const FeedForward& ff,
                 const LayerLeaves& w) {
  Tensor states = project(g, code, x, w.up, w.up_bias, rows_by(rows, ff.width), "fc1");
  x.reset();
  Tensor active =
      ff.activation == Activation::xielu ? xielu(g, states, w.alpha_p, w.alpha_n) : activate(g, ff.activation, states);
  states = std::move(active);
  return project(g, code, states, w.down, w.down_bias, rows_by(rows, hidden), "fc2");
}

}  // namespace oomplan
