// The cache of DeepSeek V4 in vLLM: logged tokens, the block of the pool, and what is refused by name.
#include <doctest/doctest.h>

#include <string>

#include "catalog/catalog.hpp"
#include "inference/cache.hpp"
#include "inference/server.hpp"
#include "inference/stage.hpp"

namespace {

using namespace oomplan;

struct Asked {
  const char* version = "0.21.0";
  std::int64_t tensor = 2, ahead = 0;
};

CachePool pool_of(const Asked& asked, std::int64_t blocks, Bytes block, std::int64_t longest) {
  const Catalog& catalog = Catalog::builtin();
  Server server;
  server.kv = DType::fp8;
  server.version = asked.version;
  server.draft_tokens = asked.ahead;
  const ServerModel model = server_model(*catalog.model("deepseek-ai/DeepSeek-V4-Flash").architecture, EngineKind::vllm, server);
  const ServerFacts facts = resolve(catalog.facts(), EngineKind::vllm, server, catalog.gpu("GB10"), model);
  CacheAsk ask;
  ask.budget = blocks * block + block / 2;
  ask.max_model_len = longest;
  ask.batched_tokens = 8192;
  return vllm_pool(stage_of(model, facts, asked.tensor, 1, 1, 0), facts, ask);
}

/// Two GB10 with 8,192 tokens a batch (github.com/jasl/vllm-ds4-sm120-harness, baselines/20260513_gb10_post_rowwise_dda4668b5,
/// performance/canon/*/kv_info.txt and report.md). The logged memory is that of one of two nodes, and the lesser one decides: how
/// many blocks there were follows from the tokens, of which a block more or less would be 10 to 20.
TEST_CASE("tokens of DeepSeek V4's cache are those that four servers logged") {
  constexpr Bytes kBlock = 22 * (37440 + 8640 + 1728);
  CHECK(pool_of({}, 21946, kBlock, 65536).tokens == 445969);
  CHECK(pool_of({}, 22693, kBlock, 32768).tokens == 240104);
  CHECK(pool_of({.ahead = 2}, 20729, kBlock, 65536).tokens == 420586);
  CHECK(pool_of({.ahead = 2}, 20830, kBlock, 32768).tokens == 220037);
}

TEST_CASE("a block of DeepSeek V4's cache has the slots that are used from vLLM 0.23 on") {
  constexpr Bytes kPacked = 22 * 37440 + 21 * 8640 + 20 * 1728;
  const CachePool before = pool_of({.version = "0.22.0"}, 1000, 22 * (37440 + 8640 + 1728), 65536);
  const CachePool packed = pool_of({.version = "0.23.0"}, 1000, kPacked, 65536);
  CHECK(before.pages == 1000);
  CHECK(packed.pages == 1000);
  CHECK(packed.kv == 1000 * kPacked);
  CHECK(packed.tokens == before.tokens);
  CHECK(pool_of({.version = "0.24.0", .tensor = 8}, 1000, kPacked, 65536).tokens == packed.tokens);  // whole on every rank
}

TEST_CASE("vLLM 0.20 logged the tokens of DeepSeek V4's smallest pages") {
  CHECK(pool_of({.version = "0.20.0"}, 1000, 22 * (37440 + 8640 + 1728), 65536).tokens == 1000 / 5 * 4);
}

std::string refusal(const char* version, Server server, EngineKind engine = EngineKind::vllm) {
  const Catalog& catalog = Catalog::builtin();
  server.version = version;
  server.kv = server.kv == DType::fp16 ? DType::bf16 : DType::fp8;
  try {
    const ServerModel model = server_model(*catalog.model("deepseek-ai/DeepSeek-V4-Flash").architecture, engine, server);
    resolve(catalog.facts(), engine, server, catalog.gpu("H100"), model);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

TEST_CASE("what of DeepSeek V4 is not described is refused by name") {
  CHECK(refusal("0.24.0", {}) == "");
  CHECK(refusal("0.19.1", {}).find("0.20 or later") != std::string::npos);
  CHECK(refusal("0.5.10", {}, EngineKind::sglang).find("compressed entries") != std::string::npos);
  Server wide;
  wide.kv = DType::fp16;
  CHECK(refusal("0.24.0", wide).find("--kv-cache-dtype fp8") != std::string::npos);
  Server stages;
  stages.layout.pipeline = 2;
  CHECK(refusal("0.24.0", stages).find("layout.pipeline") != std::string::npos);
  Server shared;
  shared.decode_context = 2;
  CHECK(refusal("0.24.0", shared).find("decode_context") != std::string::npos);
}

}  // namespace
