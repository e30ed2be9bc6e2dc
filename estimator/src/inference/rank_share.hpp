// How one rank's part of a layer is cut: attention, dense blocks, experts and head each by ranks of their own. Internal to
// inference/.
//
// vLLM: every data-parallel rank has attention and dense blocks cut by tensor parallelism alone; the experts are divided over all
// ranks of all data-parallel groups, by width or, with expert parallelism, by number
// (vllm/model_executor/layers/fused_moe/config.py FusedMoEParallelConfig.make, 0.9.2 to August 2026).
// SGLang: data-parallel attention cuts the tensor-parallel group in groups, each with attention of its own; dense blocks and
// experts stay divided over the whole group (sglang/srt/layers/dp_attention.py, 0.4.6 to 0.5.18).
#pragma once
#include <algorithm>
#include <cstdint>

#include "inference/server_facts.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

struct ServerPoint;

struct RankShare {
  std::int64_t tensor = 1;  ///< ranks that attention is divided over
  std::int64_t expert = 1;  ///< ranks that the experts' numbers are divided over
  std::int64_t all = 0;     ///< ranks that the experts are divided over, by number and width; 0: as attention
  std::int64_t dense = 0;   ///< ranks that dense blocks are divided over; 0: as attention
  std::int64_t shared = 0;  ///< ranks that shared experts are divided over; 0: as attention
  std::int64_t head = 0;    ///< ranks that the head is divided over; 0: as attention
  std::int64_t table = 0;   ///< ranks that the embedding is divided over; 0: as attention
  std::int64_t data = 1;    ///< groups whose tokens meet in the experts
  static std::int64_t ranks(std::int64_t of, std::int64_t otherwise) { return of > 0 ? of : otherwise; }
  std::int64_t expert_width_parts() const { return std::max<std::int64_t>(1, ranks(all, tensor) / expert); }
};

RankShare share_of(const ServerModel&, const ServerFacts&, const ServerPoint&);

}  // namespace oomplan
