// MoELayer of Megatron-core in parts: router, dispatchers, experts.
//
// megatron/core/transformer/moe/{moe_layer,router,moe_utils,token_dispatcher,experts,shared_experts}.py, 0.16.1; permutation and
// grouped products are Transformer Engine's (pytorch/permutation.py, pytorch/module/grouped_linear.py, 2.11).
//
// Legend: T tokens of this rank, E experts, k experts a token, w width of an expert, h hidden. A rank sends `routed` rows to the
// ranks with the experts, gets `arrived` ones from them and, with what the ranks that split an expert have got, works on `rows`.
#pragma once
#include <functional>

#include "layers/megatron.hpp"

namespace oomplan {

struct RoutedSizes {
  Dim tokens, routed, arrived, rows;
  std::int64_t experts = 0, local = 0, top = 0, width = 0, hidden = 0;
  bool gathers = false;  ///< several ranks split an expert
  bool exchanges = false;
  bool gated = true;     ///< gate, up, down; otherwise up, down
  bool biases = false;   ///< of both products
  bool offset = true;    ///< without that kernel: what multiplies the gate is added to first (adds_offset)
  bool fused = true;     ///< a gated activation is one kernel with the probabilities
  bool padded = false;   ///< every expert has its capacity of rows, from every rank
  bool dropped = false;  ///< every expert has at most its capacity of rows
  bool copied = false;   ///< rows are copied to be padded for 8 bits, and what comes out is cut again
  Dim padded_rows;       ///< `rows` with what pads them
};
/// Every expert has its capacity of rows: it is padded to it, or evenly routed tokens are more.
bool capacity_is_reached(const Megatron&);
/// Where the rows do not follow from the tokens alone, `arrived` is axis::C, and with a capacity that is reached `routed` too.
/// Rows that are padded for 8 bits, by whomever, are axis::M.
RoutedSizes routed_sizes(const Architecture&, const FeedForward&, const ChunkOptions&);
/// The value of axis::M for T tokens: experts' rows are multiples of 16, of 32 with mxfp8, and half a unit more than what comes
/// to an expert (megatron/core/fp8_utils.py: get_fp8_align_size).
std::int64_t padded_rows(const FeedForward&, const Megatron&, const Layout&, std::int64_t tokens);
/// The value of axis::C for T tokens; 1 where it is not used.
std::int64_t arriving_rows(const FeedForward&, const Megatron&, std::int64_t expert_ranks, std::int64_t tokens);

/// SharedExpertMLP.forward where nothing is exchanged beside it.
Tensor run_shared_experts(Eager&, const Architecture&, const FeedForward&, const ChunkOptions&, const Tensor& x);

/// TopKRouter.forward: probabilities [T, E], scattered.
Tensor route_megatron(Eager&, const FeedForward&, const ChunkOptions&, const RoutedSizes&, const Tensor& x);

/// Rows and their probabilities move together.
struct RoutedRows {
  Tensor tokens, weights;
};
/// Shared experts in parts that run beside the exchanges (moe_shared_expert_overlap); all empty without it. The gathering is
/// theirs, and the products are Transformer Engine's without communication: the first one saves its input whole.
struct BesideExchange {
  std::function<void()> gather;    ///< pre_forward_comm: before the permutation
  std::function<void()> first;     ///< linear_fc1_forward_and_act: behind the tokens' exchange
  std::function<void()> second;    ///< linear_fc2_forward and post_forward_comm: behind the exchange back
  std::function<Tensor()> result;  ///< get_output: added to the output in place
};

/// Dispatch, `experts`, and the way back. x: [S, B, h].
Tensor dispatch_megatron(Eager&, const RoutedSizes&, const ChunkOptions&, const Tensor& x, Tensor probabilities,
                         const std::function<Tensor(const RoutedRows&)>& experts, const BesideExchange& beside = {});

/// The same by MoEAllGatherTokenDispatcher.
Tensor gather_megatron(Eager&, const RoutedSizes&, const ChunkOptions&, const Tensor& x, Tensor probabilities,
                       const std::function<Tensor(const RoutedRows&)>& experts);
/// The same by MoEFlexTokenDispatcher with DeepEP (megatron_flex.hpp).
Tensor exchange_megatron(Eager&, const RoutedSizes&, const ChunkOptions&, const Tensor& x, Tensor probabilities,
                         const std::function<Tensor(const RoutedRows&)>& experts);
/// TEGroupedMLP or SequentialMLP.
Tensor run_megatron_experts(Eager&, const RoutedRows&, const RoutedSizes&, const ChunkOptions&);

/// moe_utils.permute: of `tokens`, by a map over `experts`, as many `rows`.
struct PermutedSizes {
  Dim tokens, rows;
  std::int64_t experts = 0;
};
struct Permuted {
  RoutedRows rows;
  Tensor map;  ///< of the way back
};
Permuted permute_megatron(Eager&, const RoutedSizes&, const PermutedSizes&, const ChunkOptions&, const Tensor& x,
                          Tensor probabilities);

/// Rows on their way: another shape. `maps` are kept for the way back, whose gradient is of x's shape.
Tensor moved_rows(Eager&, const Tensor& x, Shape shape, const std::vector<Tensor>& maps, DType, const std::string& name);

}  // namespace oomplan
