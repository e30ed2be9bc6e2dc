// MoEAllGatherTokenDispatcher of Megatron-core: every rank gets all tokens of the ranks that share the experts out, picks those
// of its own experts, and gives back sums over all of them.
#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// The gathered tokens lie in the buffer that output layers gather into, too: nothing is allocated.
Tensor gathered_tokens(Eager& g, const Tensor& x, const Shape& all) {
  Tensor y = x.alias(all);
  const Shape before = x.shape;
  g.record(y, "GatherFromSequenceParallelRegion", {&x},
           [&g, before](Gradients) { return Gradients{gradient(g, "gathered_backward.scattered", before, DType::bf16)}; });
  return y;
}

/// moe_utils.permute over this rank's experts, and the probabilities that belong to the rows.
struct Picked {
  RoutedRows rows;
  Tensor map;  ///< of the way back
};
Picked picked(Eager& g, const RoutedSizes& s, const ChunkOptions& o, const Tensor& tokens, const Tensor& probabilities,
              const Dim& all) {
  Picked out;
  const Shape sides{Dim(s.local), all};
  {
    const Tensor chosen = g.make("permutation.chosen", sides, DType::boolean);
    out.map = o.settings.permute_fusion ? g.make("permutation_map", {all, Dim(2 * s.local + 1)}, DType::int32)
                                        : g.make("permutation.indices", {s.rows}, DType::int64);
    out.rows.tokens = moved_rows(g, tokens, {s.rows, Dim(s.hidden)}, {out.map}, DType::bf16, "permuted");
  }
  const Tensor turned = g.make("permutation.probabilities", sides, probabilities.dtype);
  const Tensor mask = g.make("permutation.mask", sides, DType::boolean);
  out.rows.weights = moved_rows(g, probabilities, {s.rows}, {turned, mask}, probabilities.dtype, "permuted.probabilities");
  return out;
}

}  // namespace

Tensor gather_megatron(Eager& g, const RoutedSizes& s, const ChunkOptions& o, const Tensor& x, Tensor probabilities,
                       const std::function<Tensor(const RoutedRows&)>& experts) {
  const std::int64_t ranks = o.expert * o.expert_tensor;
  const Dim all = s.tokens * Dim(ranks);
  const DType format = probabilities.dtype;
  Tensor map = ranks > 1 ? g.make("gathered_map", {all, Dim(s.experts)}, DType::boolean) : Tensor();
  if (ranks > 1) probabilities = moved_rows(g, probabilities, {all, Dim(s.experts)}, {}, format, "gathered_probabilities");
  const Tensor tokens = ranks > 1 ? gathered_tokens(g, x, {all, Dim(s.hidden)}) : x;
  Tensor output;
  {
    Tensor local =
        s.exchanges ? moved_rows(g, probabilities, {all, Dim(s.local)}, {}, format, "local_probabilities") : probabilities;
    const Picked chosen = picked(g, s, o, tokens, local, all);
    local.reset();
    map.reset();
    const Tensor computed = experts(chosen.rows);
    output = moved_rows(g, computed, {all, Dim(s.hidden)}, {chosen.map}, DType::bf16, "unpermuted");
  }
  if (ranks > 1) {  // in the router's format
    Tensor wide = to(g, output, format, "scatter_input");
    Tensor scattered = moved_rows(g, wide, {s.tokens, Dim(s.hidden)}, {}, format, "scattered");
    wide.reset();
    output = to(g, std::move(scattered), DType::bf16, "scattered_cast");
  }
  Tensor placed = output.alias(x.shape);
  placed.grad_fn = output.grad_fn;
  placed.output = output.output;
  return placed;
}

}  // namespace oomplan
