// The format of a server's cache, and what auto comes to: by hand.
#include <doctest/doctest.h>

#include <optional>
#include <set>
#include <string>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "catalog/engine_releases.hpp"
#include "catalog/fields.hpp"
#include "inference/cache_format.hpp"
#include "inference/server.hpp"
#include "job/knobs.hpp"

namespace {

using namespace oomplan;
using T = ServerTensor;

constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct";
// 32 layers, keys and values of 8 heads of 128 numbers
constexpr std::int64_t kNumbersOfAToken = 32 * 2 * 8 * 128;

constexpr std::optional<DType> kAuto = std::nullopt;  ///< what `auto` is

Server server_of(std::string version, DType weights, std::optional<DType> kv) {
  Server out;
  out.version = std::move(version);
  out.weights = weights;
  out.kv = kv;
  out.max_model_len = 8192;
  return out;
}

ServerPlan plan_of(EngineKind engine, const Server& s, const char* name = kLlama) {
  const Catalog& catalog = Catalog::builtin();
  const Gpu& gpu = catalog.gpu("H100-80GB");
  const ServerModel m = server_model(*catalog.model(name).architecture, engine, s);
  return plan(m, resolve(catalog.facts(), engine, s, gpu, m), point_of(s));
}

DType format_of(const Architecture& a, EngineKind engine, const Server& s, const char* sm = "sm90") {
  return cache_format(a, engine, s, Catalog::builtin().facts(), sm);
}

DType auto_of(const char* quantization, EngineKind engine, const char* version, const char* sm = "sm90") {
  Architecture a = *Catalog::builtin().model(kLlama).architecture;
  a.quantization = read_quantization(Fields::parse(quantization, "config.json"));
  return format_of(a, engine, server_of(version, DType::bf16, kAuto), sm);
}

constexpr const char* kModelOpt = R"({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})";
constexpr const char* kModelOptScheme =
    R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"}})";
constexpr const char* kModelOpt4 = R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"})";
constexpr const char* kCompressed = R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"],
  "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}},
  "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true}})";
constexpr const char* kFp8 = R"({"quant_method": "fp8", "weight_block_size": [128, 128]})";

}  // namespace

TEST_CASE("auto is the model's own format: a cache in fp32 has half the tokens of one in 16 bits") {
  for (const EngineKind engine : {EngineKind::vllm, EngineKind::sglang}) {
    const char* const version = engine == EngineKind::vllm ? "0.19.1" : "0.5.10";
    CHECK(plan_of(engine, server_of(version, DType::bf16, kAuto)).token_bytes == kNumbersOfAToken * 2);
    CHECK(plan_of(engine, server_of(version, DType::fp16, kAuto)).token_bytes == kNumbersOfAToken * 2);
    CHECK(plan_of(engine, server_of(version, DType::fp32, kAuto)).token_bytes == kNumbersOfAToken * 4);
    CHECK(plan_of(engine, server_of(version, DType::fp32, DType::fp8)).token_bytes == kNumbersOfAToken);
  }
  Server stated = server_of("0.19.1", DType::fp32, kAuto);
  stated.kv_cache_bytes = 1000 * 16 * kNumbersOfAToken * 4;  // a thousand pages
  CHECK(plan_of(EngineKind::vllm, stated).kv_tokens == 16000);
  stated.kv = DType::bf16;
  CHECK(plan_of(EngineKind::vllm, stated).kv_tokens == 32000);
}

TEST_CASE("tokens times the bytes of one are the pool, for every format, release and engine") {
  const Catalog& catalog = Catalog::builtin();
  std::int64_t seen = 0;
  for (const EngineKind engine : {EngineKind::vllm, EngineKind::sglang}) {
    const std::string_view name = engine == EngineKind::vllm ? "vllm" : "sglang";
    for (const std::string& version : known_releases(catalog.facts(), name))
      for (const DType weights : {DType::bf16, DType::fp16, DType::fp32, DType::fp8})
        for (const std::optional<DType> kv : {kAuto, std::optional(DType::bf16), std::optional(DType::fp16),
                                              std::optional(DType::fp32), std::optional(DType::fp8)}) {
          const ServerPlan p = plan_of(engine, server_of(version, weights, kv));
          const DType own = weights == DType::fp8 ? DType::bf16 : weights;
          const Bytes token = bytes_of(kNumbersOfAToken, kv.value_or(own));
          CAPTURE(version);
          CHECK(p.token_bytes == token);
          // vLLM fills whole pages of its pool; SGLang has one page more than it counts
          const std::int64_t more = engine == EngineKind::sglang ? p.page_tokens : 0;
          CHECK(p[T::kv_cache] == (p.kv_tokens + more) * token);
          CHECK(p.kv_tokens * token <= p.kv_pool);
          CHECK((p.kv_tokens + p.page_tokens) * token > p.kv_pool);
          ++seen;
        }
  }
  CHECK(seen > 400);
}

TEST_CASE("a checkpoint that names its cache's format is followed by the releases that read it") {
  constexpr EngineKind kV = EngineKind::vllm, kS = EngineKind::sglang;
  struct Row {
    const char* quantization;
    EngineKind engine;
    const char* version;
    DType format;
  };
  const Row rows[] = {
      {kModelOpt, kV, "0.13.0", DType::bf16},      {kModelOpt, kV, "0.14.1", DType::fp8},
      {kModelOpt, kV, "0.24.0", DType::fp8},       {kModelOptScheme, kV, "0.19.1", DType::fp8},
      {kModelOpt4, kV, "0.19.1", DType::bf16},     {kModelOpt4, kV, "0.21.0", DType::nvfp4},
      {kCompressed, kV, "0.14.1", DType::bf16},    {kCompressed, kV, "0.17.1", DType::fp8},
      {kCompressed, kV, "0.24.0", DType::fp8},     {kFp8, kV, "0.24.0", DType::bf16},
      {kModelOpt, kS, "0.5.2", DType::bf16},       {kModelOpt, kS, "0.5.3", DType::fp8},
      {kModelOptScheme, kS, "0.5.10", DType::fp8}, {kModelOpt4, kS, "0.5.18", DType::bf16},
      {kCompressed, kS, "0.5.18", DType::bf16},    {kFp8, kS, "0.5.18", DType::bf16},
  };
  for (const Row& row : rows) {
    CAPTURE(row.quantization);
    CAPTURE(row.version);
    CHECK(auto_of(row.quantization, row.engine, row.version) == row.format);
  }
  // in 0.17 to 0.21 compressed-tensors' scheme overrules --kv-cache-dtype; later it does not
  Architecture a = *Catalog::builtin().model(kLlama).architecture;
  a.quantization = read_quantization(Fields::parse(kCompressed, "config.json"));
  CHECK(format_of(a, kV, server_of("0.19.1", DType::bf16, DType::bf16)) == DType::fp8);
  CHECK(format_of(a, kV, server_of("0.24.0", DType::bf16, DType::bf16)) == DType::bf16);
  // a trainer's weights are no checkpoint
  Server rollout = server_of("0.24.0", DType::bf16, kAuto);
  rollout.as_stored = false;
  CHECK(format_of(a, kV, rollout) == DType::bf16);
}

TEST_CASE("SGLang's sparse attention has a cache in fp8 on Blackwell and in bf16 on Hopper") {
  const ModelFound found = Catalog::builtin().model("deepseek-ai/DeepSeek-V3.2");
  const Architecture& a = *found.architecture;
  Server s = server_of("0.5.10", DType::bf16, kAuto);
  s.as_stored = false;
  CHECK(format_of(a, EngineKind::sglang, s, "sm100") == DType::fp8);
  CHECK(format_of(a, EngineKind::sglang, s, "sm90") == DType::bf16);
  CHECK(format_of(a, EngineKind::vllm, s, "sm100") == DType::bf16);
}

TEST_CASE("what else follows the model's format: weights, tables, activations, graphs") {
  const ServerPlan two = plan_of(EngineKind::vllm, server_of("0.19.1", DType::bf16, kAuto));
  const ServerPlan four = plan_of(EngineKind::vllm, server_of("0.19.1", DType::fp32, kAuto));
  for (const T t : {T::embedding, T::head, T::feed_forwards, T::norms, T::rope, T::hidden, T::residual, T::attention_output,
                    T::gate_up, T::activation, T::sampled_hidden, T::logits, T::buffers})
    CHECK(four[t] == 2 * two[t]);
  CHECK(four[T::logits_fp32] == 0);  // they are already
  // FlashAttention 3 takes 16 bits: no parts of its output in the graphs, but activations of twice the size
  // 32 parts of 512 requests of 32 heads of 128, in fp32
  const Bytes splits = Bytes{32} * 512 * 32 * 128 * 4, activations = Bytes{512} * (3 * 4096 + 4096 + 2 * 14336 + 14336);
  CHECK(four[T::graphs] == two[T::graphs] - splits + 2 * activations);
}

TEST_CASE("a job file's kv: auto is its default, and is written so") {
  const auto text = [](const char* kv) {
    Source source;
    source.text = std::string(
                      "oomplan: 1\ngpus: 1 x H100-80GB\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
                      "server: {engine: vllm 0.19.1, layout: d1, max_model_len: 8k") +
                  kv + "}\n";
    source.name = "server.yaml";
    return read(source).job;
  };
  CHECK(oomplan::get(text(""), "server.kv") == "auto");
  CHECK(oomplan::get(text(", kv: auto"), "server.kv") == "auto");
  CHECK(oomplan::get(text(", kv: fp8"), "server.kv") == "fp8");
}
