// AgileRL's update on one tiny model, every tensor written out: Liger's kernels, the head that takes hidden states, adapters and
// their frozen copies, and the turns of a process that trains and generates.
//
// Legend: T = 4 tokens of one sequence, h = 8 hidden, A = 8 (two query heads of d = 4), K = 4 (one key/value head), F = 12, V =
// 1000, r = 2.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "estimate_jobs.hpp"
#include "job/training_loop.hpp"
#include "layers/heads.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 8, heads = 2, d = 4, A = heads * d, K = d, F = 12, V = 1000, r = 2, layers = 2;

TrainingCase tiny(std::int64_t vocab = V) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12,
                      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 64,
                      "tie_word_embeddings": false, "vocab_size": )" +
                      std::to_string(vocab) + "}",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::agilerl;
  t.loop = training_loop(t.framework);
  t.kernels = Kernels::hf_sdpa;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.autocast = true;
  t.liger = {true, true, true, "0.8.1"};
  t.recompute = Recompute::none;
  t.optimizer_form = OptimizerForm::foreach;
  t.head = LossHead::agilerl_fused;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = T;
  t.wrap_embedding = t.wrap_head = false;
  t.lora.rank = r;
  t.lora.frozen_copies = 1;
  c.engine = EngineKind::single;
  return c;
}

Bytes saved_bytes(const TrainingCase& c) {
  const PassOptions o = train_pass(c.trainer, c.engine, *c.architecture, false, T, false);
  const PassCounts pass = pass_counts(c.trainer, T, o.head, *c.architecture);
  Bytes out = 0;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, o, 0)) out += site.bytes.value(pass.counts) * times;
  return out;
}

TEST_CASE("AgileRL by hand: what one layer keeps under Liger's kernels, with fp32 adapters under autocast") {
  const Bytes norms = 2 * (2 * T * h + 4 * T);             // the input in 16 bits, its inverse root in fp32
  const Bytes attention = 2 * T * (A + 2 * K) + 2 * T * A  // q and k turned in place, v, the output
                          + 4 * T * heads + 16 + 8;        // log-sum-exp, seed and offset of SDPA's generator
  const Bytes gated = 2 * (2 * T * F);                     // gate and up; the product is not kept
  const Bytes inputs = 2 * T * (5 * h + A + F);            // of every pair, cast to fp32 and back to 16 bits
  const Bytes low = 7 * (2 * T * r);                       // between the two products
  const Bytes casts =
      2 * r * (2 * (h + A) + 2 * (h + K) + 3 * (h + F));  // the pairs in 16 bits, for the gradients of their inputs
  CHECK(saved_bytes(tiny()) == norms + attention + gated + inputs + low + casts);
}

TEST_CASE("Liger's kernels: without adapters a layer keeps seven tensors less than transformers' own") {
  TrainingCase c = tiny();
  c.trainer.framework = Framework::torch;
  c.trainer.autocast = false;
  c.trainer.lora = {};
  c.trainer.head = LossHead::hf_loss;
  const Bytes with = saved_bytes(c);
  c.trainer.liger = {};
  // both norms: the input in fp32 and in 16 bits behind the root, against the input; silu(gate) is recomputed inside the kernel
  CHECK(saved_bytes(c) - with == 2 * (4 * T * h + 2 * T * h - 2 * T * h) + 2 * T * F);
}

TEST_CASE("AgileRL's chunk of logits: as many rows as make 256 MiB in fp32, 128 to 4096") {
  CHECK(chunk_rows(LossHead::agilerl_fused, 151936) == 441);
  CHECK(chunk_rows(LossHead::agilerl_fused, 1000) == 4096);
  CHECK(chunk_rows(LossHead::agilerl_fused, 4000000) == 128);
}

TEST_CASE("AgileRL by hand: the head holds a chunk in 16 bits, in backward another one in fp32") {
  // a vocabulary beside which nothing else counts; 2047 tokens of the sequence have a next one
  constexpr std::int64_t vocab = 151936, rows = 441;
  TrainingCase c = tiny(vocab);
  c.trainer.sequence_tokens = 2048;
  c.forward_only = true;
  const TrainingFigures once = training_figures(c);
  c.forward_only = false;
  const TrainingFigures step = training_figures(c);
  const auto tiles = [&](Bytes peak, Bytes below) {
    return static_cast<double>(peak - below) / static_cast<double>(rows * vocab);
  };
  CHECK(tiles(once.forward, once.parameters) == doctest::Approx(2).epsilon(0.02));
  CHECK(tiles(step.backward, step.parameters + step.states) == doctest::Approx(6).epsilon(0.02));
}

TEST_CASE("AgileRL by hand: the reference's adapters lie beside the trained ones, without gradients and states") {
  constexpr Bytes frozen = layers * (2 * A * h + 2 * K * h + 3 * F * h + 2 * h) + 2 * V * h + h;
  constexpr Bytes adapters = layers * r * (2 * (h + A) + 2 * (h + K) + 3 * (h + F));
  const TrainingFigures f = training_figures(tiny());
  CHECK(f.parameters == 2 * frozen + 2 * 4 * adapters);
  CHECK(f.states == 2 * 4 * adapters);
}

TEST_CASE("Liger's kernels of a family that Liger does not know are transformers' own; others are refused by name") {
  TrainingCase c = tiny();
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "olmoe", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12,
                      "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 64,
                      "num_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false})",
                  "tiny"));
  c.trainer.lora.targets = {"q_proj"};
  const Bytes with = training_figures(c).backward;
  c.trainer.liger = {};
  CHECK(training_figures(c).backward == with);
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12,
                      "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 64})",
                  "tiny"));
  c.trainer.lora.targets.clear();
  CHECK_NOTHROW((void)training_figures(c));
  c.trainer.liger = {true, true, true, "0.8.1"};
  CHECK_THROWS_AS((void)training_figures(c), InputError);
}

// ---- one process

const std::string kJob =
    "oomplan: 1\ngpus: 1 x A100-40GB\nframework: agilerl 2.8\nmodel: qwen2.5-0.5b\nprompt_tokens: 128\nresponse_tokens: 384\n"
    "sequences_per_step: 4\nsamples_per_prompt: 4\n"
    "rollout: {engine: vllm 0.23.0, gpu_memory_utilization: 0.2, max_running_requests: 4, concurrency: 4, lora: {rank: 8}}\n"
    "actor: {engine: single, beside: rollout, sequences_per_micro_batch: 1, sequence_tokens: 512, lora: {rank: 8}}\n";

const ColocatedPhase& phase(const ColocatedFigures& f, const std::string& name) {
  const auto at = std::find_if(f.phases.begin(), f.phases.end(), [&](const ColocatedPhase& p) { return p.phase == name; });
  REQUIRE(at != f.phases.end());
  return *at;
}

TEST_CASE("AgileRL's defaults: the engine's budget of tokens, its slots and the process that both share") {
  const Job job = job_of(kJob);
  const Role *rollout = job.role("rollout"), *actor = job.role("actor");
  CHECK(rollout->server.max_model_len == 512);
  CHECK(rollout->server.batched_tokens == 2048);  // four full sequences; at most 8192 each
  CHECK(rollout->server.lora.slots == 1);
  CHECK(rollout->server.sleep_level == 1);
  CHECK(actor->in_process);
  CHECK(actor->trainer.lora.frozen_copies == 1);
  CHECK(actor->trainer.step_every_micro_batch);
  CHECK(actor->trainer.padding_mask);  // responses end where they end
  CHECK(actor->trainer.liger == Liger{true, true, true, "0.8.1"});
  CHECK(actor->trainer.offload_parameters);
  CHECK(job.sync.by == SyncBy::none);
}

TEST_CASE("AgileRL: one context, and a trainer that never meets the engine's weights") {
  const ColocatedFigures f = colocated_figures(job_of(kJob), 1, Catalog::builtin());
  const Gpu& gpu = Catalog::builtin().gpu("A100-40GB");
  CHECK(f.kept_back == gpu.smi_mib * kMiB - gpu.usable);
  const Bytes generating = phase(f, "rollout.generate").device, training = phase(f, "actor.backward").device;
  CHECK(generating > gpu.usable / 5);                            // the engine takes its share
  CHECK(training < generating / 3);                              // asleep it leaves next to nothing
  CHECK(phase(f, "actor.backward").allocated > gpu.usable / 5);  // torch counts what sleep has unmapped
  CHECK(phase(f, "actor.backward").device >
        988 * Bytes{1000000});  // the base came back from the host: 494 M parameters in 16 bits
}

TEST_CASE("AgileRL: the first update of all runs without optimizer states, every other one with them") {
  const auto at_backward = [](const std::string& change, int iterations) {
    return phase(colocated_figures(job_of(kJob, {change}), iterations, Catalog::builtin()), "actor.backward").allocated;
  };
  const Bytes adapters = 8 * 24 * (1792 + 2 * 1024 + 1792 + 3 * 5760) * Bytes{4};  // rank 8, of Qwen2.5-0.5B
  const std::string one = "actor.micro_batches=1";
  CHECK(at_backward(one, 2) - at_backward(one, 1) == doctest::Approx(static_cast<double>(2 * adapters)).epsilon(0.02));
  CHECK(at_backward("actor.micro_batches=2", 1) == doctest::Approx(static_cast<double>(at_backward(one, 2))).epsilon(1e-4));
}

/// What happens to tensors of the first unit (or of all), with the phases around it: "forward", "+embedding", "backward", ...
std::vector<std::string> story_of(const Job& job, const std::vector<std::string>& tensors, bool all_units = false) {
  const Program p = program(job, "actor");
  std::vector<std::string> out;
  expand(p, [&](const Event& e) {
    if (e.kind == Program::Kind::mark) {
      const std::string& label = p.labels[e.site];
      if (label.starts_with("actor.") && (out.empty() || out.back() != label.substr(6))) out.push_back(label.substr(6));
    } else if (e.kind == Program::Kind::alloc || e.kind == Program::Kind::free) {
      if ((all_units || e.a == 0) && std::find(tensors.begin(), tensors.end(), p.sites[e.site].name) != tensors.end())
        out.push_back((e.kind == Program::Kind::alloc ? "+" : "-") + p.sites[e.site].name.substr(6));
    }
    return true;
  });
  return out;
}

TEST_CASE("AgileRL: what an update's graph ends at lives until the next forward pass is over") {
  const Job job = job_of(kJob, {"actor.micro_batches=2"});
  const auto story = story_of(job, {"actor.embedding"});
  const std::vector<std::string> two{"forward",    "+embedding", "backward", "optimizer", "forward",
                                     "+embedding", "-embedding", "backward", "optimizer", "-embedding"};
  CHECK(std::search(story.begin(), story.end(), two.begin(), two.end()) != story.end());
}

TEST_CASE("AgileRL: peft's forward pass holds the fp32 input until the sum is made, the routed one until the product is") {
  const auto story =
      story_of(job_of(kJob, {"actor.micro_batches=1"}), {"actor.layer.mlp.down.lora_input", "actor.layer.mlp.down.lora_sum"});
  const std::vector<std::string> routed{"+layer.mlp.down.lora_input", "-layer.mlp.down.lora_input", "+layer.mlp.down.lora_sum"};
  const std::vector<std::string> own{"forward", "+layer.mlp.down.lora_input", "+layer.mlp.down.lora_sum",
                                     "-layer.mlp.down.lora_input"};
  const auto forward = std::find(story.begin(), story.end(), "forward");
  CHECK(std::search(story.begin(), forward, routed.begin(), routed.end()) != forward);
  CHECK(std::search(forward, story.end(), own.begin(), own.end()) != story.end());
}

TEST_CASE("AgileRL's last chunk has the rows that are left, and is the last one in backward too") {
  // the rig traced four sequences of 512 tokens of this model: tiles of 255.6, 127.8, 162.3 and 81.1 MiB
  // (tools/memory_profiling/snapshot.py, 0151c660)
  constexpr std::int64_t left = 4 * 511 - 4 * 441, chunks = 5;
  const Job job = job_of(kJob, {"actor.micro_batches=1", "actor.sequences_per_micro_batch=4"});
  const Program p = program(job, "actor");
  const auto site = [&](const std::string& tensor) {
    const auto at = std::find_if(p.sites.begin(), p.sites.end(), [&](const Site& s) { return s.name == "actor." + tensor; });
    REQUIRE(at != p.sites.end());
    return *at;
  };
  const auto mib = [&](const std::string& tensor) { return static_cast<double>(site(tensor).bytes) / static_cast<double>(kMiB); };
  CHECK(std::abs(mib("chunk.scattered") - 255.6) < 0.05);
  CHECK(std::abs(mib("chunk.logits") - 127.8) < 0.05);
  CHECK(std::abs(mib("last_chunk.scattered") - 162.3) < 0.05);
  CHECK(std::abs(mib("last_chunk.logits") - 81.1) < 0.05);
  CHECK(site("last_chunk.gradient").shape == std::vector<std::int64_t>{left, 896});
  const auto story = story_of(job, {"actor.chunk.scattered", "actor.last_chunk.scattered"}, true);
  const auto backward = std::find(story.begin(), story.end(), "backward");
  std::vector<std::string> made;
  std::copy_if(backward, story.end(), std::back_inserter(made), [](const std::string& s) { return s.starts_with("+"); });
  std::vector<std::string> all(chunks - 1, "+chunk.scattered");
  all.emplace_back("+last_chunk.scattered");
  CHECK(std::search(made.begin(), made.end(), all.begin(), all.end()) == made.begin());
}

TEST_CASE("AgileRL: autograd's thread takes its cuBLAS workspace behind the first logits of the first backward pass") {
  const auto story = story_of(job_of(kJob, {"actor.micro_batches=2"}),
                              {"actor.cublas_workspace_of_autograd", "actor.chunk.logits", "actor.chunk.scattered"}, true);
  const std::vector<std::string> first{"backward", "+chunk.logits", "+cublas_workspace_of_autograd", "+chunk.scattered"};
  CHECK(std::search(story.begin(), story.end(), first.begin(), first.end()) != story.end());
  CHECK(std::count(story.begin(), story.end(), "+cublas_workspace_of_autograd") == 1);
}

TEST_CASE("AgileRL on several GPUs, and without adapters, is refused by name") {
  CHECK_THROWS_AS((void)job_of(kJob, {"actor.lora.rank=none"}), InputError);
  CHECK_THROWS_AS((void)job_of(kJob, {"actor.engine=fsdp2"}), InputError);
  CHECK_THROWS_AS((void)job_of(kJob, {"actor.offload=[optimizer]"}), InputError);
  CHECK_NOTHROW((void)job_of(kJob, {"actor.offload=[]"}));
}

}  // namespace
