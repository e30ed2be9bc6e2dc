// What DeepEP itself can do (deepseek-ai/DeepEP 1.2.1).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace oomplan {

/// Ranks of one machine, which reach each other over NVLink (csrc/kernels/configs.cuh: NUM_MAX_NVL_PEERS).
inline constexpr std::int64_t kDeepEpPeers = 8;
/// A warp has a token's list of experts (csrc/kernels/intranode.cu: num_topk <= 32).
inline constexpr std::int64_t kDeepEpMostChosen = 32;
/// Ranks of a group for which there are kernels and a configuration (csrc/kernels/launch.cuh: SWITCH_RANKS, SWITCH_RDMA_RANKS;
/// deep_ep/buffer.py: get_dispatch_config).
inline constexpr std::array<std::int64_t, 9> kDeepEpRanks{2, 4, 8, 16, 32, 64, 128, 144, 160};
constexpr bool deepep_serves(std::int64_t ranks) { return std::ranges::find(kDeepEpRanks, ranks) != kDeepEpRanks.end(); }

}  // namespace oomplan
