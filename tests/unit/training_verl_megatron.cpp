// What a rank of verl's Megatron engine holds, against arithmetic by hand.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "estimate/assemble.hpp"
#include "estimate/figures.hpp"
#include "estimate_jobs.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TrainingCase case_of(const std::string& model, const std::string& layout, Json more = Json::object()) {
  Json trainer{{"engine", "megatron"},
               {"layout", layout},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", true},
               {"tokens_per_micro_batch", 8192},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", false},
               {"deallocate_outputs", false},
               {"recompute", "full"}};
  trainer.update(more, true);
  const Json job{{"framework", "verl 0.7"}, {"model", model}, {"trainer", trainer}};
  return read_training_case(job.dump(), {}, Catalog::builtin());
}

TEST_CASE("verl's Megatron: the head holds one fp32 copy of the logits, with an entropy in the loss three") {
  const TrainingCase alone = case_of("Qwen/Qwen3-8B", "d4t2"), both = case_of("Qwen/Qwen3-8B", "d4t2", {{"entropy_loss", true}});
  const Bytes logits = 4 * 8192 * (alone.architecture->vocab / 2);
  CHECK(megatron_vocab(*alone.architecture, alone.trainer) == alone.architecture->vocab);
  const TrainingFigures a = training_figures(alone), b = training_figures(both);
  // forward: the entropy's softmax and the copy that the log-probs write over; beside them what is 8 to 16 bytes a token
  CHECK(static_cast<double>(b.backward - a.backward) == doctest::Approx(static_cast<double>(logits)).epsilon(0.01));
  CHECK(static_cast<double>(b.forward - a.forward) == doctest::Approx(1.5 * static_cast<double>(logits)).epsilon(0.01));
}

TEST_CASE("verl's Megatron: a reference is not wrapped, and computes no entropy") {
  const TrainingCase c = case_of("Qwen/Qwen3-8B", "d4t2", {{"wrap_with_ddp", false}});
  const MegatronUse reference{.trains = false, .log_probs = true};
  const MegatronStage s = make_megatron_stage(*c.architecture, c.trainer, 0, 1, reference);
  CHECK(s.gradients + s.masters + s.states == 0);
}

constexpr const char* kJob = R"(oomplan: 1
gpus: 8 x H100
framework: verl 0.7
model: qwen2.5-7b
prompt_tokens: 1k
response_tokens: 3k
sequences_per_step: 512
rollout: {engine: vllm 0.11.0, layout: d4t2, gpu_memory_utilization: 0.5}
actor: {engine: megatron, beside: rollout, layout: d4t2, tokens_per_micro_batch: 8k, recompute: full%OFFLOAD}
)";

TrainingCase slime_case(Json more) {
  Json trainer{{"engine", "megatron"},
               {"layout", "d4t2"},
               {"kernels", "transformer_engine"},
               {"tokens_per_micro_batch", 8192},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"cross_entropy", "slime"},
               {"recompute", "full"}};
  trainer.update(more, true);
  return read_training_case(Json{{"framework", "torch"}, {"model", "Qwen/Qwen3-8B"}, {"trainer", trainer}}.dump(), {},
                            Catalog::builtin());
}

TEST_CASE("slime's loss: a softmax beside the fp32 logits; chunks of a loss that is computed again hold one chunk's alone") {
  const double logits = 4.0 * 8192 * (151936 + 128 * 2 - 151936 % (128 * 2)) / 2;  // padded for two ranks
  const auto forward = [](Json more) { return training_figures(slime_case(std::move(more))).forward; };
  const Bytes whole = forward(Json::object());
  const auto near = [&](Bytes more, double times) {
    CHECK(static_cast<double>(more) == doctest::Approx(times * logits).epsilon(0.02));
  };
  near(forward({{"rollout_temperature", 0.8}}) - whole, 1);
  // 2 times the logits in fp32, with chunks the 16-bit ones and their fp32 copy are the most: 1.5
  near(whole - forward({{"log_probs_chunk_size", 1024}, {"recompute_loss_function", true}}), 0.5);
}

Bytes allocated(const char* offload, PhaseKind phase) {
  TapeStore store;
  std::string text = kJob;
  text.replace(text.find("%OFFLOAD"), 8, offload);
  const Assembled a = assemble(job_of(text), Catalog::builtin(), store);
  for (const PhaseFigure& f : a.folds[0].phases)
    if (f.role == 1 && f.phase == phase) return f.allocated;
  return 0;
}

TEST_CASE("verl's Megatron: what is on the host when log-probs are computed is not on the device") {
  const auto near = [](Bytes found, Bytes expected) {  // norms are on both tensor-parallel ranks
    CHECK(static_cast<double>(found) == doctest::Approx(static_cast<double>(expected)).epsilon(0.001));
  };
  const Bytes rank = 7615616512 / 2;  // parameters of Qwen2.5 7B on two tensor-parallel ranks; four share the optimizer
  const Bytes all = allocated("", PhaseKind::log_probs), without = allocated(", offload: [parameters]", PhaseKind::log_probs),
              alone = allocated(", offload: [parameters, optimizer]", PhaseKind::log_probs);
  near(all - without, 4 * rank);         // the flat gradient buffer
  near(without - alone, 12 * rank / 4);  // masters and both moments
  CHECK(allocated("", PhaseKind::optimizer) == allocated(", offload: [parameters, optimizer]", PhaseKind::optimizer));
}

TEST_CASE("verl's Megatron: what is not described is refused by name") {
  const auto refused = [](std::string_view from, std::string_view to) {
    std::string text = kJob;
    text.replace(text.find("%OFFLOAD"), 8, "");
    text.replace(text.find(from), from.size(), to);
    try {
      (void)job_of(text);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused("x", "x").empty());
  CHECK(refused("verl 0.7", "verl 0.9").empty());
  CHECK(refused("verl 0.7", "verl 0.4").find("verl 0.7 or later") != std::string::npos);
  CHECK(refused("tokens_per_micro_batch: 8k", "sequences_per_micro_batch: 2, sequence_tokens: 4k").empty());  // padded
  CHECK(refused("recompute: full", "recompute: full, expert_capacity: 2").find("a capacity of the experts") != std::string::npos);
  CHECK(refused("recompute: full", "log_probs_chunk_size: 1k").find("slime's loss") != std::string::npos);
  CHECK(refused("recompute: full", "cross_entropy: te").find("Megatron's own losses") != std::string::npos);
}

}  // namespace
