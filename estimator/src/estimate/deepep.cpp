#include "estimate/deepep.hpp"

#include <algorithm>
#include <string>

#include "layers/megatron_flex.hpp"

namespace oomplan {
namespace {

constexpr std::string_view kDeepEpRelease = "1.2.1";
constexpr Bytes kCudaPage = 2 * kMiB;  ///< of what cudaMalloc hands out

class DeepEpFacts {
 public:
  DeepEpFacts(const Catalog& catalog, std::int64_t ranks) : facts_(catalog.facts()) {
    query_.version = kDeepEpRelease;
    query_.conditions["ranks"] = std::to_string(ranks);
  }
  std::int64_t operator()(std::string_view name) const {
    return static_cast<std::int64_t>(facts_.find("deepep", name, query_).value);
  }

 private:
  const Facts& facts_;
  FactQuery query_;
};

/// The library's own part lies in the first granule, where the buffer goes too if there is room; otherwise granules are added.
Bytes symmetric_heap(Bytes buffer, const DeepEpFacts& fact) {
  const Bytes granule = fact("nvshmem_granule_bytes"), alignment = fact("alignment_bytes");
  const bool fits = fact("nvshmem_own_bytes") + buffer + alignment <= granule;
  return granule + (fits ? 0 : round_up(buffer + alignment, granule));
}

}  // namespace

DeepEpBuffers deepep_buffers(std::int64_t hidden, std::int64_t ranks, std::int64_t sms, const Catalog& catalog) {
  const DeepEpFacts fact(catalog, ranks);
  const std::int64_t channels = sms / 2, machines = ceil_div(ranks, kDeepEpPeers), here = std::min(ranks, kDeepEpPeers);
  // a slot has room for a token, where it comes from, and lists and scales of the greatest length
  const Bytes lists = fact("most_chosen") * (row(DType::int64).bits + row(DType::fp32).bits) / 8;
  const Bytes slot =
      bytes_of(hidden, DType::bf16) + fact("source_meta_bytes") + lists + bytes_of(fact("most_scales"), DType::fp32);
  DeepEpBuffers out;
  const Bytes counters = bytes_of(2 * machines + 3, DType::int32);
  out.nvl = channels * here * (counters + fact("nvl_slots") * slot);
  out.nvl = round_up(out.nvl, fact("alignment_bytes"));
  if (machines == 1) return out;
  const Bytes heads = bytes_of(2 * kDeepEpPeers + 2, DType::int32), tail = 16;  // an int4 behind every token
  out.rdma = 2 * channels * machines * (heads + fact("rdma_slots") * (slot + tail));
  out.rdma = round_up(out.rdma, fact("alignment_bytes"));
  return out;
}

Bytes deepep_bytes(const Role& role, const Catalog& catalog) {
  const Trainer& t = role.trainer;
  const std::int64_t ranks = t.layout.expert * t.layout.expert_tensor;
  if (role.engine != EngineKind::megatron || t.megatron.dispatcher != TokenDispatcher::flex || !deepep_serves(ranks)) return 0;
  const auto has_experts = [](const LayerRun& run) { return run.layer.feed_forward.kind == FeedForwardKind::moe; };
  if (role.architecture == nullptr || std::ranges::none_of(role.architecture->runs, has_experts)) return 0;
  const DeepEpFacts fact(catalog, ranks);
  const DeepEpBuffers buffers = deepep_buffers(role.architecture->hidden, ranks, t.megatron.deepep_sms, catalog);
  const Bytes here = round_up(buffers.nvl + fact("pointer_bytes"), kCudaPage) + fact("workspace_bytes");
  if (buffers.rdma == 0) return here;
  const std::int64_t machines = ceil_div(ranks, kDeepEpPeers);
  return here + symmetric_heap(buffers.rdma, fact) + machines * fact("queue_bytes");
}

}  // namespace oomplan
