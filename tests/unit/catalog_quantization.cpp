// quantization_config of real checkpoints: which module lies in which format, and what a matrix then takes.
#include <doctest/doctest.h>

#include <string>

#include <oomplan/units/errors.hpp>

#include "catalog/fields.hpp"
#include "catalog/quantization.hpp"

namespace {

using namespace oomplan;

Quantization quantization(const char* json) { return read_quantization(Fields::parse(json, "config.json")); }

}  // namespace

TEST_CASE("bytes of a matrix with its scales") {
  WeightFormat f{DType::fp8};
  CHECK(stored_bytes(f, 4096, 1024) == 4096 * 1024 + 4);
  f.per_row = true;
  CHECK(stored_bytes(f, 4096, 1024) == 4096 * 1024 + 4 * 4096);
  f = {DType::fp8};
  f.block = 128;
  CHECK(stored_bytes(f, 4096, 1000) == 4096 * 1000 + 32 * 8 * 4);  // 1000 columns are eight blocks
  f = {DType::int4};
  f.group = 128;
  f.scale_bits = 16;
  CHECK(stored_bytes(f, 4096, 1024) == 4096 * 512 + 4096 * 8 * 2);
  f.zero_points = true;
  CHECK(stored_bytes(f, 4096, 1024) == 4096 * 512 + 4096 * 8 * 5 / 2);
  f = {DType::nvfp4};
  f.group = 16;
  f.scale_bits = 8;
  CHECK(stored_bytes(f, 4096, 1024) == 4096 * 512 + 4096 * 64);
  CHECK(stored_bytes(WeightFormat{}, 10, 10) == 200);
}

TEST_CASE("patterns name modules as the engines read them") {
  CHECK(names_module("lm_head", "lm_head"));
  CHECK(names_module("model.layers.0.mlp.gate", "model.layers.0.mlp.gate"));
  CHECK_FALSE(names_module("model.layers.0.mlp.gate", "model.layers.0.mlp.gate_proj"));
  CHECK_FALSE(names_module("model.layers.1", "model.layers.10.mlp.up_proj"));
  CHECK(names_module("gate", "model.layers.7.mlp.gate"));
  CHECK(names_module("model.layers.1.*", "model.language_model.layers.1.mlp.up_proj"));
  CHECK_FALSE(names_module("model.layers.1.*", "model.layers.11.mlp.up_proj"));
  CHECK(names_module("*.mlp.shared_expert.*", "model.layers.3.mlp.shared_expert.up_proj"));
  CHECK(names_module("re:.*self_attn.*", "model.layers.3.self_attn.q_proj"));
  CHECK(names_module("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "language_model.model.layers.0.mlp.up_proj"));
  CHECK_FALSE(names_module("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.experts.0.up_proj"));
  CHECK_FALSE(names_module("re:self_attn", "model.layers.3.self_attn.q_proj"));  // from the start, as Python's re.match
  CHECK_FALSE(names_module("re:(a+)+b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac"));  // not tried: could take for ever
  CHECK_FALSE(names_module("re:(", "x"));
}

TEST_CASE("int4 experts beside attention in 16 bits (Kimi-K2.5)") {
  const Quantization q = quantization(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {"group_0": {"targets": ["Linear"],
      "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true}}}})");
  REQUIRE(q.parts.size() == 1);
  const ModuleFormats formats(q);
  const WeightFormat* const expert = formats.of("language_model.model.layers.5.mlp.experts.0.up_proj", true, false);
  REQUIRE(expert != nullptr);
  CHECK(expert->dtype == DType::int4);
  CHECK(expert->group == 32);
  CHECK_FALSE(expert->zero_points);
  CHECK(formats.of("language_model.model.layers.5.self_attn.o_proj", false, false) == nullptr);
  CHECK(formats.of("language_model.model.layers.0.mlp.up_proj", false, false) == nullptr);
  CHECK(formats.of("lm_head", false, true) == nullptr);
}

TEST_CASE("two groups with modules by name, one of them the head (modelopt)") {
  const Quantization q = quantization(R"({"quant_method": "modelopt", "config_groups": {
    "group_0": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["model.language_model.layers.0.linear_attn.in_proj_qkv"]},
    "group_1": {"weights": {"num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["lm_head", "model.language_model.layers.0.mlp.down_proj"]}}})");
  const ModuleFormats formats(q);
  CHECK(formats.of("lm_head", false, true)->dtype == DType::nvfp4);
  CHECK(formats.of("model.language_model.layers.0.mlp.down_proj", false, false)->dtype == DType::nvfp4);
  CHECK(formats.of("model.language_model.layers.0.linear_attn.in_proj_qkvz", false, false)->dtype == DType::fp8);
  CHECK(formats.of("model.language_model.layers.1.mlp.down_proj", false, false) == nullptr);
}

TEST_CASE("methods by their own keys") {
  const auto first = [](const char* json) { return quantization(json).parts.at(0).format; };
  CHECK(first(R"({"quant_method": "fp8", "weight_block_size": [128, 128]})").block == 128);
  CHECK(first(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true})").zero_points);
  CHECK(first(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": true})").dtype == DType::int8);
  CHECK(first(R"({"quant_algo": "NVFP4", "group_size": 16})").dtype == DType::nvfp4);
  CHECK(first(R"({"quantization": {"quant_algo": "FP8"}})").dtype == DType::fp8);
  CHECK(first(R"({"quant_method": "fbgemm_fp8"})").per_row);
  CHECK(first(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})").dtype == DType::nf4);
  const Quantization experts = quantization(R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})");
  CHECK(ModuleFormats(experts).of("model.layers.0.mlp.experts.gate_up_proj", true, false)->dtype == DType::mxfp4);
  CHECK(ModuleFormats(experts).of("model.layers.0.self_attn.q_proj", false, false) == nullptr);
  CHECK(quantization(R"({"quant_method": "quark"})").parts.empty());  // not described: refused where it would be served
  CHECK(quantization(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*up": {"bits": 8}}})").parts.empty());
  CHECK_THROWS_AS(quantization(R"({"quant_method": "awq", "bits": "four"})"), InputError);
}
