// AReaL's keys of LoRA: what they become, and what the answer makes of them.
#include <doctest/doctest.h>

#include <oomplan/oomplan.hpp>

#include "job/knobs.hpp"

using namespace oomplan;

namespace {

/// A file of the release's own form for Qwen2.5-7B on 4 + 4 GPUs, with LoRA unless `keys` say otherwise.
std::string text(const std::string& engine, const std::string& keys = "") {
  return "cluster: {n_nodes: 1, n_gpus_per_node: 8}\n"
         "actor:\n  path: Qwen/Qwen2.5-7B-Instruct\n  backend: fsdp:d4\n  gradient_checkpointing: true\n"
         "  mb_spec: {max_tokens_per_mb: 16384}\n  optimizer: {type: adam}\n  use_lora: true\n  lora_rank: 16\n"
         "rollout: {backend: \"" +
         engine +
         ":d4\"}\ngconfig: {max_new_tokens: 1024, n_samples: 4}\n"
         "sglang: {model_path: \"${actor.path}\", mem_fraction_static: 0.8}\n"
         "vllm: {model: \"${actor.path}\", gpu_memory_utilization: 0.8}\n"
         "train_dataset: {path: gsm8k, type: rl, batch_size: 8, max_length: 1024}\n" +
         keys;
}
Source source(std::string file, std::vector<std::string> overrides = {}, std::string release = "1.0.4") {
  Source s;
  s.text = std::move(file);
  s.name = "job.yaml";
  s.framework_version = std::move(release);
  s.overrides = std::move(overrides);
  s.gpu = "H100-80GB";
  return s;
}
std::string refusal(const Source& s) {
  try {
    (void)estimate_quick(read(s).job);
  } catch (const InputError& e) {
    std::string out;
    for (const auto& p : e.problems) out += to_text(p) + "\n";
    return out;
  }
  return "";
}
Bytes most(const Estimate& e, std::string_view role, Category category) {
  Bytes out = 0;
  for (const auto& gpu : e.gpus)
    for (const auto& phase : gpu.phases)
      if (phase.role == role) out = std::max(out, phase.usage.by_category[static_cast<std::size_t>(category)]);
  return out;
}

// Qwen2.5-7B: 28 layers, h = 3584, K = 512, F = 18944. A pair beside q, k, v, o, gate, up and down.
constexpr Bytes kPairs = 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944));

}  // namespace

TEST_CASE("AReaL's LoRA becomes adapters of the storage format and slots of the server's own number") {
  const Job job = read(source(text("sglang"), {"+actor.weight_update_mode=disk"})).job;
  CHECK(get(job, "actor.lora.rank") == "16");
  CHECK(get(job, "actor.lora.alpha") == "16");
  CHECK(get(job, "actor.lora.targets") == "[all-linear]");
  CHECK(get(job, "actor.lora.format") == "storage");
  CHECK(get(job, "rollout.lora.slots") == "8");
  CHECK(get(job, "rollout.lora.rank") == "16");
  CHECK(get(job, "sync.by") == "disk");
  const Job vllm = read(source(text("vllm"), {"+vllm.max_loras=4", "+actor.target_modules=[q_proj,v_proj]"})).job;
  CHECK(get(vllm, "actor.lora.targets") == "[q_proj, v_proj]");
  CHECK(get(vllm, "rollout.lora.slots") == "4");
  CHECK(get(vllm, "sync.by") == "nccl");
}

TEST_CASE("before 1.0.0 the slots are those of AReaL's own keys, and 0.4's script sends through files") {
  std::string old = text("sglang");
  old.replace(old.find("  backend: fsdp:d4\n"), 19, "");
  old.replace(old.find("rollout: {backend: \"sglang:d4\"}\n"), 32, "allocation_mode: sglang:d4+d4\n");
  const Job first =
      read(source(old, {"+actor.kl_ctl=0.0", "+sglang.max_lora_rank=16", "+sglang.lora_target_modules=[all-linear]"}, "0.4.1"))
          .job;
  CHECK(get(first, "sync.by") == "disk");
  CHECK(get(first, "rollout.lora.slots") == "1");
  CHECK(get(first, "rollout.lora.targets") == "[all-linear]");
  const Job second = read(source(old,
                                 {"+actor.kl_ctl=0.0", "+sglang.max_lora_rank=16", "+sglang.lora_target_modules=[all-linear]",
                                  "+actor.weight_update_mode=disk"},
                                 "0.5.3"))
                         .job;
  CHECK(get(second, "rollout.lora.targets").find("lm_head") != std::string::npos);  // SGLang 0.5.7's `all`
}

TEST_CASE("only adapters have gradients, only adapters travel through NCCL, and the slots stand beside the server's weights") {
  const Estimate e = explain(read(source(text("vllm"))).job);
  // bf16, a quarter of them on every rank; AdamW's two states and, fused, a step for every tensor
  CHECK(most(e, "actor", Category::gradients) == 2 * 16 * kPairs / 4);
  CHECK(most(e, "actor", Category::optimizer) == 2 * 2 * 16 * kPairs / 4 + 4 * 28 * 7 * 2);
  CHECK(most(e, "rollout", Category::communication) <= 4 * 16 * kPairs);
  const Estimate without = explain(read(source(text("vllm"), {"actor.use_lora=false"})).job);
  CHECK(most(without, "rollout", Category::communication) > 4 * 16 * kPairs);
  CHECK(most(e, "rollout", Category::weights) - most(without, "rollout", Category::weights) == 8 * 16 * 2 * kPairs);
  CHECK(most(without, "actor", Category::optimizer) > 20 * most(e, "actor", Category::optimizer));
}

TEST_CASE("what AReaL or its servers refuse of LoRA is said, with the key") {
  CHECK(refusal(source(text("sglang"))).find("through files only") != std::string::npos);
  CHECK(refusal(source(text("vllm"), {"actor.lora_rank=32"})).find("at least 32") != std::string::npos);
  CHECK(refusal(source(text("vllm"), {"+actor.peft_type=ia3"})).find("AReaL itself refuses") != std::string::npos);
  CHECK(refusal(source(text("vllm"), {"+actor.target_modules=[lm_head]"})).find("lm_head") != std::string::npos);
  CHECK(refusal(source(text("vllm",
                            "ref: {path: \"${actor.path}\", use_lora: true, backend: \"fsdp:d4\", scheduling_strategy: "
                            "{type: colocation, target: actor}}\n"),
                       {"+actor.kl_ctl=0.1"}))
            .find("adapters of a role that does not train") != std::string::npos);
  const std::string slots = refusal(source(text("vllm"), {"actor.path=deepseek-ai/DeepSeek-V2-Lite"}));
  CHECK_MESSAGE(slots.find("vllm.max_loras: found") != std::string::npos, slots);
  CHECK_MESSAGE(slots.find("not supported yet: LoRA slots of a server beside latent attention") != std::string::npos, slots);
}
