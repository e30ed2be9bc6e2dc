// MoELayer of Megatron-core as a whole: its experts, its shared experts, and what is computed again.
#include "layers/megatron_moe.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// GroupedLinear: one product after another over views of the rows.
Tensor grouped_linear(Eager& g, const Tensor& x, std::int64_t out, std::int64_t local, const ChunkOptions& o,
                      const std::string& name) {
  Tensor y = g.make(name, {x.shape[0], Dim(out)}, DType::bf16);
  if (!g.will_record({&x})) return y;
  Saved saved = g.save(x);
  // before Transformer Engine 2.10 every expert's placeholder gradient is a new one
  const bool gradients = !o.te.fused_gradients || o.settings.te_release == TeRelease::v2_9;
  g.record(y, "GroupedLinear", {&x}, [&g, saved, out, local, gradients, name](Gradients) {
    const Tensor& input = saved.get();
    Tensor product = gradient(g, (name + "_backward").c_str(), input.shape, DType::bf16);
    const Tensor weights =
        gradients ? gradient(g, (name + ".weight_gradients").c_str(), {Dim(local), Dim(out), input.shape[1]}, DType::bf16)
                  : Tensor();
    return Gradients{std::move(product)};
  });
  return y;
}

/// weighted_bias_swiglu_impl: the probabilities are a factor of the activation.
Tensor weighted_swiglu(Eager& g, const Tensor& inner, const Tensor& weights, const Shape& shape) {
  Tensor active = g.make("experts.activation", shape, DType::bf16);
  if (!g.will_record({&inner, &weights})) return active;
  Saved product = g.save(inner), factors = g.save(weights);
  g.record(active, "WeightedSwiGLU", {&inner, &weights}, [&g, product, factors](Gradients) {
    Gradients grads;
    grads.push_back(gradient(g, "experts.activation_backward", product.get().shape, DType::bf16));
    grads.push_back(gradient(g, "experts.probabilities_backward", factors.get().shape, factors.get().dtype));
    return grads;
  });
  return active;
}

/// TEGroupedMLP.forward.
Tensor grouped_experts(Eager& g, const RoutedRows& in, const RoutedSizes& s, const ChunkOptions& o) {
  const Tensor inner = grouped_linear(g, in.tokens, 2 * s.width, s.local, o, "experts.linear_fc1");
  const Shape shape{s.rows, Dim(s.width)};
  if (!recomputes(o, "moe_act")) {
    const Tensor active = weighted_swiglu(g, inner, in.weights, shape);
    return grouped_linear(g, active, s.hidden, s.local, o, "experts.linear_fc2");
  }
  DiscardedOutputs activation;
  const auto again = [&g, shape](const std::vector<Tensor>& x) {
    return std::vector<Tensor>{weighted_swiglu(g, x[0], x[1], shape)};
  };
  const std::vector<Tensor> active = activation.run(g, {inner, in.weights}, again);
  Tensor out = grouped_linear(g, active[0], s.hidden, s.local, o, "experts.linear_fc2");
  activation.discard(out);
  return out;
}

/// SharedExpertMLP without overlap: an MLP whose norm stands outside.
Tensor shared_experts(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& x) {
  const std::int64_t width = f.shared_width / o.te.tensor;
  Tensor inner = te_column_linear(g, x, 2 * width, o.te, "shared_experts.linear_fc1");
  Tensor active = g.make("shared_experts.activation", with_last(inner.shape, Dim(width)), DType::bf16);
  if (g.will_record({&inner})) {
    Saved saved = g.save(inner);
    g.record(active, "BiasSwiGLU", {&inner}, [&g, saved](Gradients) {
      return Gradients{gradient(g, "shared_experts.activation_backward", saved.get().shape, DType::bf16)};
    });
  }
  inner.reset();
  return te_row_linear(g, active, a.hidden, o.te, "shared_experts.linear_fc2");
}

/// MoELayer.forward behind its norm.
Tensor moe(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& normed) {
  const RoutedSizes s = routed_sizes(a, f, o);
  const auto body = [&g, &a, &f, &o, s](const Tensor& in) {  // runs again in backward
    Tensor shared;
    const auto always = [&g, &a, &f, &o](const Tensor& given) { return shared_experts(g, a, f, o, given); };
    if (f.shared_width > 0) shared = recomputes(o, "shared_experts") ? g.checkpoint_reentrant(in, always) : always(in);
    Tensor probabilities = route_megatron(g, f, o, s, in);
    const auto experts = [&g, &s, &o](const RoutedRows& rows) { return grouped_experts(g, rows, s, o); };
    Tensor output = dispatch_megatron(g, s, o, in, std::move(probabilities), experts);
    return shared ? add(g, output, shared, "with_shared_experts") : output;
  };
  return recomputes(o, "moe") ? g.checkpoint_reentrant(normed, body) : body(normed);
}

}  // namespace

Tensor run_megatron_moe(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const FeedForward& f = layer.feed_forward;
  if (!recomputes(o, "layernorm")) return moe(g, a, f, o, te_norm(g, x, layer.norm, "pre_mlp_layernorm"));
  DiscardedOutputs norm;
  const auto again = [&g, kind = layer.norm](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{te_norm(g, in[0], kind, "pre_mlp_layernorm")};
  };
  const std::vector<Tensor> normed = norm.run(g, {x}, again);
  Tensor out = moe(g, a, f, o, normed[0]);
  norm.discard(out);
  return out;
}

}  // namespace oomplan
