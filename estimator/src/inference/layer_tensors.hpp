// One layer's weights on one rank, tensor by tensor, as the engine allocates them. Internal to inference/.
//
// Legend: E experts, I width of one on a rank, h hidden.
#pragma once
#include <array>
#include <cstddef>
#include <span>

#include "inference/rank_share.hpp"
#include "inference/server_facts.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// The routed experts of one rank.
struct ExpertTensors {
  Bytes up = 0, down = 0;                ///< elements of [E, (2) I, h] and [E, h, I]
  Bytes up_scales = 0, down_scales = 0;  ///< of quantised ones
  Bytes biases = 0;
  Bytes left = 0;  ///< scales as they were loaded, which the kernel's own ones did not replace
  Bytes all() const { return up + down + up_scales + down_scales + biases + left; }
};

/// The most that one rank has: where their number does not divide, the first ranks have one more (vllm/model_executor/layers/
/// fused_moe/layer.py determine_expert_map, October 2025), or the last one all that is left over (0.9.2).
std::int64_t experts_of_rank(const ServerLayer&, const ServerFacts&, const RankShare&);

/// mxfp4: padded as the kernel of this engine, version and GPU wants them.
ExpertTensors expert_tensors(const ServerModel&, const ServerLayer&, const ServerFacts&, const RankShare&);

/// In order of allocation; zeros are left out.
struct LayerTensors {
  std::array<Bytes, 2 * kFusedCount + 4> bytes{};
  std::size_t count = 0;
  void add(Bytes tensor) {
    if (tensor > 0) bytes[count++] = tensor;
  }
  std::span<const Bytes> all() const { return {bytes.data(), count}; }
};
LayerTensors layer_tensors(const ServerModel&, const ServerLayer&, const ServerFacts&, const RankShare&);

/// What replicas of the shared expert take beyond its share: SGLang 0.4.5 and 0.4.6 put it among the routed experts of DeepSeek
/// V3, once for every rank (sglang/srt/models/deepseek_v2.py determine_n_share_experts_fusion, 0.4.6).
Bytes shared_expert_replicas(const ServerModel&, const ServerLayer&, const ServerFacts&, const RankShare&);

}  // namespace oomplan
