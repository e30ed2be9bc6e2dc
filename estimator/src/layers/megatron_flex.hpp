// MoEFlexTokenDispatcher of Megatron-core with DeepEP: a token goes once to every rank that has one of its experts.
//
// megatron-core 0.16.1, megatron/core/transformer/moe/{token_dispatcher,fused_a2a}.py (0.13 to 0.17 are alike); DeepEP 1.2.1,
// deep_ep/buffer.py and csrc/deep_ep.cpp. Legend as in megatron_moe.hpp; W ranks that share or split the experts, N machines of
// eight of them, K entries of a token's list of experts, D tokens that come to a rank.
#pragma once
#include "job/deepep.hpp"
#include "layers/megatron_moe.hpp"

namespace oomplan {

struct FlexSizes {
  std::int64_t ranks = 1;     ///< W
  std::int64_t machines = 1;  ///< N
  std::int64_t channels = 1;
  std::int64_t chosen = 1;  ///< K: every expert counts once for each rank that has a part of it
};
FlexSizes flex_sizes(std::int64_t top, const Megatron&, std::int64_t expert, std::int64_t expert_tensor);

/// The part of tokens that has one of its experts among the first `local` ones, where every choice is as likely as another:
/// 1 - C(E - local, k) / C(E, k). Of a router with groups, over all equally likely choices of groups.
double share_with_expert(const FeedForward&, std::int64_t local);

/// Values of axis::D and axis::R for T tokens of every rank: W T share_with_expert(experts of a rank), and of the machines'
/// ranks that have this one's number N T share_with_expert(experts of a machine). `expert_imbalance` is a factor of both, up to
/// all tokens.
struct FlexTokens {
  std::int64_t received = 1, remote = 1;
};
FlexTokens flex_tokens(const FeedForward&, const Megatron&, const Layout&, std::int64_t tokens);

/// What a dispatcher keeps of its last tokens: `always` what no graph has, `maps` what a graph in flight has as well.
struct KeptByFlex {
  Bytes always = 0, maps = 0;
};
/// `rows`: of the experts. `graph`: the probabilities lead back into a graph, whose exchange keeps its handle.
KeptByFlex kept_by_flex(const FeedForward&, const Megatron&, const Layout&, const TokenCounts&, std::int64_t rows, bool graph);

}  // namespace oomplan
