// MoELayer of Megatron-core as a whole: its shared experts, and what is computed again.
#include "layers/megatron_moe.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

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
    const auto experts = [&g, &s, &o](const RoutedRows& rows) { return run_megatron_experts(g, rows, s, o); };
    Tensor output = o.settings.dispatcher == TokenDispatcher::allgather
                        ? gather_megatron(g, s, o, in, std::move(probabilities), experts)
                        : dispatch_megatron(g, s, o, in, std::move(probabilities), experts);
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
