// What servers say when one request does not fit, checked against messages that users posted; V0; the cache as it was asked for.
#include <doctest/doctest.h>

#include <cmath>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;

ServerFigures figures(const char* model, const Server& server, const char* gpu = "H100-80GB") {
  const Catalog& catalog = Catalog::builtin();
  return serve(*catalog.model(model).architecture, EngineKind::vllm, server, catalog.gpu(gpu), catalog.facts());
}

/// As the engine prints it.
double gib(Bytes b) { return std::round(static_cast<double>(b) / static_cast<double>(kGiB) * 100) / 100; }

}  // namespace

TEST_CASE("vLLM 0.15 holds a request of all layers against the smallest stage (vllm-project/vllm issue 34076)") {
  Server s;
  s.version = "0.15.2";
  s.layout.pipeline = 2;
  s.max_model_len = 262144;
  s.weights = DType::fp8;
  s.kv_cache_bytes = 3414687744;  // printed as 3.18 GiB
  const ServerFigures f = figures("Qwen/Qwen3-Coder-30B-A3B-Instruct", s, "RTX5090-32GB");
  CHECK(gib(f.request_bytes) == 24.0);
  CHECK(gib(f.kv_pool) == 3.18);
  CHECK(f.longest == 34736);
  CHECK(f.refusal.find("34736") != std::string::npos);
  s.version = "0.19.0";  // since 0.16 a stage answers for its own layers
  CHECK(gib(figures("Qwen/Qwen3-Coder-30B-A3B-Instruct", s, "RTX5090-32GB").request_bytes) == 12.0);
}

TEST_CASE("vLLM 0.8 counts chunked layers in full (vllm-project/vllm issue 16118)") {
  Server s;
  s.version = "0.8.3";
  s.layout.tensor = 8;
  s.max_model_len = 1048576;
  const ServerFigures f = figures("meta-llama/Llama-4-Scout-17B-16E-Instruct", s);
  CHECK(gib(f.request_bytes) == 24.0);
}

TEST_CASE("a cache of a stated size holds as many tokens, whatever the share") {
  Server s;
  s.version = "0.19.0";
  s.max_model_len = 8192;
  s.kv_cache_bytes = 32 * kGiB;
  s.memory_fraction = 0.5;
  const ServerFigures f = figures("meta-llama/Llama-3.1-8B-Instruct", s);
  CHECK(f.kv_tokens == 32 * kGiB / (32 * 2 * 8 * 128 * 2));
  CHECK(f.refusal.empty());
}

TEST_CASE("vLLM V0: whole prompts in one batch, NCCL inside the budget, the context outside") {
  Server s;
  s.version = "0.6.6";
  s.max_model_len = 8192;
  const ServerFigures f = figures("meta-llama/Meta-Llama-3-8B-Instruct", s);
  CHECK(f.kv_pool == f.requested - f.non_kv);
  s.max_model_len = 32768;
  const ServerFigures longer = figures("meta-llama/Meta-Llama-3-8B-Instruct", s);
  CHECK(longer.profile_peak > f.profile_peak);
  s.max_model_len = 65536;  // above 32,768 prompts are cut in chunks of 2,048
  CHECK(figures("meta-llama/Meta-Llama-3-8B-Instruct", s).profile_peak < longer.profile_peak);
}

TEST_CASE("MTP blocks are loaded beside the model and have a cache of their own") {
  Server s;
  s.version = "0.19.0";
  s.layout.tensor = 8;
  s.max_model_len = 8192;
  const Catalog& catalog = Catalog::builtin();
  const auto architecture = catalog.model("deepseek-ai/DeepSeek-V3").architecture;  // fp8 in blocks of 128
  const Architecture& a = *architecture;
  const ServerModel plain = server_model(a, EngineKind::vllm, s);
  s.draft_tokens = 1;
  const ServerModel drafts = server_model(a, EngineKind::vllm, s);
  CHECK(drafts.kinds.size() == plain.kinds.size() + 1);
  REQUIRE(drafts.drafts.size() == 1);
  CHECK(drafts.drafts[0].count == 1);
  CHECK(drafts.draft_outside == 2 * (2 * 7168 * 7168 + a.mtp.norms * 7168));
  const ServerFacts known = resolve(catalog.facts(), EngineKind::vllm, s, catalog.gpu("H200-141GB"), drafts);
  const ServerPlan with = plan(drafts, known, point_of(s)), without = plan(plain, known, point_of(s));
  CHECK(with.token_bytes == without.token_bytes / 61 * 62);  // 61 layers and one block
  CHECK(with.weights > without.weights);
  CHECK_THROWS_AS(server_model(*catalog.model("Qwen/Qwen3-8B").architecture, EngineKind::vllm, s), InputError);
  CHECK_THROWS_AS(server_model(*catalog.model("Qwen/Qwen3-8B").architecture, EngineKind::sglang, s), InputError);
}

TEST_CASE("a quantised checkpoint is served as it lies") {
  const Catalog& catalog = Catalog::builtin();
  const auto architecture = catalog.model("deepseek-ai/DeepSeek-V3").architecture;  // fp8 in blocks of 128
  const Architecture& a = *architecture;
  REQUIRE(a.quantization.method == "fp8");
  Server s;
  const ServerModel stored = server_model(a, EngineKind::vllm, s);
  s.as_stored = false;
  const ServerModel plain = server_model(a, EngineKind::vllm, s);
  const Bytes expert = 3 * 7168 * 2048;
  CHECK(plain.kinds.back().expert == 2 * expert);
  CHECK(stored.kinds.back().expert == expert + 3 * (7168 / 128) * (2048 / 128) * 4);
  CHECK(stored.row == plain.row);
  CHECK(stored.kinds.back().router == plain.kinds.back().router);
}

TEST_CASE("a version newer than all that were read is answered by the newest") {
  const Facts& facts = Catalog::builtin().facts();
  CHECK(facts.answering("vllm", "0.19.1") == "0.19.1");
  const std::string newest = facts.answering("vllm", "0.99");
  CHECK(facts.answering("vllm", newest) == newest);
  CHECK(facts.answering("vllm", "0.1").empty());
  CHECK(facts.answering("sglang", "").empty());
}

TEST_CASE("sparse attention: every layer has its layout, some layers an indexer (GLM-5.2)") {
  const Catalog& catalog = Catalog::builtin();
  Server s;
  s.version = "0.23.1";
  s.layout.tensor = 4;
  s.max_model_len = 400000;
  s.kv = DType::fp8;
  s.as_stored = false;
  s.kv_cache_bytes = 32 * kGiB;
  const ServerModel m = server_model(*catalog.model("zai-org/GLM-5.2").architecture, EngineKind::vllm, s);
  const ServerFacts known = resolve(catalog.facts(), EngineKind::vllm, s, catalog.gpu("GH200-96GB"), m);
  CHECK(plan(m, known, point_of(s)).token_bytes == 78 * 656 + 21 * 132);
}

TEST_CASE("SGLang's weights are what they take of the card: large matrices in whole 2 MiB") {
  const Catalog& catalog = Catalog::builtin();
  Server s;
  s.version = "0.4.3";
  s.layout.tensor = 4;
  s.max_model_len = 131072;
  const ServerFigures f =
      serve(*catalog.model("Qwen/QwQ-32B").architecture, EngineKind::sglang, s, catalog.gpu("L4-24GB"), catalog.facts());
  CHECK(gib(f.weights) == 15.54);  // logged on 4 x L4; the tensors alone are 15.32
}
