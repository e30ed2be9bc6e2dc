#include "layers/vectors.hpp"

#include <algorithm>
#include <utility>

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

/// The pair that the model has declared; it stands in front of all layers.
int shared(const Eager& g, const char* name) {
  for (std::size_t i = 0; i < g.leaves.size(); ++i)
    if (g.leaves[i].name == name) return static_cast<int>(i);
  return -1;
}

/// IA3's targets that are taken for feed-forward ones: what goes in is scaled (peft/utils/constants.py).
bool feeds_forward(const std::string& name) { return name.ends_with("down_proj.weight") || name.ends_with("fc2.weight"); }

constexpr auto kSharedIn = "vera_A", kSharedOut = "vera_B";

}  // namespace

void declare_vera_pair(Eager& g, const Architecture& a, const AdapterOptions& adapters) {
  std::int64_t in = 0, out = 0;
  Eager apart;  // what the layers will declare
  AdapterOptions pairs = adapters;
  pairs.kind = AdapterKind::lora;
  pairs.layer = 0;
  for (const LayerRun& run : a.runs) {
    (void)declare_layer(apart, a, run.layer, adapters.dtype, pairs, false);
    pairs.layer += run.count;
  }
  for (const Leaf& leaf : apart.leaves) {
    if (leaf.low_rank_in < 0) continue;
    out = std::max(out, leaf.shape[0].coefficient);
    in = std::max(in, leaf.shape[1].coefficient);
  }
  // buffers of the model: in the adapters' format, and whole on every rank
  for (const int leaf : {g.parameter(kSharedIn, {adapters.rank, in}, adapters.dtype, false),
                         g.parameter(kSharedOut, {out, adapters.rank}, adapters.dtype, false)})
    g.leaves[static_cast<std::size_t>(leaf)].packed = PackedLeaf::statistics;
}

void add_vectors(Eager& g, int matrix, const std::string& name, std::int64_t out, std::int64_t in,
                 const AdapterOptions& adapters) {
  std::string module = name;
  module.resize(module.size() - std::string_view(".weight").size());
  Leaf with;
  if (adapters.kind == AdapterKind::vera) {
    with.scale = g.parameter(module + ".vera_lambda_b", {out}, adapters.dtype);
    with.inner_scale = g.parameter(module + ".vera_lambda_d", {adapters.rank}, adapters.dtype);
    with.shared_in = shared(g, kSharedIn);
    with.shared_out = shared(g, kSharedOut);
  } else if (adapters.kind == AdapterKind::ia3) {
    with.scales_input = feeds_forward(name);
    // which axis is the long one decides what FSDP2 cuts
    const Shape scale = with.scales_input ? Shape{Dim(1), Dim(in)} : Shape{Dim(out), Dim(1)};
    with.scale = g.parameter(module + ".ia3_l", scale, adapters.dtype);
  } else {
    with.shift = g.parameter(module + ".adapter_bias", {out}, adapters.dtype);
    with.scale = g.parameter(module + ".adapter_scale", {out}, adapters.dtype);
  }
  Leaf& base = g.leaves[static_cast<std::size_t>(matrix)];
  base.scale = with.scale;
  base.shift = with.shift;
  base.inner_scale = with.inner_scale;
  base.scales_input = with.scales_input;
  base.shared_in = with.shared_in;
  base.shared_out = with.shared_out;
}

bool has_peft_vectors(const Leaf& matrix) { return matrix.scale >= 0 && matrix.shift < 0; }

namespace ops {
namespace {

/// result + lambda_b * B(lambda_d * A(dropout(x))), in the format of the vectors; `x` is rebound to its cast.
Tensor with_shared_pair(Eager& g, Tensor result, const Tensor& given, const Leaf& base, Dim rows, const std::string& name) {
  const DType back = result.dtype;
  const Dim rank = g.leaves[static_cast<std::size_t>(base.shared_in)].shape[0];
  Tensor x = to(g, given, g.leaves[static_cast<std::size_t>(base.scale)].dtype, name + ".vera_input");
  Tensor inner;
  {
    Tensor dropped = g.low_rank_dropout ? dropout(g, x, name + ".vera_dropout") : x;
    Tensor low = linear(g, std::move(dropped), base.shared_in, -1, rows, with_last(x.shape, rank), name + ".vera_A");
    inner = mul(g, g.leaf(base.inner_scale), std::move(low), name + ".vera_inner");
  }
  Tensor high = linear(g, std::move(inner), base.shared_out, -1, rows, result.shape, name + ".vera_B");
  Tensor scaled = mul(g, g.leaf(base.scale), std::move(high), name + ".vera_scaled");
  Tensor sum = add(g, result, std::move(scaled), name + ".vera_sum");
  result = std::move(sum);
  return to(g, result, back, name + ".adapted");
}

}  // namespace

Tensor linear_with_vectors(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name,
                           Category category) {
  const Leaf base = g.leaves[static_cast<std::size_t>(weight)];
  const auto bare = [&](Tensor input) {
    return linear_alone(g, std::move(input), weight, bias, rows, std::move(out_shape), name, category);
  };
  if (base.shared_in >= 0) {
    Tensor result = bare(x);
    return with_shared_pair(g, std::move(result), x, base, rows, name);
  }
  const Shape& whole = g.leaves[static_cast<std::size_t>(base.scale)].shape;
  const Shape flat{whole[base.scales_input ? 1 : 0]};
  Tensor factor = scale(g, view(g.leaf(base.scale), flat), name + ".ia3_scaling");  // 1 * l
  if (base.scales_input) {
    const DType previous = x.dtype;
    Tensor wide = to(g, x, factor.dtype, name + ".ia3_input");
    Tensor product = mul(g, wide, factor, name + ".ia3_product");
    Tensor inner = to(g, std::move(product), previous, name + ".ia3_scaled");
    return bare(inner);
  }
  Tensor result = bare(std::move(x));
  Tensor product = mul(g, result, factor, name + ".ia3_product");
  return to(g, std::move(product), result.dtype, name + ".adapted");
}

Tensor scaled_and_shifted(Eager& g, Tensor linear, const Leaf& matrix, const std::string& name) {
  if (matrix.shift < 0) return linear;
  Tensor sum = add(g, std::move(linear), g.leaf(matrix.shift), name + ".shifted");
  return mul(g, g.leaf(matrix.scale), std::move(sum), name + ".scaled");
}

}  // namespace ops
}  // namespace oomplan
