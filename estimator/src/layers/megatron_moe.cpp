// MoELayer of Megatron-core as a whole: its shared experts, and what is computed again.
#include "layers/megatron_moe.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// bias_swiglu_impl, or what stands for it; without a gate a function that is a kernel by itself.
Tensor shared_activation(Eager& g, const FeedForward& f, const ChunkOptions& o, const Tensor& inner, std::int64_t width) {
  if (!f.experts_gated) return activation(g, inner, "shared_experts.activation");
  if (!o.settings.activation_fusion)
    return unfused_glu(g, inner, width, !o.settings.shared_expert_overlap && adds_offset(o.settings),
                       "shared_experts.activation");
  Tensor active = g.make("shared_experts.activation", with_last(inner.shape, Dim(width)), DType::bf16);
  if (g.will_record({&inner})) {
    Saved saved = g.save(inner);
    g.record(active, "BiasSwiGLU", {&inner}, [&g, saved](Gradients) {
      return Gradients{gradient(g, "shared_experts.activation_backward", saved.get().shape, DType::bf16)};
    });
  }
  return active;
}

/// The router keeps the input of shared experts, too (SharedExpertMLP.__init__: save_original_input).
bool shares_input(const ChunkOptions& o) { return keeps_shared_input(o.te) && !recomputes(o, "shared_experts"); }

/// Columns of the first product for `width` of the second one.
std::int64_t shared_columns(const FeedForward& f, std::int64_t width) { return (f.experts_gated ? 2 : 1) * width; }

/// moe_shared_expert_gate: one number a token from the same input.
Tensor gate_of(Eager& g, const Tensor& x, const ChunkOptions& o) {
  Tensor logits = g.make("shared_experts.gate_logits", with_last(x.shape, 1), x.dtype);
  if (g.will_record({&x})) {
    Saved saved = o.adapters ? Saved() : g.save(x);  // for the gradient of its row
    g.record(logits, "LinearBackward0", {&x}, [&g, saved, frozen = bool(o.adapters), shape = x.shape](Gradients) {
      if (!frozen) (void)saved.get();
      return Gradients{gradient(g, "shared_experts.gate_backward", shape, DType::bf16)};
    });
  }
  return sigmoid(g, std::move(logits), "shared_experts.gate");
}

/// SharedExpertMLP without overlap: an MLP whose norm stands outside.
Tensor shared_experts(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& x) {
  const std::int64_t width = f.shared_width / o.te.tensor;
  const std::int64_t columns = shared_columns(f, width);
  Tensor inner = o.adapters ? adapted_column(g, x, columns, o.te, o.adapters, "shared_experts.linear_fc1")
                            : te_column_linear(g, x, columns, o.te, "shared_experts.linear_fc1", shares_input(o));
  Tensor active = shared_activation(g, f, o, inner, width);
  inner.reset();
  Tensor out = o.adapters ? adapted_row(g, active, a.hidden, o.te, o.adapters, "shared_experts.linear_fc2")
                          : te_row_linear(g, active, a.hidden, o.te, "shared_experts.linear_fc2");
  active.reset();
  if (!f.shared_gate) return out;
  Tensor score = gate_of(g, x, o);
  return mul(g, std::move(out), std::move(score), "shared_experts.gated");
}

/// SharedExpertMLP beside the exchange; what one part leaves to the next stays an attribute (cached_*) until that has run.
class SharedBeside {
 public:
  SharedBeside(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& x)
      : g_(g), f_(f), o_(o), hidden_(a.hidden), width_(f.shared_width / o.te.tensor), x_(x) {}
  BesideExchange parts() {
    return {[this] { gather(); }, [this] { first(); }, [this] { second(); }, [this] { return result(); }};
  }

 private:
  bool scatters() const { return o_.te.sequence_parallel && o_.te.tensor > 1; }
  void gather() {
    if (f_.shared_gate) score_ = gate_of(g_, x_, o_);
    const Shape whole{o_.te.whole(), x_.shape[1], x_.shape[2]};
    kept_ = scatters() ? moved_rows(g_, x_, whole, {}, DType::bf16, "shared_experts.gathered") : x_;
  }
  void first() {
    Tensor inner =
        te_duplicated_linear(g_, kept_, shared_columns(f_, width_), o_.te, "shared_experts.linear_fc1", shares_input(o_));
    kept_ = shared_activation(g_, f_, o_, inner, width_);
  }
  void second() {
    Tensor out = te_duplicated_linear(g_, kept_, hidden_, o_.te, "shared_experts.linear_fc2");
    kept_ = std::move(out);
    if (scatters()) kept_ = moved_rows(g_, kept_, x_.shape, {}, DType::bf16, "shared_experts.scattered");
  }

  Tensor result() {
    if (!f_.shared_gate) return std::move(kept_);
    return mul(g_, std::move(kept_), std::move(score_), "shared_experts.gated");
  }

  Eager& g_;
  const FeedForward& f_;
  const ChunkOptions& o_;
  std::int64_t hidden_, width_;
  const Tensor& x_;
  Tensor kept_, score_;
};

/// MoELayer.forward behind its norm.
Tensor moe(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& normed) {
  const RoutedSizes s = routed_sizes(a, f, o);
  const auto body = [&g, &a, &f, &o, s](const Tensor& in) {  // runs again in backward
    Tensor shared;
    const auto always = [&g, &a, &f, &o](const Tensor& given) { return shared_experts(g, a, f, o, given); };
    const bool beside = f.shared_width > 0 && o.settings.shared_expert_overlap;
    if (f.shared_width > 0 && !beside) shared = recomputes(o, "shared_experts") ? g.checkpoint_reentrant(in, always) : always(in);
    Tensor probabilities = route_megatron(g, f, o, s, in);
    const auto experts = [&g, &s, &o](const RoutedRows& rows) { return run_megatron_experts(g, rows, s, o); };
    if (beside) {
      SharedBeside parts(g, a, f, o, in);
      return dispatch_megatron(g, s, o, in, std::move(probabilities), experts, parts.parts());
    }
    const auto dispatched = [&] {
      if (o.settings.dispatcher == TokenDispatcher::allgather)
        return gather_megatron(g, s, o, in, std::move(probabilities), experts);
      if (o.settings.dispatcher == TokenDispatcher::flex)
        return exchange_megatron(g, s, o, in, std::move(probabilities), experts);
      return dispatch_megatron(g, s, o, in, std::move(probabilities), experts);
    };
    Tensor output = dispatched();
    return shared ? add(g, output, shared, "with_shared_experts") : output;
  };
  return recomputes(o, "moe") ? g.checkpoint_reentrant(normed, body) : body(normed);
}

}  // namespace

Tensor run_shared_experts(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const Tensor& x) {
  return shared_experts(g, a, f, o, x);
}

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
