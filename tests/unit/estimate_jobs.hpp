// Jobs for tests of estimates, searches and advice: the examples, and a matrix of what jobs can be. All as texts that `read`
// takes.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

struct NamedJob {
  std::string name, text;
};

inline Job job_of(const std::string& text, std::vector<std::string> overrides = {}) {
  return read({text, "job.yaml", {}, std::move(overrides)}).job;
}

inline std::vector<NamedJob> example_jobs() {
  std::vector<NamedJob> out;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(OOMPLAN_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() != ".yaml") continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    out.push_back({entry.path().filename().string(), text.str()});
  }
  std::sort(out.begin(), out.end(), [](const NamedJob& a, const NamedJob& b) { return a.name < b.name; });
  return out;
}

/// Small models, so that a written program has few events; every way in which roles, processes and turns can meet.
inline std::vector<NamedJob> job_matrix() {
  const std::string head = "oomplan: 1\nmodel: qwen2.5-0.5b\nprompt_tokens: 512\nresponse_tokens: 1k\n";
  const std::string areal = head + "framework: areal 1.0.4\n", verl = head + "framework: verl 0.9.0\n";
  const std::string sglang = "rollout: {engine: sglang 0.5.10, layout: d2, mem_fraction_static: 0.5, concurrency: 64}\n";
  const std::string vllm = "rollout: {engine: vllm 0.11.0, layout: d2, gpu_memory_utilization: 0.5, concurrency: 64";
  const std::string actor = "actor: {engine: fsdp2, layout: d2, tokens_per_micro_batch: 4k, micro_batches: 4";
  const std::string beside = "actor: {beside: rollout, layout: d2, tokens_per_micro_batch: 4k, micro_batches: 4";
  const std::string sft =
      "oomplan: 1\nframework: torch\ngpus: 2 x A100-80GB\nmodel: qwen2.5-0.5b\ntrainer: {layout: d2, precision: {storage: fp32, "
      "compute: bf16}, sequence_tokens: 2k, sequences_per_micro_batch: 2";
  return {
      {"areal, apart, nccl", areal + "gpus: 4 x H100-80GB\n" + sglang + actor + "}\nsync: {by: nccl, bucket: 64MiB}\n"},
      {"areal, apart, disk", areal + "gpus: 4 x H100-80GB\n" + sglang + actor + "}\nsync: {by: disk}\n"},
      {"areal, LoRA, disk",
       areal + "gpus: 4 x H100-80GB\n" +
           "rollout: {engine: sglang 0.5.10, layout: d2, mem_fraction_static: 0.5, concurrency: 64, lora: {slots: "
           "8, rank: 16}}\n" +
           actor + ", lora: {rank: 16}}\nsync: {by: disk}\n"},
      {"areal, LoRA, nccl",
       areal + "gpus: 4 x H100-80GB\n" + vllm + ", lora: {slots: 8, rank: 32}}\n" + actor +
           ", lora: {rank: 16, targets: [q_proj, v_proj], format: storage}, precision: {storage: fp32}}\nsync: "
           "{by: nccl, bucket: 1MiB}\n"},
      {"agilerl",
       head + "framework: agilerl 2.8\ngpus: 1 x A100-40GB\nsequences_per_step: 8\nsamples_per_prompt: 8\n" +
           "rollout: {engine: vllm 0.23.0, gpu_memory_utilization: 0.3, concurrency: 8}\n" +
           "actor: {engine: single, beside: rollout, sequences_per_micro_batch: 2, sequence_tokens: 1536, lora: {rank: 16}}\n"},
      {"areal, ref in a process of its own",
       areal + "gpus: 4 x H100-80GB\n" + sglang + actor + "}\nref: {beside: actor}\nsync: {by: nccl, bucket: 64MiB}\n"},
      {"areal, critic", areal + "gpus: 4 x H100-80GB\n" + sglang + actor +
                            "}\ncritic: {beside: actor, micro_batches: 2}\nsync: {by: nccl, bucket: 64MiB}\n"},
      {"areal, efficient load, fp32",
       areal + "gpus: 4 x H100-80GB\n" + sglang + actor +
           ", memory_efficient_load: true, precision: {storage: fp32}, recompute: none}\nsync: {by: nccl}\n"},
      {"areal, Ulysses, deferred gradients", areal + "gpus: 4 x H100-80GB\n" + sglang +
                                                 "actor: {layout: d1c2, tokens_per_micro_batch: 4k, micro_batches: 3, "
                                                 "gradient_sync_every_micro_batch: false, recompute: none}\nsync: {by: nccl}\n"},
      {"areal, cpu offload policy",
       areal + "gpus: 4 x H100-80GB\n" + sglang + actor + ", cpu_offload_policy: true}\nsync: {by: disk}\n"},
      {"areal, one GPU", areal + "gpus: 1 x H100-80GB\nrollout: {engine: sglang 0.5.10, layout: d1, mem_fraction_static: 0.4, "
                                 "concurrency: 16}\nactor: {beside: rollout, layout: d1, tokens_per_micro_batch: 4k, "
                                 "micro_batches: 3}\nref: {beside: actor}\nsync: {by: disk}\n"},
      {"verl, apart", verl + "gpus: 4 x H100-80GB\n" + vllm + "}\n" + actor + "}\nsync: {by: nccl, bucket: 64MiB}\n"},
      {"verl, shared, sleep 1",
       verl + "gpus: 2 x H100-80GB\n" + vllm + ", sleep: 1}\n" + beside +
           ", offload: [parameters, optimizer]}\nref: {beside: actor}\nsync: {by: ipc, bucket: 64MiB}\n"},
      {"verl, shared, sleep 2", verl + "gpus: 2 x H100-80GB\n" + vllm + ", sleep: 2}\n" + beside +
                                    ", offload: [optimizer]}\nsync: {by: ipc, bucket: 64MiB}\n"},
      {"verl, shared, never asleep",
       verl + "gpus: 2 x H100-80GB\n" + vllm + ", sleep: 0}\n" + beside + "}\nsync: {by: ipc, bucket: 64MiB}\n"},
      {"verl, ref in the actor's process",
       verl + "gpus: 2 x H100-80GB\n" + vllm + ", sleep: 1}\n" + beside +
           "}\nref: {beside: actor, in_process: true, cpu_offload_policy: false, offload: [parameters]}\nsync: {by: ipc}\n"},
      {"verl, critic, tensor parallel server",
       verl + "gpus: 2 x H100-80GB\nrollout: {engine: vllm 0.11.0, layout: t2, gpu_memory_utilization: 0.5, sleep: 1}\n" +
           beside + "}\ncritic: {beside: actor, micro_batches: 2, offload: [parameters, optimizer]}\nsync: {by: ipc}\n"},
      {"sft, recompute", sft + ", recompute: full, micro_batches: 3}\n"},
      {"sft, one micro-batch", sft + ", recompute: none, micro_batches: 1}\n"},
      {"sft, DPO beside a reference model", sft + ", head: trl_dpo, reference: model, root_reshard: true, micro_batches: 3}\n"},
      {"sft, one device",
       "oomplan: 1\nframework: torch\ngpus: 1 x A100-80GB\nmodel: qwen2.5-0.5b\ntrainer: {engine: single, layout: d1, precision: "
       "{storage: bf16}, sequence_tokens: 2k, sequences_per_micro_batch: 2, micro_batches: 3}\n"},
      {"agilerl, an actor alone",
       head + "framework: agilerl 2.8\ngpus: 1 x A100-40GB\nsequences_per_step: 8\n" +
           "actor: {engine: single, sequences_per_micro_batch: 2, sequence_tokens: 1536, lora: {rank: 16}}\n"},
      {"sft, gradients kept on one device",
       "oomplan: 1\nframework: torch\ngpus: 1 x A100-80GB\nmodel: qwen2.5-0.5b\ntrainer: {engine: single, precision: {storage: "
       "bf16}, sequence_tokens: 2k, sequences_per_micro_batch: 2, keep_gradients: true, micro_batches: 4}\n"},
      {"sft, gradients kept under DDP",
       "oomplan: 1\nframework: torch\ngpus: 2 x A100-80GB\nmodel: qwen2.5-0.5b\ntrainer: {engine: ddp, precision: {storage: "
       "bf16}, "
       "sequence_tokens: 2k, sequences_per_micro_batch: 2, keep_gradients: true, gradient_sync_every_micro_batch: false, "
       "micro_batches: 2}\n"},
      {"sft, adapters beside Liger's norms",
       "oomplan: 1\nframework: torch\ngpus: 1 x A100-80GB\nmodel: qwen2.5-0.5b\ntrainer: {engine: single, precision: {storage: "
       "bf16}, sequence_tokens: 2k, sequences_per_micro_batch: 2, liger: [rope, rms_norm, swiglu], lora: {rank: 16}}\n"},
      {"areal, megatron, stages",
       "oomplan: 1\nframework: areal 1.0.4\ngpus: 16 x H100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: "
       "1k\nsequences_per_step: 64\nrollout: {engine: sglang 0.5.10, layout: d8}\nactor: {engine: megatron, layout: d2p2t2, "
       "tokens_per_micro_batch: 4k}\nref: {engine: megatron, layout: d2p2t2, beside: actor, tokens_per_micro_batch: 4k}\n"},
      {"areal, megatron, experts, offloaded",
       "oomplan: 1\nframework: areal 1.0.4\ngpus: 8 x H100-80GB\nmodel: Qwen/Qwen3-30B-A3B\nprompt_tokens: 1k\nresponse_tokens: "
       "1k\nsequences_per_step: 64\nrollout: {engine: sglang 0.5.10, layout: d2t4}\nactor: {engine: megatron, layout: "
       "attn:d4t2|ffn:d1e8, beside: rollout, recompute: full, offload: [parameters, optimizer], tokens_per_micro_batch: 4k}\n"},
      {"verl, megatron",
       "oomplan: 1\nframework: verl 0.7\ngpus: 8 x H100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: "
       "1k\nsequences_per_step: 64\nrollout: {engine: vllm 0.11.0, layout: d4t2, gpu_memory_utilization: 0.4}\nactor: {engine: "
       "megatron, beside: rollout, layout: d4t2, entropy_loss: true, tokens_per_micro_batch: 8k}\ncritic: {engine: megatron, "
       "beside: rollout, layout: d8, tokens_per_micro_batch: 8k}\n"},
      {"verl, megatron, offloaded",
       "oomplan: 1\nframework: verl 0.7\ngpus: 8 x H100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: "
       "1k\nsequences_per_step: 64\nrollout: {engine: vllm 0.11.0, layout: d4t2, gpu_memory_utilization: 0.4}\nactor: {engine: "
       "megatron, beside: rollout, layout: d2p2t2, virtual_stages: 2, recompute: full, offload: [parameters, optimizer], "
       "tokens_per_micro_batch: 8k}\nref: {engine: megatron, in_process: true, beside: actor, layout: d2p2t2, offload: "
       "[parameters], tokens_per_micro_batch: 8k}\n"},
      {"torch, megatron, slime's loss",
       "oomplan: 1\nframework: torch\ngpus: 8 x H100-80GB\nmodel: qwen2.5-1.5b\ntrainer: {engine: megatron, layout: d2p2t2, "
       "cross_entropy: slime, log_probs_chunk_size: 1k, rollout_temperature: 0.8, entropy_loss: true, tokens_per_micro_batch: "
       "8k, micro_batches: 4}\n"},
      {"torch, megatron, slime's loss computed again",
       "oomplan: 1\nframework: torch\ngpus: 8 x H100-80GB\nmodel: qwen2.5-1.5b\ntrainer: {engine: megatron, layout: d4t2, "
       "cross_entropy: slime, log_probs_chunk_size: 1k, recompute_loss_function: true, tokens_per_micro_batch: 8k, "
       "micro_batches: 2}\n"},
      {"serving, vllm",
       "oomplan: 1\ngpus: 2 x H100-80GB\nmodel: qwen2.5-7b\nserver: {engine: vllm 0.11.0, layout: t2, gpu_memory_utilization: "
       "0.9, max_model_len: 8k, concurrency: 32}\n"},
      {"serving, sglang",
       "oomplan: 1\ngpus: 1 x H100-80GB\nmodel: qwen2.5-7b\nserver: {engine: sglang 0.5.10, layout: d1, mem_fraction_static: "
       "0.85, concurrency: 32}\n"},
      {"serving, stages",
       "oomplan: 1\ngpus: 4 x H100-80GB\nmodel: qwen2.5-7b\nserver: {engine: vllm 0.11.0, layout: t2p2, gpu_memory_utilization: "
       "0.9, max_model_len: 8k}\n"},
  };
}

inline std::vector<NamedJob> all_jobs() {
  auto out = example_jobs();
  for (auto& j : job_matrix()) out.push_back(std::move(j));
  return out;
}

inline void check_same(const Usage& a, const Usage& b) {
  CHECK(a.allocated == b.allocated);
  CHECK(a.reserved == b.reserved);
  CHECK(a.device == b.device);
  CHECK(a.capacity_needed == b.capacity_needed);
  CHECK(a.by_category == b.by_category);
}
inline void check_same(const GpuAnswer& a, const GpuAnswer& b) {
  CHECK(a.ranks == b.ranks);
  CHECK(a.gpus == b.gpus);
  CHECK(a.gpu == b.gpu);
  CHECK(a.usable == b.usable);
  CHECK(a.worst == b.worst);
  REQUIRE(a.phases.size() == b.phases.size());
  for (std::size_t i = 0; i < a.phases.size(); ++i) {
    INFO(a.phases[i].phase);
    CHECK(a.phases[i].phase == b.phases[i].phase);
    CHECK(a.phases[i].bound == b.phases[i].bound);
    CHECK(a.phases[i].allocator_retries == b.phases[i].allocator_retries);
    check_same(a.phases[i].usage, b.phases[i].usage);
  }
}
/// Equal in every figure.
inline void check_same(const Estimate& a, const Estimate& b) {
  REQUIRE(a.gpus.size() == b.gpus.size());
  for (std::size_t i = 0; i < a.gpus.size(); ++i) check_same(a.gpus[i], b.gpus[i]);
  REQUIRE(a.hosts.size() == b.hosts.size());
  for (std::size_t i = 0; i < a.hosts.size(); ++i) {
    CHECK(a.hosts[i].nodes == b.hosts[i].nodes);
    CHECK(a.hosts[i].usable == b.hosts[i].usable);
    CHECK(a.hosts[i].phases == b.hosts[i].phases);
  }
  REQUIRE(a.servers.size() == b.servers.size());
  for (std::size_t i = 0; i < a.servers.size(); ++i) {
    CHECK(a.servers[i].role == b.servers[i].role);
    CHECK(a.servers[i].kv_tokens == b.servers[i].kv_tokens);
    CHECK(a.servers[i].kv_pool == b.servers[i].kv_pool);
    CHECK(a.servers[i].refused == b.servers[i].refused);
    CHECK(a.servers[i].shortage == b.servers[i].shortage);
  }
}
/// How far the fullest GPU is above what it has.
inline Bytes excess_of(const Estimate& e) {
  Bytes most = -(Bytes{1} << 60);
  for (const auto& g : e.gpus)
    if (!g.phases.empty()) most = std::max(most, g.phases[g.worst].usage.capacity_needed - g.usable);
  return most;
}

}  // namespace oomplan
