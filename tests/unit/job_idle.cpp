// Every knob of every kind of job, with other values: either the program or the host changes, or the answer says that it does
// not.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include <oomplan/oomplan.hpp>

#include "job/idle_settings.hpp"
#include "job/knobs.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

struct Named {
  std::string name, text;
};

/// A trainer by itself: `more` are lines of its block.
Named sft(std::string name, const std::string& more, const std::string& model = "Qwen/Qwen3-0.6B",
          const std::string& gpus = "8") {
  return {std::move(name),
          "oomplan: 1\nframework: torch\ngpus: " + gpus + " x H100-80GB\nmodel: " + model + "\ntrainer:\n" + more};
}

std::vector<Named> jobs() {
  const std::string padded = "  sequences_per_micro_batch: 2\n  sequence_tokens: 1k\n  micro_batches: 2\n";
  const std::string half = "  precision: {storage: bf16, compute: bf16, reduce: bf16}\n";
  const std::string mixed = "  precision: {storage: fp32, compute: bf16, reduce: fp32}\n";
  return {
      sft("single", "  engine: single\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("single packed", "  engine: single\n" + half + "  tokens_per_micro_batch: 2k\n  micro_batches: 2\n", "Qwen/Qwen3-0.6B",
          "1"),
      sft("single liger", "  engine: single\n  liger: [rope, rms_norm]\n  head: liger_fused_ce\n" + half + padded,
          "Qwen/Qwen3-0.6B", "1"),
      sft("single eager lora",
          "  engine: single\n  kernels: hf_eager\n  recompute: none\n  lora: {rank: 8, targets: [q_proj]}\n" + half + padded,
          "Qwen/Qwen3-0.6B", "1"),
      sft("qlora", "  engine: single\n  lora: {rank: 8, base: nf4, base_compute: bf16}\n" + half + padded, "Qwen/Qwen3-0.6B",
          "1"),
      sft("gptq", "  engine: single\n  lora: {rank: 8, base: gptq}\n  precision: {storage: fp16}\n" + padded, "Qwen/Qwen3-0.6B",
          "1"),
      sft("int8", "  engine: single\n  lora: {rank: 8, base: int8}\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("apollo", "  engine: single\n  optimizer: apollo_adamw\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("paged", "  engine: single\n  optimizer: paged_adamw_8bit\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("adafactor", "  engine: single\n  optimizer: adafactor\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("muon", "  engine: single\n  optimizer: muon\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("sgd", "  engine: single\n  optimizer: sgd\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("ia3", "  engine: single\n  lora: {kind: ia3, rank: 1, targets: [k_proj, v_proj, down_proj]}\n" + half + padded,
          "Qwen/Qwen3-0.6B", "1"),
      sft("experts", "  engine: single\n" + half + padded, "allenai/OLMoE-1B-7B-0125", "1"),
      sft("litgpt",
          "  engine: single\n  kernels: litgpt\n  recompute: none\n  micro_batches: 2\n" + half +
              "  sequences_per_micro_batch: 1\n  sequence_tokens: 1k\n",
          "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "1"),
      sft("torchtune", "  engine: single\n  kernels: torchtune\n  head: torchtune_chunked\n" + half + padded,
          "meta-llama/Llama-3.2-1B", "1"),
      sft("single recomputed", "  engine: single\n  recompute: full\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("momentum", "  engine: single\n  optimizer: sgd_momentum\n" + half + padded, "Qwen/Qwen3-0.6B", "1"),
      sft("ddp unused", "  engine: ddp\n  find_unused_parameters: true\n" + half + padded),
      sft("fsdp1 lora recomputed", "  engine: fsdp1\n  recompute: full\n  lora: {rank: 8}\n" + half + padded),
      sft("zero 3 lora",
          "  engine: deepspeed\n  zero: {stage: 3}\n  recompute: full\n"
          "  lora: {rank: 8, format: storage}\n" +
              half + padded),
      sft("megatron pipeline", "  engine: megatron\n  layout: d2t2p2\n  recompute: full\n" + half + padded, "Qwen/Qwen3-8B"),
      sft("megatron lora", "  engine: megatron\n  layout: d8\n  lora: {rank: 8, format: storage}\n" + half + padded),
      {"agilerl",
       "oomplan: 1\nframework: agilerl 2.8\ngpus: 1 x H100-80GB\nmodel: Qwen/Qwen2.5-0.5B-Instruct\nprompt_tokens: 512\n"
       "response_tokens: 512\nrollout: {engine: vllm 0.19.1, layout: d1, gpu_memory_utilization: 0.4, concurrency: 64}\n"
       "actor: {beside: rollout, engine: single, sequences_per_micro_batch: 4, sequence_tokens: 1k, lora: {rank: 16}}\n"},
      sft("ddp", "  engine: ddp\n" + half + padded),
      sft("fsdp2", mixed + padded),
      sft("fsdp2 kept", "  reshard_after_forward: false\n  micro_batches: 1\n" + mixed +
                            "  sequences_per_micro_batch: 2\n  sequence_tokens: 1k\n"),
      sft("fsdp2 on the host", "  cpu_offload_policy: true\n" + mixed + padded),
      sft("fsdp2 experts", mixed + padded, "allenai/OLMoE-1B-7B-0125"),
      sft("fsdp2 nf4", "  lora: {rank: 8, base: nf4, base_compute: bf16}\n" + half + padded),
      sft("tensor parallel", "  layout: d4t2\n  head: cross_entropy\n" + mixed + padded, "Qwen/Qwen3-8B"),
      sft("torchtitan", "  kernels: torchtitan\n  head: cross_entropy\n" + mixed + padded, "meta-llama/Llama-3.1-8B"),
      sft("fsdp1", "  engine: fsdp1\n" + mixed + padded),
      sft("fsdp1 lora", "  engine: fsdp1\n  lora: {rank: 8}\n" + half + padded),
      sft("fsdp1 kept", "  engine: fsdp1\n  reshard_after_forward: false\n" + mixed + padded),
      sft("zero 1", "  engine: deepspeed\n  zero: {stage: 1, reduce_bucket: 20000000}\n" + half + padded),
      sft("zero 2", "  engine: deepspeed\n  zero: {stage: 2, reduce_bucket: 20000000}\n" + half + padded),
      sft("zero 3", "  engine: deepspeed\n  zero: {stage: 3, reduce_bucket: 20000000, sub_group: 20000000}\n" + half + padded),
      sft("zero 3 on the host", "  engine: deepspeed\n  zero: {stage: 3, offload_optimizer: true}\n" + half + padded),
      sft("dpo", "  engine: single\n  head: trl_dpo\n  reference: adapters_off\n  lora: {rank: 8}\n" + half + padded,
          "Qwen/Qwen3-0.6B", "1"),
      sft("tower", "  engine: single\n  kernels: hf_sdpa\n  vision: {images: 1, height: 448, width: 448}\n" + half + padded,
          "Qwen/Qwen2-VL-2B-Instruct", "1"),
      sft("gemma tower", "  engine: single\n  kernels: hf_sdpa\n  vision: {images: 1, height: 896, width: 896}\n" + half + padded,
          "google/gemma-3-4b-it", "1"),
      sft("megatron", "  engine: megatron\n  layout: d4t2\n" + half + padded),
      sft("megatron experts", "  engine: megatron\n  layout: d8e8\n" + half + padded, "Qwen/Qwen3-30B-A3B"),
      {"areal",
       "oomplan: 1\ngpus: 1 x H100-80GB\nmodel: Qwen/Qwen2.5-0.5B-Instruct\nprompt_tokens: 1k\nresponse_tokens: 1k\n"
       "rollout: {engine: sglang 0.5.10, layout: d1, mem_fraction_static: 0.4, concurrency: 64}\n"
       "actor: {beside: rollout, tokens_per_micro_batch: 10k, recompute: full}\nref: {beside: actor}\n"},
      {"verl",
       "oomplan: 1\nframework: verl 0.9.0\ngpus: 8 x H100-80GB\nmodel: qwen3-0.6b\nprompt_tokens: 1k\nresponse_tokens: 1k\n"
       "rollout: {engine: vllm 0.11.0, layout: d4t2, gpu_memory_utilization: 0.6, concurrency: 64}\n"
       "actor: {beside: rollout, layout: d8, offload: [parameters, optimizer]}\nref: {beside: actor}\n"},
  };
}

/// Everything that a change could change.
struct Answer {
  std::vector<Program> programs;
  std::string rest;
  bool operator==(const Answer&) const = default;
};
Answer answer(const Job& job) {
  Answer out;
  for (const auto& role : job.roles) out.programs.push_back(program(job, role.name));
  Estimate e = estimate_quick(job);
  e.notes.clear();
  e.evidence = {};
  out.rest = to_json(e, Job{});
  return out;
}

std::vector<std::string> values(const Knob& knob, const std::string& now) {
  std::vector<std::string> tries = knob.choices;
  if (knob.type == KnobType::flag) tries = {"true", "false"};
  if (knob.type == KnobType::count) tries = {"2", "100000"};
  if (knob.type == KnobType::bytes) tries = {"3MiB", "2GiB"};
  if (knob.type == KnobType::number) tries = {"0.25", "1.5"};
  if (knob.key == "transformers") tries = {"4.46.3", "4.56.0"};
  if (knob.key == "liger_version") tries = {"0.5.10"};
  if (knob.key == "lora.bitsandbytes") tries = {"0.43.0", "0.50.2"};
  std::erase(tries, now);
  constexpr std::size_t kEnough = 2;
  if (tries.size() > kEnough) tries.resize(kEnough);
  if (knob.type == KnobType::items)
    for (auto& one : tries) one = "[" + one + "]";
  return tries;
}

/// Knobs that are not asked for: what never takes memory, what this comparison cannot see, and those of which some values are as
/// good as others although the knob counts.
const std::set<std::string> kNoMemory{"name", "lora.alpha", "clip"};                   // the clipped norm is some numbers
const std::set<std::string> kNotSeen{"expandable_segments", "host_memory", "others"};  // the replay's; nothing is allocated
const std::set<std::string> kOfValues{
    // names, and what a job is made of
    "framework", "engine", "kernels", "model", "layout", "head", "transformers", "te_release", "core_release",
    "lora.bitsandbytes",
    // formats of one size, formats that something has already, optimizers with equal states
    "autocast", "precision.storage", "precision.compute", "precision.reduce", "optimizer", "lora.base", "lora.format", "kv",
    "weights", "online_quantization",
    // the number that was assumed, a bound that is not reached, more than there is
    "gpus_per_node", "micro_batches", "sequences_per_step", "sequence_tokens", "logits_to_keep", "batched_tokens",
    "max_model_len", "page_tokens", "graph_batch", "max_running_requests", "concurrency", "overlap_grad_reduce",
    // of one rank, of a forward pass, of a family without Liger's modules, of all targets
    "forward_prefetch", "reshard_ranks", "offload", "keep_outputs", "kernel_internals", "liger", "lora.targets", "experts",
    // of parameters, gradients, arguments and results that have the format already; of a softmax that the job has not
    "precision.cast_parameters", "precision.cast_gradients", "precision.cast_inputs", "precision.output", "precision.autocast"};
bool asked_for(const Knob& knob) {
  const std::string key(knob.key);
  return !kNoMemory.contains(key) && !kNotSeen.contains(key) && !kOfValues.contains(key);
}

struct Tried {
  std::string same, other;  ///< values that changed nothing, and that did
};

/// Of one knob of one job. A value that is named as idle must change nothing.
Tried try_values(const Named& j, const Reading& base, const Answer& before, const Knob& knob, const Role* role) {
  Tried out;
  const std::string key = role == nullptr ? std::string(knob.key) : role->name + "." + std::string(knob.key);
  for (const auto& value : values(knob, knob.get(base.job, role))) {
    try {
      const Reading r = read({.text = j.text, .name = "job.yaml", .overrides = {key + "=" + value}});
      const auto idle = idle_settings(r.job);
      const bool named = std::any_of(idle.begin(), idle.end(), [&](const IdleSetting& s) { return s.key == key; });
      const bool same = answer(r.job) == before;
      CAPTURE(j.name);
      CAPTURE(key);
      CAPTURE(value);
      if (named) CHECK(same);
      if (!named) (same ? out.same : out.other) += value + " ";
    } catch (const InputError&) {  // refused: it has been told
    }
  }
  return out;
}

void try_knobs(const Named& j) {
  Reading base = read({.text = j.text, .name = "job.yaml"});
  const Answer before = answer(base.job);
  std::vector<const Role*> whose{nullptr};
  for (const auto& r : base.job.roles) whose.push_back(&r);
  for (const auto& knob : knobs())
    for (const Role* role : whose) {
      if (role == nullptr ? knob.of != KnobOf::job : !applies(knob, *role)) continue;
      const bool needs_a_row = asked_for(knob);
      const Tried tried = try_values(j, base, before, knob, role);
      CAPTURE(j.name);
      CAPTURE(knob.key);
      CAPTURE(role == nullptr ? std::string() : role->name);
      CAPTURE(tried.same);
      if (needs_a_row) CHECK_FALSE((!tried.same.empty() && tried.other.empty()));
    }
}

}  // namespace

TEST_CASE("a setting that changes nothing on a job is named in the answer, and one that is named changes nothing") {
  Sample sample(1);
  for (const auto& j : jobs())
    if (sample.takes()) try_knobs(j);
}

TEST_CASE("one note names what changes nothing, with the reasons together") {
  const Reading r = read({.text = R"(oomplan: 1
framework: torch
gpus: 1 x H100-80GB
model: Qwen/Qwen3-0.6B
trainer:
  engine: single
  precision: {storage: bf16}
  sequences_per_micro_batch: 2
  sequence_tokens: 1k
  micro_batches: 1
  tokens_per_micro_batch: 4k
  lora: {alpha: 32, targets: [q_proj]}
  reentrant: true
)",
                          .name = "job.yaml"});
  std::vector<std::string> told;
  for (const auto& note : r.notes)
    if (note.text.find("change nothing") != std::string::npos) told.push_back(note.text);
  REQUIRE(told.size() == 1);
  CHECK(told[0] ==
        "these settings change nothing here. trainer.tokens_per_micro_batch: sequences_per_micro_batch counts; "
        "trainer.reentrant: nothing is recomputed (recompute: none); "
        "trainer.lora.targets, trainer.lora.alpha: there are no adapters (lora.rank: none)");
}

TEST_CASE("nothing is told of settings that count, nor of those that nobody wrote") {
  const Reading r = read({.text = sft("",
                                      "  engine: single\n  precision: {storage: bf16}\n  sequences_per_micro_batch: 2\n"
                                      "  sequence_tokens: 1k\n  micro_batches: 1\n  recompute: full\n  reentrant: true\n"
                                      "  lora: {rank: 8, alpha: 32}\n",
                                      "Qwen/Qwen3-0.6B", "1")
                                      .text,
                          .name = "job.yaml"});
  CHECK(idle_settings(r.job).empty());
}
