#include "layers/megatron_local.hpp"

#include "layers/megatron_moe.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// The gradient of a weight [out, in] where it is no part of the product.
Tensor local_weight_gradient(Eager& g, std::int64_t out, Dim in, const TeOptions& o, const std::string& name) {
  return o.fused_gradients ? Tensor() : gradient(g, (name + ".weight_gradient").c_str(), {Dim(out), in}, DType::bf16);
}

}  // namespace

Tensor behind_norm(Eager& g, NormKind kind, const ChunkOptions& o, const Tensor& x, const std::string& name,
                   const std::function<Tensor(const Tensor&)>& half) {
  if (!recomputes(o, "layernorm")) return half(te_norm(g, x, kind, name));
  DiscardedOutputs norm;
  const std::vector<Tensor> normed = norm.run(
      g, {x}, [&g, kind, name](const std::vector<Tensor>& in) { return std::vector<Tensor>{te_norm(g, in[0], kind, name)}; });
  Tensor out = half(normed[0]);
  norm.discard(out);
  return out;
}

/// LinearWithGradAccumulationAndAsyncCommunication. The gradient of all tokens, the part of it that is this rank's and that of
/// the weight are there together until the function returns.
Tensor local_column_linear(Eager& g, const Tensor& x, std::int64_t out, const TeOptions& o, const std::string& name) {
  Tensor y = g.make(name, {o.whole(), B, Dim(out)}, x.dtype);
  if (!g.will_record({&x})) return y;
  Saved saved = g.save(x);
  g.record(y, "LinearWithGradAccumulation", {&x}, [&g, saved, out, o, name](Gradients) {
    const Tensor& input = saved.get();
    Tensor whole = gradient(g, (name + "_backward").c_str(), {o.whole(), B, input.shape.back()}, input.dtype);
    const bool scatters = o.sequence_parallel && o.tensor > 1;
    Tensor part = scatters ? gradient(g, (name + "_backward.scattered").c_str(), input.shape, input.dtype) : Tensor();
    const Tensor weight = local_weight_gradient(g, out, input.shape.back(), o, name);
    return Gradients{scatters ? std::move(part) : std::move(whole)};
  });
  return y;
}

Tensor local_row_linear(Eager& g, const Tensor& x, std::int64_t out, const TeOptions& o, const std::string& name) {
  const bool scatters = o.sequence_parallel && o.tensor > 1;
  Tensor y = g.make(scatters ? name + ".partial" : name, {x.shape[0], B, Dim(out)}, x.dtype);
  if (g.will_record({&x})) {
    Saved saved = g.save(x);
    g.record(y, "LinearWithGradAccumulation", {&x}, [&g, saved, out, o, name](Gradients) {
      const Tensor& input = saved.get();
      Tensor product = gradient(g, (name + "_backward").c_str(), input.shape, input.dtype);
      const Tensor weight = local_weight_gradient(g, out, input.shape.back(), o, name);
      return Gradients{std::move(product)};
    });
  }
  return scatters ? moved_rows(g, y, {axis::S, B, Dim(out)}, {}, x.dtype, name) : y;
}

}  // namespace oomplan
