// How AReaL's files cut a step into micro-batches: without a budget, in pairs, and what reward models and DPO make of them.
#include <doctest/doctest.h>

#include "areal_files.hpp"
#include "catalog/architecture.hpp"
#include "frontends/areal/areal.hpp"
#include "frontends/areal/data_sets.hpp"

namespace {

using namespace oomplan;
using namespace oomplan::areal_files;

const std::string kHead = R"(
experiment_name: e
trial_name: t
cluster: {n_nodes: 1, n_gpus_per_node: 8}
)";
const std::string kOptimizer = "optimizer: {type: adam}, experiment_name: e, trial_name: t";

Source job_file(const std::string& text, std::vector<std::string> overrides = {}) {
  Source s = source("sft.yaml", "1.0.4", std::move(overrides));
  s.text = kHead + text;
  s.name = "job.yaml";
  return s;
}
std::string sft(const std::string& actor, const std::string& data) {
  return "actor: {path: Qwen/Qwen3-0.6B, " + kOptimizer + ", " + actor + "}\ntrain_dataset: {" + data + "}\n";
}
std::int64_t budget(const Source& s, const std::string& role = "trainer") {
  return read(s).job.role(role)->trainer.tokens_per_micro_batch;
}

TEST_CASE("areal: without a budget a rank's batch is one micro-batch, or as many as n_mbs says, evenly filled") {
  const std::string data = "path: x, type: sft, batch_size: 16, max_length: 1000";
  CHECK(budget(job_file(sft("backend: fsdp:d1", data))) == 16128);  // 16 * 1000 tokens, padded to 256
  CHECK(budget(job_file(sft("backend: fsdp:d8", data))) == 2048);
  CHECK(budget(job_file(sft("backend: fsdp:d1, mb_spec: {n_mbs: 3}", data))) == 6144);                    // 6 of 16 sequences
  CHECK(budget(job_file(sft("backend: fsdp:d1, mb_spec: {n_mbs: 3, n_mbs_divisor: 2}", data))) == 4096);  // 4 micro-batches
  CHECK(budget(job_file(sft("backend: megatron:d1", data))) == 16128);
  CHECK(budget(job_file(sft("backend: megatron:d1p2", data))) == 4096);  // two micro-batches for each stage
  const Reading r = read(job_file(sft("backend: fsdp:d1", data)));
  CHECK(notes_say(r.notes, "a micro-batch has no limit, and 16 sequences of up to 1000 tokens are one: 16000 tokens"));
}

TEST_CASE("areal: where no key bounds a sample, the data set does, and else the model's positions") {
  const Reading r = read(job_file(sft("backend: fsdp:d1", "path: openai/gsm8k, type: sft, batch_size: 16")));
  CHECK(r.job.prompt_tokens == 537);
  CHECK(r.job.role("trainer")->trainer.tokens_per_micro_batch == 8704);  // 16 * 537 = 8592
  CHECK(notes_say(r.notes, "the longest sample of openai/gsm8k"));
  const Reading unknown = read(job_file(sft("backend: fsdp:d1", "path: x/my-gsm8k, type: sft, batch_size: 16")));
  CHECK(unknown.job.role("trainer")->trainer.tokens_per_micro_batch == 16 * 40960);  // max_position_embeddings of Qwen3-0.6B
  CHECK(notes_say(unknown.notes, "An upper bound: train_dataset.max_length=N says it"));
  CHECK(budget(job_file(sft("backend: archon:d1", "path: x, type: sft, batch_size: 2"))) >= 2 * 40960);
  CHECK(areal::longest_sample("/data/gsm8k/", "sft", "meta-llama/Llama-3.2-1B").tokens == 1692);
  CHECK(areal::longest_sample("openai/gsm8k", "rl", "Qwen/Qwen3-0.6B").tokens == 0);
}

std::string reward(const std::string& more) {
  return "actor: {path: Qwen/Qwen2.5-7B, backend: fsdp:d8, is_critic: true, gradient_checkpointing: true, " + kOptimizer + more +
         "}\ntrain_dataset: {path: Anthropic/hh-rlhf, type: rw, batch_size: 256, max_length: 2048}\n";
}

TEST_CASE("areal: a reward model has one number a token in place of logits, and pairs share a micro-batch") {
  const Job job = read(job_file(reward(", mb_spec: {max_tokens_per_mb: 4096}"))).job;
  const Role& role = *job.role("trainer");
  CHECK(role.trainer.head == LossHead::reward_pairs);
  CHECK(job.sequences_per_step == 512);
  const Estimate e = estimate_quick(job);
  // bf16 parameters, gradients and two states in an eighth each: those of Qwen2.5-7B without its output layer
  const Bytes body = 7'615'616'512 - Bytes{152'064} * 3584;
  const Bytes states = need(e, "trainer.optimizer");
  CHECK(states > body);
  CHECK(states < body + 8 * kGiB);
  const Job critic =
      read(job_file("actor: {path: Qwen/Qwen2.5-7B, backend: fsdp:d8, gradient_checkpointing: true, " + kOptimizer +
                    ", mb_spec: {max_tokens_per_mb: 4096}}\ntrain_dataset: {path: x, type: sft, batch_size: 256}\n"))
          .job;
  CHECK(need(e, "trainer.backward") + Bytes{2} * 4096 * 152'064 < need(estimate_quick(critic), "trainer.backward"));
}

TEST_CASE("areal: pairs without a budget stay together") {
  // 256 pairs on 8 ranks, 32 of them in 3 micro-batches: 11 pairs of 2 * 2048 tokens
  CHECK(budget(job_file(reward(", mb_spec: {n_mbs: 3}"))) == 11 * 2 * 2048);
}

TEST_CASE("areal: what AReaL itself does not train as a reward model") {
  const std::string all = refusal(job_file(reward(""), {"actor.is_critic=false"}));
  CHECK_MESSAGE(
      all.find("actor.is_critic: found 'false', expected true: the loss of a reward model takes values") != std::string::npos,
      all);
  CHECK(refusal(job_file(reward(""), {"actor.backend=megatron:d8"})).find("not supported yet: a reward model of this engine") !=
        std::string::npos);
}

std::string preference(const std::string& ref) {
  return "actor: {path: Qwen/Qwen2.5-7B, backend: fsdp:d8, gradient_checkpointing: true, mb_spec: {max_tokens_per_mb: 4096}, " +
         kOptimizer + "}\nref: {path: '${actor.path}', backend: '${actor.backend}', optimizer: null, experiment_name: e, " +
         "trial_name: t, mb_spec: {max_tokens_per_mb: 10240}" + ref +
         "}\ntrain_dataset: {path: Anthropic/hh-rlhf, type: dpo, batch_size: 64, max_length: 2048}\n";
}

TEST_CASE("areal: DPO trains a policy beside a reference that computes log-probs first, and neither has any of its own") {
  const Reading r = read(job_file(preference(", scheduling_strategy: {type: colocation, target: actor}")));
  CHECK(r.job.kind == JobKind::sft);
  CHECK(r.job.sequences_per_step == 128);
  CHECK(r.job.role("trainer")->trainer.head == LossHead::areal_compiled);
  CHECK(r.job.role("ref")->beside == "trainer");
  CHECK_FALSE(notes_say(r.notes, "the longest pair"));
  const Estimate e = estimate_quick(r.job);
  CHECK(need(e, "ref.log_probs") > 0);
  CHECK(need(e, "trainer.log_probs") == 0);
  // the reference's logits of 10,240 tokens stand in no gradient: less than the policy's step, more than its own shard
  CHECK(need(e, "ref.log_probs") > Bytes{2} * 10'240 * 152'064);
  CHECK(need(e, "ref.save") == 0);
}

TEST_CASE("areal: DPO refuses a value model") {
  const std::string all = refusal(job_file(preference(""), {"+actor.is_critic=true"}));
  CHECK_MESSAGE(all.find("actor.is_critic: found 'true', expected false: DPO needs log-probs") != std::string::npos, all);
}

TEST_CASE("areal: a pair that no micro-batch holds is told") {
  const Reading r =
      read(job_file(preference(", scheduling_strategy: {type: colocation, target: actor}"), {"train_dataset.max_length=3000"}));
  CHECK(notes_say(r.notes, "found 4096 tokens, but the longest pair needs at least 6000"));
}

}  // namespace
