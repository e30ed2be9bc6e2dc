#include "layers/operators_moe.hpp"

#include <bit>
#include <vector>

#include <oomplan/units/bytes.hpp>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// Legend: T tokens, H hidden, W width of an expert, E experts, K of them a token, TK = T * K.
struct ExpertSizes {
  std::int64_t T, H, W, E, K;
  std::int64_t TK() const { return T * K; }
};

/// What the operator is called with. `from_leaves` 0: weights are products of what wants the gradient and a number, as Liger's
/// script makes them, so both stay.
struct ExpertInputs {
  Tensor x, gate_up, down, index, weights;
  std::vector<Tensor> sources;
};

ExpertInputs make_inputs(const OperatorSetup& s, const ExpertSizes& n) {
  ExpertInputs in;
  const auto weight = [&](const char* name, Shape shape) {
    if (s.size("from_leaves") != 0) return s.input(name, std::move(shape), s.call.weights);
    in.sources.push_back(s.input(std::string(name) + ".source", std::move(shape), s.call.weights));
    return scale(s.g, in.sources.back(), name, Category::inputs);
  };
  in.x = s.input("x", {n.T, n.H}, s.call.dtype);
  in.gate_up = weight("gate_up_proj", {n.E, 2 * n.W, n.H});
  in.down = weight("down_proj", {n.E, n.H, n.W});
  in.index = s.g.make("top_k_index", {n.T, n.K}, DType::int32, Category::inputs);
  in.weights = s.input("top_k_weights", {n.T, n.K}, s.call.dtype);
  return in;
}

/// compute_routing_metadata: whose tokens lie where, and the tiles of 64 rows.
std::vector<Tensor> liger_routing(Eager& g, const ExpertSizes& n) {
  const std::int64_t rows_of_block =
      std::max<std::int64_t>(1, 1024 / static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n.K))));
  const std::int64_t tiles = n.E * ceil_div(ceil_div(n.TK(), n.E), 64);
  Tensor counts = g.make("tile_expert_counts", {n.E, ceil_div(n.T, rows_of_block)}, DType::int32, Category::temporaries);
  Tensor count = g.make("expert_token_count", {n.E}, DType::int32, Category::temporaries);
  Tensor start = g.make("expert_start_idx", {n.E + 1}, DType::int32);
  Tensor offset = g.make("expert_tile_offset", {n.E + 1}, DType::int32, Category::temporaries);
  Tensor row_start = g.make("tile_row_start", {tiles}, DType::int32);
  Tensor expert = g.make("tile_expert", {tiles}, DType::int32);
  std::vector<Tensor> kept{start, row_start, expert};
  for (const char* name : {"s_scatter_idx", "s_reverse_scatter_idx", "x_gather_idx"})
    kept.push_back(g.make(name, {n.TK()}, DType::int32));
  return kept;
}

/// linkedin/Liger-Kernel src/liger_kernel/ops/fused_moe.py LigerFusedMoEFunction (0.8.0 to 0.8.2): keeps what goes into the
/// activation, not what comes out of the experts; backward makes the gradient of every token's copies at once.
Tensor liger_experts(Eager& g, const ExpertInputs& in, const ExpertSizes& n) {
  const DType dtype = in.x.dtype;
  const bool grad = std::exchange(g.grad_enabled, false);
  std::vector<Tensor> routing = liger_routing(g, n);
  Tensor pre = g.make("pre_act", {n.TK(), 2 * n.W}, dtype);
  Tensor post = g.make("post_act", {n.TK(), n.W}, dtype);
  Tensor each = g.make("experts.output", {n.TK(), n.H}, dtype);
  Tensor out = g.make("output", {n.T, n.H}, dtype);
  g.grad_enabled = grad;
  const std::vector<const Tensor*> wanted{&in.x, &in.gate_up, &in.down, &in.weights};
  if (!g.will_record(wanted)) return out;
  std::vector<Saved> saved{g.save(in.x), g.save(in.gate_up), g.save(in.down), g.save(pre), g.save(in.weights)};
  for (const Tensor& t : routing) saved.push_back(g.save(t));
  g.record(out, "LigerFusedMoEFunctionBackward", wanted, [saved, n, dtype, &g](const Gradients&) {
    for (const Saved& s : saved) (void)s.get();
    const auto make = [&](const char* name, Shape shape) { return gradient(g, name, shape, dtype); };
    Tensor before = make("pre_act_backward", {n.TK(), 2 * n.W});
    Tensor act = make("weighted_act", {n.TK(), n.W});
    Tensor scores = make("top_k_weights_backward", {n.TK()});
    Tensor down = make("down_proj_backward", {n.E, n.H, n.W});
    Tensor every = make("x_backward_of_copies", {n.TK(), n.H});
    Tensor x = make("x_backward", {n.T, n.H});
    Tensor gate_up = make("gate_up_proj_backward", {n.E, 2 * n.W, n.H});
    return Gradients{x, gate_up, down, scores.alias({n.T, n.K})};
  });
  return out;
}

/// One expert of transformers' loop (models/mixtral/modeling_mixtral.py MixtralExperts, 5.x) on `rows` of the copies.
Tensor loop_turn(Eager& g, const ExpertInputs& in, const ExpertSizes& n, const Tensor& final, std::int64_t rows) {
  Tensor places = g.make("expert.positions", {2, rows}, DType::int64);  // top_k_pos and token_idx are views
  Tensor current = index_rows(g, in.x, places, {rows, n.H}, "expert.input");
  Tensor both = linear_by(g, current, slice(g, in.gate_up, {2 * n.W, n.H}), rows, {rows, 2 * n.W}, "expert.gate_up");
  std::vector<Tensor> halves = split(g, both, {{rows, n.W}, {rows, n.W}});
  both.reset();
  Tensor gated = activation(g, halves[0], "expert.activation");
  Tensor product = mul(g, std::move(gated), halves[1], "expert.product");
  current = std::move(product);
  Tensor down = linear_by(g, current, slice(g, in.down, {n.H, n.W}), rows, {rows, n.H}, "expert.down");
  current = std::move(down);
  Tensor share = index_rows(g, in.weights, places, {rows, 1}, "expert.share");
  Tensor weighted = mul(g, current, std::move(share), "expert.weighted");
  current = std::move(weighted);
  // index_add_ keeps the index and, for its shape, what is added; the gradient of that is rows of the output's one
  Tensor sum = final.alias(final.shape);
  Saved index = g.save(places), source = g.save(current);
  g.record(sum, "IndexAddBackward0", {&final, &current}, [&g, index, source, rows, hidden = n.H](const Gradients& given) {
    (void)index.get();
    (void)source.get();
    return Gradients{given[0], gradient(g, "index_add_backward", {rows, hidden}, given[0].dtype)};
  });
  return sum;
}

Tensor loop_of_experts(Eager& g, const ExpertInputs& in, const ExpertSizes& n) {
  Tensor final = g.make("output", {n.T, n.H}, in.x.dtype);
  Tensor mask;
  {
    Tensor wide = g.make("top_k_index_int64", {n.T, n.K}, DType::int64, Category::temporaries);
    mask = g.make("expert_mask", {n.T, n.K, n.E}, DType::int64, Category::temporaries);
  }
  const std::int64_t hit = std::min(n.E, n.TK());
  for (std::int64_t e = 0; e < hit; ++e) {
    const std::int64_t rows = n.TK() / hit + (e < n.TK() % hit ? 1 : 0);
    final = loop_turn(g, in, n, final, rows);
  }
  return final;
}

}  // namespace

OperatorSetup::Forward fused_moe_operator(const OperatorSetup& s) {
  const ExpertSizes n{s.size("tokens"), s.size("hidden"), s.size("width"), s.size("experts"), s.size("top_k")};
  const ExpertInputs in = make_inputs(s, n);
  if (s.is("liger")) return [&g = s.g, in, n] { return liger_experts(g, in, n); };
  return [&g = s.g, in, n] { return loop_of_experts(g, in, n); };
}

}  // namespace oomplan
