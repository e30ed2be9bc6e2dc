// What a rank of AReaL's Megatron engine holds, against arithmetic by hand.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "estimate/figures.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TrainingCase case_of(const std::string& model, const std::string& layout, bool splits, Json more = Json::object()) {
  Json trainer{{"engine", "megatron"},
               {"layout", layout},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", splits},
               {"tokens_per_micro_batch", 8000},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", false},
               {"deallocate_outputs", false},
               {"recompute", "full"}};
  trainer.update(more, true);
  const Json job{{"framework", "areal 1.0.4"}, {"model", model}, {"trainer", trainer}};
  return read_training_case(job.dump(), {}, Catalog::builtin());
}
double gib(Bytes bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

// AReaL's pull request 1555: the fp32 copies of 16-bit gradients of this job took 14.22 GiB of every rank
TEST_CASE("areal's Megatron: fp32 copies of 16-bit gradients are as large as AReaL measured them") {
  const TrainingCase c =
      case_of("Qwen/Qwen3-30B-A3B", "attn:d1c4t2|ffn:e8", true, {{"precision", {{"reduce", "bf16"}}}, {"router_dtype", "bf16"}});
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
  CHECK(gib(stage.wide_gradients) == doctest::Approx(14.22).epsilon(0.001));
  CHECK(stage.masters == stage.wide_gradients);
  CHECK(stage.states == 2 * stage.masters);
}

TEST_CASE("areal's Megatron: a vocabulary is split without padding, tokens are padded to what ranks can split") {
  const TrainingCase c = case_of("Qwen/Qwen2.5-1.5B-Instruct", "d1c4t2", true);
  CHECK(megatron_vocab(*c.architecture, c.trainer) == c.architecture->vocab);
  CHECK(areal_padded_tokens(c.trainer) == 8192);
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
  CHECK(stage.counts.s == 8192 / 8);
  CHECK(stage.head_chunks == 2);  // of the tokens of this context-parallel rank
  const TrainingCase one = case_of("Qwen/Qwen2.5-1.5B-Instruct", "d4", false);
  CHECK(areal_padded_tokens(one.trainer) == 8192);
  CHECK(make_megatron_stage(*one.architecture, one.trainer, 0, 1).head_chunks == 8);
}

TEST_CASE("areal's Megatron: a reference has DDP's gradient buffer unless it is not wrapped") {
  const MegatronUse reference{.trains = false, .log_probs = true};
  TrainingCase c = case_of("Qwen/Qwen2.5-1.5B-Instruct", "d4", false);
  const auto stage = [&] { return make_megatron_stage(*c.architecture, c.trainer, 0, 1, reference); };
  const MegatronStage wrapped = stage();
  CHECK(wrapped.masters + wrapped.states == 0);
  CHECK(wrapped.gradients == 2 * wrapped.weights);
  CHECK(wrapped.chunks.empty());
  CHECK(wrapped.forward_chunks.size() == 1);
  c.trainer.megatron.wrap_with_ddp = false;
  CHECK(stage().gradients == 0);
}

TEST_CASE("areal's Megatron: a critic has one number a token in place of the vocabulary") {
  const TrainingCase c = case_of("Qwen/Qwen3-8B", "d1p2t2", true);
  const MegatronStage actor = make_megatron_stage(*c.architecture, c.trainer, 1, 4);
  const MegatronStage critic = make_megatron_stage(*c.architecture, c.trainer, 1, 4, {.critic = true});
  const Architecture& a = *c.architecture;
  CHECK(actor.weights - critic.weights == 2 * (a.vocab / 2 * a.hidden - a.hidden));
}

// Megatron-Bridge makes a configuration of its own: AReaL's split of the layers does not reach it
TEST_CASE("areal's Megatron: Megatron-Bridge's models are dealt to stages evenly") {
  TrainingCase c = case_of("Qwen/Qwen3-8B", "d1p4", false);
  const auto layers = [&](std::int64_t stage) { return megatron_layers(*c.architecture, c.trainer, stage).front().size(); };
  CHECK(layers(0) < 9);
  c.trainer.megatron.maker = ModelMaker::megatron_bridge;
  for (std::int64_t stage = 0; stage < 4; ++stage) CHECK(layers(stage) == 9);
}

// DistributedDataParallel is around the model before adapters are: its buffer has a number for every frozen one
TEST_CASE("areal's Megatron: adapters leave the gradient buffer of the whole model where it is") {
  const Json lora{
      {"lora", {{"rank", 16}, {"format", "storage"}}}, {"models_by", "megatron-bridge"}, {"distributed_optimizer", false}};
  TrainingCase c = case_of("Qwen/Qwen3-0.6B", "d4", false, lora);
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
  const MegatronStage whole = [&] {
    const TrainingCase full = case_of("Qwen/Qwen3-0.6B", "d4", false);
    return make_megatron_stage(*full.architecture, full.trainer, 0, 1);
  }();
  // rank 16, h 1024, 16 heads and 8 groups of 128, f 3072; q, k, v as one pair, gate and up as one
  const std::int64_t layer = 16 * (1024 + 4096) + 16 * (2048 + 1024) + 16 * (1024 + 6144) + 16 * (3072 + 1024);
  const std::int64_t adapters = 28 * layer;
  CHECK(stage.weights == whole.weights + 2 * adapters);
  CHECK(stage.gradients == whole.gradients + 2 * adapters);
  CHECK(stage.masters == 4 * adapters);
  CHECK(stage.states == 8 * adapters);
  CHECK(stage.wide_gradients == 4 * adapters);  // although the buffer is in fp32
  c.trainer.megatron.wrap_with_ddp = false;
  CHECK(make_megatron_stage(*c.architecture, c.trainer, 0, 1).gradients == 2 * adapters);
}

TEST_CASE("areal's Megatron: all experts of a rank share a pair") {
  const Json lora{
      {"lora", {{"rank", 32}, {"format", "storage"}}}, {"models_by", "megatron-bridge"}, {"distributed_optimizer", false}};
  const TrainingCase c = case_of("Qwen/Qwen3-30B-A3B", "attn:d8|ffn:e8", false, lora);
  const auto chunks = megatron_chunks(*c.architecture, c.trainer, 0);
  // h 2048, 32 heads and 4 groups of 128, experts of 768
  const std::int64_t attention = 32 * (2048 + 5120) + 32 * (4096 + 2048), experts = 32 * (2048 + 1536) + 32 * (768 + 2048);
  CHECK(megatron_parameters(*c.architecture, chunks).dense == 48 * attention);
  CHECK(megatron_parameters(*c.architecture, chunks).experts == 48 * experts);
}

// A critic's or a reference's pass gathers nothing of a context; from 2.0.0 on log-probs do
TEST_CASE("areal's Megatron: log-probs gather the logits of context-parallel ranks from 2.0.0 on") {
  TrainingCase c = case_of("Qwen/Qwen3-8B", "d1c4", false);
  CHECK(megatron_chunks(*c.architecture, c.trainer, 0).front().areal.gathered == 0);
  c.trainer.framework_version = "2.0.0";
  // a budget of 8000 tokens, which are padded to 8192, is one sequence of 8000 and two of 4000
  CHECK(megatron_chunks(*c.architecture, c.trainer, 0, {.sequence = 8000}).front().areal.gathered == 1);
  CHECK(megatron_chunks(*c.architecture, c.trainer, 0, {.sequence = 4000}).front().areal.gathered == 2);
  CHECK(megatron_chunks(*c.architecture, c.trainer, 0, {.sequence = 1000}).front().areal.gathered == 3);
  c.trainer.layout.context = 1;
  CHECK(megatron_chunks(*c.architecture, c.trainer, 0).front().areal.gathered == 0);
}

}  // namespace
