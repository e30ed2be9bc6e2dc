// Expert parallelism, data-parallel ranks and drafts of servers: which rank has what, by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "catalog/catalog.hpp"
#include "inference/layer_tensors.hpp"
#include "inference/rank_share.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;
using T = ServerTensor;

// Qwen3-30B-A3B: h 2048, 48 layers, 128 experts of width 768 of which a token sees 8, 32 and 4 heads of 128, vocabulary 151,936
constexpr Bytes kExperts = Bytes{48} * 128 * 3 * 2048 * 768 * 2;
constexpr Bytes kTable = Bytes{151936} * 2048 * 2;

ServerPlan plan_of(EngineKind engine, const char* version, const char* name, const ServerPoint& point,
                   const Server& server = {}) {
  const Catalog& catalog = Catalog::builtin();
  const ServerModel m = server_model(*catalog.model(name).architecture, engine, server);
  Server asked = server;
  asked.version = version;
  return plan(m, resolve(catalog.facts(), engine, asked, catalog.gpu("H200-141GB"), m), point);
}
ServerPlan qwen(EngineKind engine, const char* version, const ServerPoint& point) {
  return plan_of(engine, version, "Qwen/Qwen3-30B-A3B", point);
}

std::string problems_of(const std::string& server, const char* model = "Qwen/Qwen3-30B-A3B",
                        const char* gpus = "8 x H200-141GB") {
  Source source;
  source.text =
      std::string("oomplan: 1\ngpus: ") + gpus + "\nmodel: " + model + "\nserver: {max_model_len: 8k, " + server + "}\n";
  source.name = "server.yaml";
  try {
    (void)estimate_quick(read(source).job);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST_CASE("vLLM's data-parallel ranks share the experts, whether by number or by width, and have the rest each") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.tensor = 2;
  const ServerPlan alone = qwen(EngineKind::vllm, "0.19.1", point);
  point.attention_data = 2;
  const ServerPlan by_width = qwen(EngineKind::vllm, "0.19.1", point);
  point.expert = 4;
  const ServerPlan by_number = qwen(EngineKind::vllm, "0.19.1", point);
  CHECK(alone[T::experts] == kExperts / 2);
  CHECK(by_width[T::experts] == kExperts / 4);
  CHECK(by_number[T::experts] == kExperts / 4);
  CHECK(by_number[T::embedding] == kTable / 2);
  CHECK(by_number[T::head] == kTable / 2);
  CHECK(alone.token_bytes == by_number.token_bytes);
  // T tokens of either group meet: 8 of them for every token's experts, of 768 columns and twice that for gate and up
  const std::int64_t tokens = by_number.batched_tokens;
  CHECK(by_number[T::gathered] == 2 * tokens * 2048 * 2);
  CHECK(by_number[T::forward_workspace13] == 2 * tokens * 8 * 2048 * 2);
  CHECK(alone[T::gathered] == 0);
}

TEST_CASE("experts that do not divide: the first ranks have one more, up to 0.10 the last one all that is left") {
  ServerLayer l;
  l.experts = 10;
  RankShare cut;
  cut.tensor = 4;
  cut.expert = 4;
  ServerFacts f;
  CHECK(experts_of_rank(l, f, cut) == 3);  // 3 3 2 2
  f.last_rank_takes_rest = true;
  CHECK(experts_of_rank(l, f, cut) == 4);  // 2 2 2 4
  f.redundant_experts = 6;
  CHECK(experts_of_rank(l, f, cut) == 4);
}

TEST_CASE("SGLang's data-parallel attention: heads by group, blocks and experts by all ranks") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.tensor = 4;
  const ServerPlan alone = qwen(EngineKind::sglang, "0.5.10", point);
  point.attention_data = 2;
  const ServerPlan two = qwen(EngineKind::sglang, "0.5.10", point);
  CHECK(two[T::experts] == kExperts / 4);
  CHECK(two[T::head] == kTable / 4);
  CHECK(two[T::embedding] == kTable / 2);  // cut as attention is
  CHECK(qwen(EngineKind::sglang, "0.5.7", point)[T::embedding] == kTable);
  CHECK(alone.token_bytes == 48 * 1 * 2 * 128 * 2);
  CHECK(two.token_bytes == 48 * 2 * 2 * 128 * 2);
  CHECK(two.batched_tokens == alone.batched_tokens / 2);
  CHECK(two[T::gathered] == alone.batched_tokens * 2048 * 2);
  point.head_by_attention = true;
  CHECK(qwen(EngineKind::sglang, "0.5.10", point)[T::head] == kTable / 2);
  // the logits of both groups' requests meet in a head that is divided over all ranks
  CHECK(two[T::logits] == 2 * qwen(EngineKind::sglang, "0.5.10", point)[T::logits]);
}

TEST_CASE("SGLang reserves more for data-parallel attention") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.tensor = 4;
  point.attention_data = 2;
  const double mib = static_cast<double>(Catalog::builtin().gpu("H200-141GB").smi_mib);
  const auto fraction = [&](double reserve) { return (mib - reserve) / mib; };
  // 0.5.5: 512 + 1.5 * 8192 + 2 * 512 + 128 * 4, and 512 * 2 * (3 + 1.5); chunks are divided behind it
  CHECK(qwen(EngineKind::sglang, "0.5.5", point).fraction ==
        doctest::Approx(fraction(512 + 12288 + 1024 + 512 + 4608)).epsilon(0.001));
  CHECK(qwen(EngineKind::sglang, "0.5.2", point).fraction == doctest::Approx(fraction((12 + 2 + 4) * 1024)).epsilon(0.001));
}

TEST_CASE("dense blocks of a model with experts are whole on every rank where they are asked to be") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.tensor = 8;
  point.attention_data = 8;
  const ServerPlan cut = plan_of(EngineKind::sglang, "0.5.10", "deepseek-ai/DeepSeek-V3", point);
  point.whole_dense = true;
  const ServerPlan whole = plan_of(EngineKind::sglang, "0.5.10", "deepseek-ai/DeepSeek-V3", point);
  const Bytes dense = Bytes{3} * 3 * 7168 * 18432;  // three layers of one byte, and fp32 scales of squares of 128
  const Bytes scales = dense / (128 * 128) * 4;
  CHECK(whole[T::feed_forwards] - cut[T::feed_forwards] == (dense + scales) - (dense + scales) / 8);
}

TEST_CASE("layouts that the engines do not run are told with the rule") {
  CHECK(problems_of("engine: vllm 0.19.1, layout: t4e4") == "");
  CHECK(problems_of("engine: vllm 0.19.1, layout: t4e2").find("divides the experts over all 4 ranks of a server: e4") !=
        std::string::npos);
  CHECK(problems_of("engine: vllm 0.19.1, layout: d2t2e4, attention_data: 2") == "");
  CHECK(problems_of("engine: vllm 0.19.1, layout: d3t2, attention_data: 2", "Qwen/Qwen3-30B-A3B").find("does not divide d3") !=
        std::string::npos);
  CHECK(problems_of("engine: vllm 0.19.1, layout: t2e2", "Qwen/Qwen3-8B").find("the model has no experts") != std::string::npos);
  CHECK(problems_of("engine: vllm 0.19.1, layout: d2, attention_data: 2", "Qwen/Qwen3-8B").find("are replicas: d2") !=
        std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t4e2") == "");
  CHECK(problems_of("engine: sglang 0.5.10, layout: d3t4e3").find("e3 does not divide t4") != std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t8e8, redundant_experts: 4").find("a multiple of 8") != std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t8e8, redundant_experts: 8, attention_data: 4, head_by_attention: true") ==
        "");
  CHECK(problems_of("engine: sglang 0.5.10, layout: t4, attention_data: 3").find("attention_data 3 does not divide t4") !=
        std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t4, head_by_attention: true").find("enable_dp_attention") !=
        std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t4, attention_data: 4", "meta-llama/Llama-3.1-8B-Instruct")
            .find("not supported yet: data-parallel attention of llama") != std::string::npos);
  CHECK(problems_of("engine: vllm 0.19.1, layout: t4, whole_dense: true") != "");
}

TEST_CASE("redundant experts are copies on every rank") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.tensor = point.expert = 8;
  Server server;
  server.redundant_experts = 32;
  const ServerPlan more = plan_of(EngineKind::sglang, "0.5.10", "Qwen/Qwen3-30B-A3B", point, server);
  CHECK(more[T::experts] == kExperts / 128 * 160 / 8);
}

TEST_CASE("SGLang's drafts: a second worker's weights, a pool of as many tokens, tables of pages") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.tensor = 8;
  const char* const model = "deepseek-ai/DeepSeek-V3";
  const ServerPlan plain = plan_of(EngineKind::sglang, "0.5.10", model, point);
  Server server;
  server.draft_tokens = 4;
  point.draft_steps = 3;
  const ServerPlan drafts = plan_of(EngineKind::sglang, "0.5.10", model, point, server);
  CHECK(drafts.weights == plain.weights);  // they are loaded behind the pool
  CHECK(drafts[T::drafts] > 0);
  CHECK(drafts.max_running == 48);
  CHECK(drafts[T::draft_cache] == (drafts.kv_tokens + 1) * 576 * 2);  // one layer of latent cache
  CHECK(drafts[T::draft_tables] == (4 * (3 + 1) - 1) * Bytes{48} * 8192 * 4);
  CHECK(drafts[T::graph_logits] == Bytes{48} * 5 * 129280 * 4);
  CHECK(drafts[T::request_table] == Bytes{48} * (8192 + 4 + 4) * 4);
  // the reserve of 10 GiB and 4 more
  const double mib = static_cast<double>(Catalog::builtin().gpu("H200-141GB").smi_mib);
  CHECK(plain.fraction - drafts.fraction > 0);
  CHECK(drafts.fraction <= (mib - 10240 - 4096) / mib + 0.001);
  // since 0.5.14 they come out of the pool, which 61 layers share with one more
  const ServerPlan before = plan_of(EngineKind::sglang, "0.5.18", model, point);
  const ServerPlan after = plan_of(EngineKind::sglang, "0.5.18", model, point, server);
  CHECK(after.kv_pool < before.kv_pool);
  CHECK(static_cast<double>(after.kv_tokens) ==
        doctest::Approx(static_cast<double>(after.kv_pool) / (62.0 * 576 * 2)).epsilon(0.001));
}

TEST_CASE("SGLang's drafts that are not described are refused by name") {
  const char* const model = "deepseek-ai/DeepSeek-V3";
  CHECK(problems_of("engine: sglang 0.5.10, layout: t8, draft_tokens: 4", model) == "");
  CHECK(problems_of("engine: sglang 0.4.9, layout: t8, draft_tokens: 4", model).find("before 0.5.2") != std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t8, draft_tokens: 4", model, "8 x B200-180GB").find("other tables") !=
        std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t8, draft_steps: 3", model).find("a number of tokens") != std::string::npos);
  CHECK(problems_of("engine: sglang 0.5.10, layout: t8, draft_tokens: 4").find("MTP") != std::string::npos);
}

TEST_CASE("fold and trace of shared experts and drafts agree") {
  for (const bool vllm : {true, false}) {
    ServerPoint point;
    point.max_model_len = 8192;
    point.tensor = 4;
    point.attention_data = 4;
    point.expert = vllm ? 16 : 4;
    const ServerPlan p = qwen(vllm ? EngineKind::vllm : EngineKind::sglang, vllm ? "0.19.1" : "0.5.10", point);
    REQUIRE(p.refusal == ServerRefusal::none);
    PeakRecorder fold;
    const ServerSites sizes = make_sites(fold, p);
    ProgramWriter writer;
    const ServerSites sites = make_sites(writer, p);
    for (const ServerPhase phase : {ServerPhase::load, ServerPhase::start, ServerPhase::generate}) {
      record(fold, p, sizes, phase);
      record(writer, p, sites, phase);
    }
    CHECK(fold.span() == trace(writer.take()).span);
  }
}

}  // namespace
