// The loops over experts: one stack of matrices in release 5, modules in release 4.
#include "layers/experts.hpp"
#include "layers/mlp.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::T;

/// one_hot of the chosen experts, and which of them are hit: names of the function that loops.
struct HitMask {
  Tensor mask, hit;
};
HitMask hit_mask(Eager& g, const FeedForward& ff, Dim classes, bool finds_hits) {
  HitMask out;
  out.mask = g.make("experts.mask", {T, Dim(ff.experts_per_token), classes}, DType::int64);
  if (!finds_hits) return out;
  Tensor counts = g.make("experts.counts", {classes}, DType::int64);
  Tensor some = g.make("experts.some", {classes}, DType::boolean);
  out.hit = g.make("experts.hit", {Dim(ff.experts), Dim(1)}, DType::int64);
  return out;
}

/// Names of the loop's body outlive their turn: each is rebound by the next one.
struct BodyNames {
  Tensor places, state, both, gated, current, weighted;
  std::vector<Tensor> halves;
};

/// top_k_weights[token_idx, top_k_pos, None]; gpt-oss of release 4: scores[token_idx, expert_idx, None] of all experts.
Tensor share_of_rows(Eager& g, const Tensor& weights, const Tensor& places, Dim rows, bool all_experts) {
  if (!all_experts) return index_rows(g, weights, places, {rows, Dim(1)}, "expert.share");
  return index_rows(g, slice(g, weights, {T, Dim(1)}), places, {rows, Dim(1)}, "expert.share");
}

struct Loop {
  Eager& g;
  const FeedForward& ff;
  Dim hidden;
  const Tensor& x;
  const Routing& routing;
  bool of_4;
  const LayerLeaves& w;
  BodyNames n;

  void bind(Tensor& name, Tensor value) const { name = std::move(value); }

  /// MixtralExperts and its copies.
  Tensor turn(const Tensor& final, Dim rows) {
    const Dim width = ff.expert_width, twice = 2 * ff.expert_width;
    bind(n.places, g.make("expert.positions", {Dim(2), rows}, DType::int64));  // top_k_pos and token_idx
    bind(n.state, index_rows(g, x, n.places, {rows, hidden}, "expert.input"));
    {
      Tensor both =
          linear_by(g, n.state, slice(g, g.leaf(w.experts_gate_up), {twice, hidden}), rows, {rows, twice}, "expert.gate_up");
      n.halves = split(g, both, {{rows, width}, {rows, width}});
    }
    Tensor active = activation(g, n.halves[0], "expert.act");
    bind(n.current, mul(g, std::move(active), n.halves[1], "expert.product"));
    bind(n.current,
         linear_by(g, n.current, slice(g, g.leaf(w.experts_down), {hidden, width}), rows, {rows, hidden}, "expert.down"));
    Tensor share = share_of_rows(g, routing.weights, n.places, rows, false);
    bind(n.current, mul(g, n.current, std::move(share), "expert.weighted"));
    return index_add(g, final, n.places, n.current);
  }

  /// x @ W[expert] + b[expert]
  Tensor biased(const Tensor& in, int stack, int biases, Dim rows, Dim in_width, Dim width, const std::string& name) const {
    Tensor product = linear_by(g, in, slice(g, g.leaf(stack), {in_width, width}), rows, {rows, width}, name);
    return add(g, std::move(product), slice(g, g.leaf(biases), {width}), name + ".biased");
  }

  /// GptOssExperts.
  Tensor turn_with_biases(const Tensor& final, Dim rows) {
    const Dim width = ff.expert_width, twice = 2 * ff.expert_width;
    bind(n.places, g.make("expert.positions", {Dim(2), rows}, DType::int64));
    bind(n.state, index_rows(g, x, n.places, {rows, hidden}, "expert.input"));
    bind(n.both, biased(n.state, w.experts_gate_up, w.experts_gate_up_bias, rows, hidden, twice, "expert.gate_up"));
    bind(n.gated, expert_gate(g, ff, n.both, {rows, width}, of_4 ? &n.halves : nullptr));
    bind(n.current, biased(n.gated, w.experts_down, w.experts_down_bias, rows, width, hidden, "expert.down"));
    Tensor share = share_of_rows(g, routing.weights, n.places, rows, of_4);
    bind(n.weighted, mul(g, n.current, std::move(share), "expert.weighted"));
    return index_add(g, final, n.places, n.weighted);
  }
};

}  // namespace

Tensor loop_over_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const Routing& routing,
                         const LayerLeaves& w, const KernelOptions& k) {
  const bool of_4 = k.experts == ExpertsCode::loop_of_4;
  Tensor final = g.make("experts.output", {T, hidden}, x.dtype);
  const HitMask hit = hit_mask(g, ff, ff.experts + (ff.expert_bias && !of_4 ? 0 : 1), true);
  Loop loop{g, ff, hidden, x, routing, of_4, w, {}};
  const Spread spread(ff, k.routed_tokens);
  for (std::int64_t e = 0; e < spread.hit; ++e)
    final = ff.expert_bias ? loop.turn_with_biases(final, spread.of(e)) : loop.turn(final, spread.of(e));
  return final;
}

Tensor loop_over_modules(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const Routing& routing,
                         const LayerLeaves& w, std::int64_t tokens) {
  // DeepseekV3MoE.moe adds up in the format of the weights and casts the sum; MixtralSparseMoeBlock and its copies cast each part
  const bool wide = ff.score == RouterScore::sigmoid;
  Tensor final = g.make("experts.sum", {T, hidden}, wide ? routing.weights.dtype : x.dtype);
  const HitMask hit = hit_mask(g, ff, ff.experts, !wide);
  BodyNames n;
  Tensor share;
  const Spread spread(ff, tokens);
  for (std::int64_t e = 0; e < spread.hit; ++e) {
    const Dim rows = spread.of(e);
    const LayerLeaves::Expert& expert = w.expert_modules[static_cast<std::size_t>(e)];
    Tensor next = g.make("expert.positions", {Dim(2), rows}, DType::int64);
    n.places = std::move(next);
    if (wide) {
      next = index_rows(g, routing.weights, n.places, {rows}, "expert.share");
      share = std::move(next);
    }
    next = index_rows(g, x, n.places, wide ? Shape{rows, hidden} : Shape{Dim(1), rows, hidden}, "expert.input");
    next.shape = {rows, hidden};
    n.state = std::move(next);
    const GatedLeaves leaves{.gate = expert.gate, .up = expert.up, .down = expert.down};
    next = gated_mlp(g, n.state, {rows}, hidden, ff.expert_width, leaves, "expert.");
    Tensor output, column;
    if (wide) {
      output = n.current = std::move(next);
      column = share.alias({rows, Dim(1)});
      column.grad_fn = share.grad_fn;
    } else {
      output = std::move(next);
      column = share_of_rows(g, routing.weights, n.places, rows, false);
    }
    next = mul(g, std::move(output), std::move(column), "expert.weighted");
    n.weighted = std::move(next);
    final = index_add(g, final, n.places, n.weighted);
  }
  return to(g, final, x.dtype, "experts.output");
}

}  // namespace oomplan
