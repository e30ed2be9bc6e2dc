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

namespace {

/// What the kernels for decoding send and receive, twice each, for 128 tokens of every rank and every expert.
Bytes low_latency_bytes(std::int64_t hidden, std::int64_t experts, const DeepEpFacts& fact) {
  constexpr std::int64_t kTokens = 128;  // SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
  const Bytes scales = hidden / 128 * 4, control = 16;
  const Bytes dispatched = control + std::max(bytes_of(hidden, DType::bf16), hidden + scales);
  const Bytes combined = bytes_of(hidden, DType::bf16) + scales;
  const Bytes sent = std::max(kTokens * dispatched, experts * kTokens * combined);
  const Bytes received = experts * kTokens * std::max(dispatched, combined);
  const Bytes alignment = fact("alignment_bytes"), signals = round_up(bytes_of(experts, DType::int32), alignment);
  return ((2 * (sent + received + signals)) / alignment + 1) * alignment;
}

std::int64_t most_experts(const Architecture& a) {
  std::int64_t out = 0;
  for (const LayerRun& run : a.runs) out = std::max(out, run.layer.feed_forward.experts);
  return out;
}

/// A cudaMalloc and the workspace, and the symmetric heap with its queues where there is one.
Bytes held_bytes(const DeepEpBuffers& buffers, std::int64_t ranks, const DeepEpFacts& fact) {
  const Bytes here = round_up(buffers.nvl + fact("pointer_bytes"), kCudaPage) + fact("workspace_bytes");
  return buffers.rdma == 0 ? here
                           : here + symmetric_heap(buffers.rdma, fact) + ceil_div(ranks, kDeepEpPeers) * fact("queue_bytes");
}

}  // namespace

Bytes server_deepep_bytes(const Role& role, const Catalog& catalog) {
  const Server& s = role.server;
  if (s.exchange == ExpertExchange::collectives || role.architecture == nullptr || !deepep_serves(s.layout.expert)) return 0;
  constexpr std::int64_t kSms = 20;  // Buffer.num_sms
  const DeepEpFacts fact(catalog, s.layout.expert);
  DeepEpBuffers buffers;
  if (s.exchange != ExpertExchange::deepep_low_latency)
    buffers = deepep_buffers(role.architecture->hidden, s.layout.expert, kSms, catalog);
  if (s.exchange != ExpertExchange::deepep_normal)
    buffers.rdma = std::max(
        buffers.rdma, low_latency_bytes(role.architecture->hidden, most_experts(*role.architecture) + s.redundant_experts, fact));
  return held_bytes(buffers, s.layout.expert, fact);
}

Bytes deepep_bytes(const Role& role, const Catalog& catalog) {
  const Trainer& t = role.trainer;
  const std::int64_t ranks = t.layout.expert * t.layout.expert_tensor;
  if (role.engine != EngineKind::megatron || t.megatron.dispatcher != TokenDispatcher::flex || !deepep_serves(ranks)) return 0;
  const auto has_experts = [](const LayerRun& run) { return run.layer.feed_forward.kind == FeedForwardKind::moe; };
  if (role.architecture == nullptr || std::ranges::none_of(role.architecture->runs, has_experts)) return 0;
  const DeepEpFacts fact(catalog, ranks);
  const DeepEpBuffers buffers = deepep_buffers(role.architecture->hidden, ranks, t.megatron.deepep_sms, catalog);
  return held_bytes(buffers, ranks, fact);
}

}  // namespace oomplan
