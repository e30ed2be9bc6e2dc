#include "inference/rank_share.hpp"

#include "inference/server.hpp"

namespace oomplan {

RankShare share_of(const ServerModel& m, const ServerFacts& f, const ServerPoint& at) {
  RankShare out;
  out.expert = at.expert;
  if (m.engine == EngineKind::vllm) {
    out.tensor = at.tensor;
    if (!m.moe || at.attention_data <= 1) return out;
    out.data = at.attention_data;
    out.all = at.tensor * at.attention_data;
    // each tensor-parallel rank sends a part of the tokens to the experts, and the shared ones see only that part
    if (f.experts_split_tokens && at.expert > 1) out.shared = 1;
    return out;
  }
  out.data = at.attention_data;
  out.tensor = std::max<std::int64_t>(1, at.tensor / at.attention_data);
  out.all = out.shared = at.tensor;
  if (at.deepep) out.shared = 1;  // tokens stay with their rank, which has shared experts whole
  out.dense = at.whole_dense ? 1 : at.tensor;
  out.head = at.head_by_attention ? out.tensor : at.tensor;
  out.table = at.attention_data > 1 && f.attention_data_repeats_embedding ? 1 : out.tensor;
  return out;
}

}  // namespace oomplan
