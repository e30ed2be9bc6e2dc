// Megatron's layers in 8 bits: what is kept, what stands for parameters, what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "estimate_jobs.hpp"
#include "job/knobs.hpp"
#include "layers/megatron.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

constexpr std::int64_t kHidden = 1024, kWidth = 4096, kLayers = 3, kTokens = 512, kHeads = 8, kVocab = 1024;

TrainingCase dense(const Json& settings, const Json& apart = Json::object(), std::int64_t tensor = 2) {
  const Json config{{"model_type", "llama"},        {"hidden_size", kHidden},        {"intermediate_size", kWidth},
                    {"num_hidden_layers", kLayers}, {"num_attention_heads", kHeads}, {"num_key_value_heads", kHeads},
                    {"vocab_size", kVocab},         {"tie_word_embeddings", false},  {"torch_dtype", "bfloat16"}};
  Json trainer{{"engine", "megatron"},
               {"layout", "d1t" + std::to_string(tensor)},
               {"sequence_parallel", tensor > 1},
               {"sequences_per_micro_batch", 1},
               {"sequence_tokens", kTokens},
               {"micro_batches", 2},
               {"recompute", "none"}};
  trainer.update(settings);
  const Json job{{"framework", "torch"}, {"model", "m"}, {"trainer", trainer}, {"apart", apart}};
  return read_training_case(job.dump(), config.dump(), Catalog::builtin());
}

Bytes kept_by_a_layer(const TrainingCase& c) {
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 2);
  Bytes out = 0;
  for (const auto& site : saved_of_chunk_layer(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0).front(), 1))
    out += site.bytes.value(stage.counts);
  return out;
}

/// Numbers in the matrices of all layers of a rank.
constexpr std::int64_t matrices(std::int64_t tensor) { return kLayers * (4 * kHidden * kHidden + 3 * kHidden * kWidth) / tensor; }

TEST_CASE("megatron fp8: a layer keeps three inputs in 8 bits, and the attention's output as it is") {
  for (const std::int64_t tensor : {std::int64_t{1}, std::int64_t{2}})
    for (const bool transposes : {true, false}) {
      CAPTURE(tensor);
      CAPTURE(transposes);
      const Json apart{{"fp8_transposes", transposes}};
      const Bytes wide = kept_by_a_layer(dense(Json::object(), apart, tensor));
      const Bytes narrow = kept_by_a_layer(dense({{"fp8_recipe", "tensorwise"}}, apart, tensor));
      // what both norms gave, and what linear_fc2 takes: a byte less each number, and a scale
      CHECK(wide - narrow == 2 * kTokens * kHidden / tensor + kTokens * kWidth / tensor - 3 * 4);
    }
}

TEST_CASE("megatron fp8: matrices are parameters in 8 bits, or have copies in 8 bits beside them") {
  const auto parameters = [](bool gather, bool transposes) {
    return training_figures(dense({{"fp8_recipe", "tensorwise"}, {"fp8_param_gather", gather}}, {{"fp8_transposes", transposes}}))
        .parameters;
  };
  const Bytes in_16_bits = training_figures(dense(Json::object())).parameters;
  CHECK(parameters(true, false) == in_16_bits - matrices(2));
  CHECK(parameters(true, true) == in_16_bits);
  CHECK(parameters(false, false) == in_16_bits + matrices(2));
  CHECK(parameters(false, true) == in_16_bits + 2 * matrices(2));
}

TEST_CASE("megatron fp8: in blocks there are a scale for 128 numbers, and both sides of every matrix on every GPU") {
  const Bytes wide = kept_by_a_layer(dense(Json::object())), narrow = kept_by_a_layer(dense({{"fp8_recipe", "blockwise"}}));
  const std::int64_t numbers = 2 * kTokens * kHidden / 2 + kTokens * kWidth / 2;  // both norms, linear_fc2
  CHECK(wide - narrow == numbers - numbers / 32);
  const Bytes in_16_bits = training_figures(dense(Json::object())).parameters;
  for (const bool gather : {true, false})
    for (const bool transposes : {true, false}) {
      const Bytes all =
          training_figures(dense({{"fp8_recipe", "blockwise"}, {"fp8_param_gather", gather}}, {{"fp8_transposes", transposes}}))
              .parameters;
      const Bytes scales = all - in_16_bits - (gather ? 0 : 2 * matrices(2));
      CHECK(scales == 2 * matrices(2) / (128 * 128) * 4);
    }
}

TEST_CASE("megatron fp8: delayed scaling keeps the attention's output in 8 bits, too") {
  const Bytes tensorwise = kept_by_a_layer(dense({{"fp8_recipe", "tensorwise"}}));
  CHECK(kept_by_a_layer(dense({{"fp8_recipe", "delayed"}})) == tensorwise + kTokens * kHidden / 2 + 4);
}

TEST_CASE("megatron fp8: first and last layers stay in 16 bits") {
  const auto parameters = [](int first, int last) {
    return training_figures(dense({{"fp8_recipe", "tensorwise"}, {"bf16_layers_at_start", first}, {"bf16_layers_at_end", last}}))
        .parameters;
  };
  const Bytes layer = 2 * matrices(2) / kLayers;
  CHECK(parameters(0, 0) - parameters(1, 0) == layer);
  CHECK(parameters(0, 0) - parameters(1, 1) == 2 * layer);
  CHECK(parameters(2, 2) == training_figures(dense(Json::object())).parameters);
  const auto peak = [](const Json& settings) { return training_figures(dense(settings)).peak; };
  CHECK(peak({{"fp8_recipe", "tensorwise"}, {"bf16_layers_at_start", 3}}) == peak(Json::object()));
}

/// Bytes that a layer's experts keep under names of their own.
Bytes kept_by_experts(const Json& settings) {
  const Json config{{"model_type", "qwen3_moe"},
                    {"hidden_size", kHidden},
                    {"intermediate_size", kWidth},
                    {"moe_intermediate_size", 256},
                    {"num_experts", 8},
                    {"num_experts_per_tok", 2},
                    {"num_hidden_layers", 1},
                    {"num_attention_heads", kHeads},
                    {"num_key_value_heads", kHeads},
                    {"head_dim", 64},
                    {"vocab_size", kVocab},
                    {"norm_topk_prob", true},
                    {"decoder_sparse_step", 1},
                    {"mlp_only_layers", Json::array()},
                    {"max_position_embeddings", 4096}};
  Json trainer{{"engine", "megatron"}, {"layout", "d1"},      {"sequences_per_micro_batch", 1}, {"sequence_tokens", kTokens},
               {"micro_batches", 1},   {"recompute", "none"}, {"router_dtype", "fp32"}};
  trainer.update(settings);
  const char* const gpu = settings.value("fp8_recipe", "") == "mxfp8" ? "1 x B200-180GB" : "1 x H100-80GB";
  const Json job{{"framework", "torch"}, {"gpus", gpu}, {"model", "m"}, {"trainer", trainer}};
  const TrainingCase c = read_training_case(job.dump(), config.dump(), Catalog::builtin());
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
  Bytes out = 0;
  for (const auto& site : saved_of_chunk_layer(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0).front(), 0))
    if (site.name.find("experts.") != std::string::npos) out += site.bytes.value(stage.counts);
  return out;
}

TEST_CASE("megatron fp8: experts keep both inputs in 8 bits, and rows are padded by half a unit an expert") {
  constexpr std::int64_t kRows = 2 * kTokens, kInner = 256, kExperts = 8;
  CHECK(kept_by_experts(Json::object()) == kRows * (2 * 2 * kInner + 2 * kInner));
  // of a row: the first product in 16 bits, both inputs in 8 with their scales, and a copied probability
  const auto in_blocks = [](std::int64_t rows, Bytes probability) {
    return rows * (2 * 2 * kInner + (kHidden + kInner) * 33 / 32 + probability);
  };
  CHECK(kept_by_experts({{"fp8_recipe", "blockwise"}}) == in_blocks(kRows + 8 * kExperts, 4));
  CHECK(kept_by_experts({{"fp8_recipe", "mxfp8"}}) == in_blocks(kRows + 16 * kExperts, 4));
  CHECK(kept_by_experts({{"fp8_recipe", "blockwise"}, {"router_padding", true}}) == in_blocks(kRows + 8 * kExperts, 0));
  const std::int64_t padded = kRows + 8 * kExperts;
  CHECK(kept_by_experts({{"fp8_recipe", "tensorwise"}}) == padded * (2 * 2 * kInner + kHidden + kInner + 4) + 2 * 4 * kExperts);
  const Json again{{"fp8_recipe", "blockwise"}, {"recompute", "selective"}, {"recompute_modules", {"moe_act"}}};
  CHECK(kept_by_experts(again) == padded * (2 * 2 * kInner + kHidden * 33 / 32 + 4));
}

TEST_CASE("megatron fp8: masters and states are those of the same parameters") {
  const auto states = [](const Json& settings) { return training_figures(dense(settings)).states; };
  CHECK(states({{"fp8_recipe", "tensorwise"}, {"fp8_param_gather", true}}) == states(Json::object()));
}

const std::string kQwen =
    "oomplan: 1\nframework: torch\nmodel: Qwen/Qwen3-8B\ntrainer: {engine: megatron, layout: d1t2, sequence_parallel: true, "
    "sequences_per_micro_batch: 1, sequence_tokens: 4k, micro_batches: 1, fp8_recipe: tensorwise, fp8_param_gather: true}\n";

Bytes weights_on(const std::string& gpu) {
  const Job job = job_of(kQwen + "gpus: 2 x " + gpu + "\n");
  Bytes out = 0;
  for (const auto& one : estimate(job).gpus)
    for (const auto& moment : one.phases) out = std::max(out, moment.usage.allocated);
  return out;
}

TEST_CASE("megatron fp8: the GPU decides on transposed copies") {
  const Job job = job_of(kQwen + "gpus: 2 x H100-80GB\n");
  const Role& role = job.roles.front();
  std::int64_t stored = 0;
  for (const auto& tensors :
       megatron_parameters(*role.architecture, megatron_chunks(*role.architecture, role.trainer, 0)).dense_tensors)
    for (const MegatronTensor& t : tensors) stored += t.stored_in_8_bits ? t.elements : 0;
  CHECK(stored == std::int64_t{36} * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288) / 2);
  const double fewer = static_cast<double>(weights_on("H200") - weights_on("B200"));
  CHECK(std::abs(fewer / static_cast<double>(stored) - 1) < 0.02);
  CHECK_THROWS_WITH_AS(weights_on("A100-80GB"), doctest::Contains("compute capability 8.9"), InputError);
}

TEST_CASE("megatron fp8: what is not described is refused by name") {
  const auto problem = [](const std::string& more, const std::string& model = "Qwen/Qwen3-8B") {
    try {
      const Job job = job_of(kQwen + "gpus: 2 x H200\n", {"trainer." + more, "model=" + model});
      (void)estimate(job);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(problem("fp8_recipe=tensorwise").empty());
  CHECK(problem("fp8_recipe=none").find("fp8_param_gather") != std::string::npos);
  CHECK(problem("fp8_recipe=blockwise").empty());
  CHECK(problem("fp8_recipe=custom").find("fp8_recipe") != std::string::npos);
  CHECK(problem("fp8_recipe=mxfp8").find("parameters in mxfp8") != std::string::npos);
  CHECK(problem("router_padding=true").empty());
  CHECK(problem("distributed_optimizer=false").find("fp8_param_gather") != std::string::npos);
  CHECK(problem("optimizer_cpu_offload=true").find("Megatron itself refuses it with the optimizer on the host") !=
        std::string::npos);
  CHECK(problem("sequence_tokens=4160").find("a multiple of 128, not 2080") == std::string::npos);
  CHECK(problem("precision_aware_optimizer=true").find("fp32 masters itself") != std::string::npos);
  CHECK(problem("mtp_layers=1").empty());
  CHECK(problem("micro_batches=1", "Qwen/Qwen3-30B-A3B").empty());
  const auto problem_of_recipe = [](const std::string& recipe, const std::string& more) {
    try {
      (void)job_of(kQwen + "gpus: 2 x H200\n",
                   {"trainer.fp8_recipe=" + recipe, "trainer." + more, "trainer.fp8_param_gather=false"});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(problem_of_recipe("blockwise", "sequence_tokens=4160").find("a multiple of 128, not 2080") != std::string::npos);
  CHECK(problem_of_recipe("mxfp8", "sequence_tokens=4128").find("a multiple of 32, not 2064") != std::string::npos);
  CHECK(problem_of_recipe("delayed", "bf16_layers_at_end=1").find("Megatron itself has no first and last") != std::string::npos);
  CHECK(problem_of_recipe("none", "bf16_layers_at_end=1").find("fp8_recipe beside it") != std::string::npos);
  CHECK(problem_of_recipe("none", "router_padding=true").find("fp8_recipe beside it") != std::string::npos);
  CHECK(problem_of_recipe("delayed", "optimizer_cpu_offload=true").empty());
  CHECK(problem("grouped_experts=false", "Qwen/Qwen3-30B-A3B").find("experts one after another with fp8") != std::string::npos);
}

}  // namespace
