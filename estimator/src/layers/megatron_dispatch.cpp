// MoEAlltoAllTokenDispatcher of Megatron-core, with Transformer Engine's permutation, without it, and padded to a capacity.
#include <cmath>

#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// What stays of a way of the rows: it is kept for backward.
using Maps = std::vector<Tensor>;

std::vector<Saved> save_all(Eager& g, const Maps& maps) {
  std::vector<Saved> out;
  for (const Tensor& map : maps) out.push_back(g.save(map));
  return out;
}

/// One function with two outputs, whose gradients are tensors of the inputs' shapes.
RoutedRows moved(Eager& g, const RoutedRows& in, Dim rows, std::int64_t hidden, const Maps& maps, const std::string& name) {
  RoutedRows out{g.make(name, {rows, Dim(hidden)}, DType::bf16), g.make(name + ".probabilities", {rows}, in.weights.dtype)};
  if (!g.will_record({&in.tokens, &in.weights})) return out;
  const Shape tokens = in.tokens.shape, weights = in.weights.shape;
  const DType format = in.weights.dtype;
  Tensor joint = out.tokens.alias(out.tokens.shape);
  g.record(
      joint, name.c_str(), {&in.tokens, &in.weights},
      [&g, saved = save_all(g, maps), tokens, weights, format, name](Gradients) {
        for (const Saved& map : saved) (void)map.get();
        Gradients grads;
        grads.push_back(gradient(g, (name + "_backward").c_str(), tokens, DType::bf16));
        grads.push_back(gradient(g, (name + "_backward.probabilities").c_str(), weights, format));
        return grads;
      },
      2);
  out.tokens.grad_fn = out.weights.grad_fn = joint.grad_fn;
  out.weights.output = 1;
  return out;
}

/// A row map that a fused sort makes and keeps; copies of chunks need none.
Maps sort_map(Eager& g, const RoutedSizes& s, const ChunkOptions& o, const std::string& name) {
  if (s.padded || !o.settings.permute_fusion) return {};
  return {g.make(name, {s.rows}, DType::int32)};
}

/// What pads the rows of an expert, as many as fill half a unit: routing is never even to the row.
std::int64_t half_a_unit(const Megatron& m) { return m.fp8 == Fp8Recipe::mxfp8 ? 16 : 8; }
}  // namespace

bool capacity_is_reached(const Megatron& m) { return m.expert_capacity > 0 && (m.pads_experts || m.expert_capacity < 1); }

/// Without the kernel: the map on its side, the indices, and the probabilities on their side, of which those of the map are
/// taken.
Permuted permute_megatron(Eager& g, const RoutedSizes& s, const PermutedSizes& z, const ChunkOptions& o, const Tensor& x,
                          Tensor probabilities) {
  Permuted out;
  if (o.settings.permute_fusion) {
    out.map = g.make("permutation_map", {z.tokens, Dim(2 * z.experts + 1)}, DType::int32);
    out.rows = moved(g, {x, std::move(probabilities)}, z.rows, s.hidden, {out.map}, "permuted");
    return out;
  }
  const Tensor chosen = g.make("permutation.chosen", {Dim(z.experts), z.tokens}, DType::boolean);
  out.map = g.make("permutation.indices", {z.rows}, DType::int64);
  const Tensor turned = g.make("permutation.probabilities", {Dim(z.experts), z.tokens}, probabilities.dtype);
  const Maps maps = s.padded ? Maps{out.map} : Maps{out.map, chosen, turned};
  out.rows = moved(g, {x, std::move(probabilities)}, z.rows, s.hidden, maps, "permuted");
  return out;
}

Tensor moved_rows(Eager& g, const Tensor& x, Shape shape, const Maps& maps, DType dtype, const std::string& name) {
  Tensor y = g.make(name, std::move(shape), dtype);
  if (!g.will_record({&x})) return y;
  const Shape before = x.shape;
  const DType format = x.dtype;
  g.record(y, "Backward", {&x}, [&g, saved = save_all(g, maps), name, before, format](Gradients) {
    for (const Saved& map : saved) (void)map.get();
    return Gradients{gradient(g, (name + "_backward").c_str(), before, format)};
  });
  return y;
}

RoutedSizes routed_sizes(const Architecture& a, const FeedForward& f, const ChunkOptions& o) {
  RoutedSizes s;
  s.tokens = B * axis::S;
  s.dropped = o.settings.expert_capacity > 0;
  s.padded = s.dropped && o.settings.pads_experts;
  const bool reached = capacity_is_reached(o.settings);
  // layers in 16 bits beside those in 8 are padded as well: TEGroupedMLP and the dispatcher ask for the recipe alone
  const bool narrow = o.settings.fp8 != Fp8Recipe::none, routed_padded = narrow && o.settings.router_padding;
  s.routed = reached ? axis::C : routed_padded ? axis::M : s.tokens * Dim(f.experts_per_token);
  const bool uneven = o.settings.expert_imbalance > 1 && o.expert > 1;
  s.arrived = reached || uneven ? axis::C : s.routed;
  s.rows = s.arrived * Dim(o.expert_tensor);
  s.copied = narrow && !routed_padded;
  s.padded_rows = s.copied ? axis::M : s.rows;
  s.experts = f.experts;
  s.local = f.experts / o.expert;
  s.top = f.experts_per_token;
  s.width = f.expert_width / o.expert_tensor;
  s.hidden = a.hidden;
  s.gated = f.experts_gated;
  s.biases = f.expert_bias;
  s.fused = o.settings.activation_fusion;
  s.offset = adds_offset(o.settings);
  s.gathers = o.expert_tensor > 1;
  s.exchanges = o.expert > 1;
  return s;
}

std::int64_t padded_rows(const FeedForward& f, const Megatron& m, const Layout& l, std::int64_t tokens) {
  if (m.fp8 == Fp8Recipe::none) return 1;
  const std::int64_t sent = tokens * f.experts_per_token;
  if (m.router_padding) return sent + half_a_unit(m) * f.experts;  // every expert's part of this rank's rows
  const std::int64_t uneven = arriving_rows(f, m, l.expert, tokens);
  return (uneven > 1 ? uneven : sent) * l.expert_tensor + half_a_unit(m) * (f.experts / l.expert);
}

std::int64_t arriving_rows(const FeedForward& f, const Megatron& m, std::int64_t expert_ranks, std::int64_t tokens) {
  const double sent = static_cast<double>(tokens * f.experts_per_token);
  const std::int64_t padding = m.fp8 != Fp8Recipe::none && m.router_padding ? half_a_unit(m) * f.experts : 0;
  if (capacity_is_reached(m))  // get_capacity
    return f.experts * static_cast<std::int64_t>(std::ceil(sent / static_cast<double>(f.experts) * m.expert_capacity));
  if (m.expert_imbalance > 1 && expert_ranks > 1)
    return static_cast<std::int64_t>(std::llround(sent * m.expert_imbalance)) + padding;
  return 1;
}

/// MoELayer.forward's own frame: what was permuted and what was exchanged stay names of it until the tokens are put together
/// again.
Tensor dispatch_megatron(Eager& g, const RoutedSizes& s, const ChunkOptions& o, const Tensor& x, Tensor probabilities,
                         const std::function<Tensor(const RoutedRows&)>& experts, const BesideExchange& beside) {
  if (beside.gather) beside.gather();
  const Permuted sent = permute_megatron(g, s, {s.tokens, s.routed, s.experts}, o, x, std::move(probabilities));
  const RoutedRows arrived = s.exchanges ? moved(g, sent.rows, s.arrived, s.hidden, {}, "exchanged") : sent.rows;
  if (beside.first) beside.first();
  Tensor output;
  {
    RoutedRows local = s.gathers ? moved(g, arrived, s.rows, s.hidden, {}, "gathered") : arrived;
    if (s.local > 1) local = moved(g, local, s.rows, s.hidden, sort_map(g, s, o, "sort_map"), "sorted");
    Tensor computed = experts(local);
    output = computed;
    if (s.local > 1) {
      const Maps order = sort_map(g, s, o, "restore_map");
      Tensor restored = moved_rows(g, computed, computed.shape, order, DType::bf16, "restored");
      output = std::move(restored);
    }
    if (s.gathers) {  // in the router's format
      const DType format = o.settings.router;
      Tensor wide = to(g, output, format, "scatter_input");
      Tensor scattered = moved_rows(g, wide, {s.arrived, Dim(s.hidden)}, {}, format, "scattered");
      wide.reset();
      output = to(g, std::move(scattered), DType::bf16, "scattered_cast");
    }
  }
  // from megatron-core 0.18 on, whose linear attention this is, the second product runs inside of token_combine
  Tensor sent_back = o.delta_chunks > 0 && !o.of_slime ? output : Tensor();
  if (s.exchanges) output = moved_rows(g, output, {s.routed, Dim(s.hidden)}, {}, DType::bf16, "combined");
  if (beside.second) beside.second();
  sent_back.reset();
  Tensor unpermuted = moved_rows(g, output, x.shape, {sent.map}, DType::bf16, "unpermuted");
  return beside.result ? add_in_place(g, unpermuted, beside.result()) : unpermuted;
}

}  // namespace oomplan
