// Weights and caches of servers' own classes, run on the meta device by benchmarks/oracle/execute_servers.py (vLLM) and
// execute_sglang.py, and with a draft's by execute_drafts.py: tests/data/executed_{servers,sglang,drafts}.jsonl, without what an
// allocator adds. Every part of the weights is judged to 0.05 % of all (what is left out: position ids, tables of towers), the
// cache exactly. A row with "open" is a finding.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "catalog/catalog.hpp"
#include "catalog/fields.hpp"
#include "catalog/quantization.hpp"
#include "inference/cache.hpp"
#include "inference/server.hpp"
#include "inference/stage.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

DType dtype_of(const std::string& text) {
  for (const DTypeRow& r : kDTypes)
    if (r.name == text) return r.value;
  return DType::bf16;
}

struct Rank {
  ServerModel model;
  ServerFacts facts;
  Stage stage;
};

/// EngineArgs of vLLM.
void ask(Server& server, const Json& options) {
  const std::string format = options.value("quantization", "");
  if (format == "fp8") server.weights = DType::fp8;
  if (format == "mxfp8") server.online = OnlineFormat::mxfp8;
  if (format == "experts_int8") server.online = OnlineFormat::experts_int8;
  if (format == "bitsandbytes") server.online = OnlineFormat::bitsandbytes;
  if (format == "fp8_per_block") server.online = OnlineFormat::fp8_per_block;
  if (format == "fp8_per_channel") server.online = OnlineFormat::fp8_per_channel;
  if (format == "int8_per_channel_weight_only") server.online = OnlineFormat::experts_int8;
  const std::string cache = options.value("kv_cache_dtype", "");
  if (cache.starts_with("fp8")) server.kv = DType::fp8;
  if (cache == "nvfp4") server.kv = DType::nvfp4;
  server.kv_token_scales = cache == "fp8_per_token_head";
  server.text_only = options.value("language_model_only", false);
  const Json limits = options.value("limit_mm_per_prompt", Json::object());
  server.no_images = limits.value("image", 1) == 0;
  server.no_sound = limits.value("audio", 1) == 0;
  server.page_tokens = options.value("block_size", 0);
  server.uniform_windows = options.value("disable_hybrid_kv_cache_manager", false);
}

Rank rank_of(const Json& row) {
  const Catalog& catalog = Catalog::builtin();
  const EngineKind engine = row["engine"] == "vllm" ? EngineKind::vllm : EngineKind::sglang;
  Architecture a = *catalog.model(row["model"].get<std::string>()).architecture;
  if (!row.value("as_published", false)) a.quantization = {};
  a.max_positions = row.value("positions", a.max_positions);  // of the configuration that was run
  if (row.contains("quantization")) a.quantization = read_quantization(Fields::parse(row["quantization"].dump(), "config.json"));
  Server server;
  server.weights = dtype_of(row.value("weights", "bf16"));
  server.kv = dtype_of(row.value("kv", "bf16"));
  if (row.contains("options")) ask(server, row["options"]);
  server.draft_tokens = row.value("mtp", 0);
  if (row.contains("draft")) {
    const Json& draft = row["draft"];
    server.draft_tokens = draft["tokens"];
    server.draft_model = "config.json";
    server.draft_method = draft["method"] == "eagle3" ? DraftMethod::eagle3 : DraftMethod::eagle;
    server.draft.architecture = std::make_shared<const Architecture>(read_config(draft["config"].dump(), "config.json"));
  }
  Rank out;
  out.model = server_model(a, engine, server);
  server.version = row["version"];
  out.facts = resolve(catalog.facts(), engine, server, catalog.gpu(row.value("gpu", "H100")), out.model);
  out.stage =
      stage_of(out.model, out.facts, row["tensor"], row.value("pipeline", 1), row.value("expert", 1), row.value("stage", 0));
  return out;
}

Json bytes_of_rank(const Rank& r, std::int64_t tensor, std::int64_t batched_tokens) {
  const Stage& s = r.stage;
  Json out;
  // of a tied model the last stage's copy of the table is called a head or an embedding
  out["embedding"] = s.embedding + (r.model.tied ? s.head : 0);
  out["head"] = r.model.tied ? 0 : s.head;
  out["tower"] = tower_bytes(r.model, r.facts, tensor, s.first);
  const Bytes draft_table = s.last ? r.facts.rope_tables * r.model.draft.rope_elements * r.facts.rope_bits / 8 : 0;
  out["tables"] = rope_bytes(r.model, r.facts) + draft_table;
  out["layers"] = s.outside - draft_table + s.norms + s.mixers + s.absorbed + s.feed_forwards + s.experts +
                  input_bytes(r.model, batched_tokens, s.first);
  return out;
}

Json pools_of_rank(const Rank& r, const Json& asked) {
  CacheAsk ask;
  ask.budget = asked["budget"];
  ask.max_model_len = asked["max_model_len"];
  const CachePool pool = sglang_pool(r.stage, r.facts, ask);
  return {{"tokens", pool.tokens},
          {"page_tokens", pool.page_tokens},
          {"kv", pool.kv},
          {"state", pool.state},
          {"state_slots", pool.state_slots}};
}

Json cache_of_rank(const Rank& r, const Json& asked) {
  if (r.model.engine == EngineKind::sglang) return pools_of_rank(r, asked);
  CacheAsk ask;
  ask.budget = asked["budget"];
  ask.max_model_len = asked["max_model_len"];
  ask.batched_tokens = asked["batched_tokens"];
  ask.max_running = 256;
  const CachePool pool = vllm_pool(r.stage, r.facts, ask);
  return {{"pages", pool.pages},
          {"page_tokens", pool.page_tokens},
          {"tokens", pool.tokens},
          {"allocated", pool.kv},
          {"full_requests", pool.full_requests}};
}

void judge(const std::string& file) {
  std::ifstream in(file);
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line);) {
    Json row = Json::parse(line);
    ++rows;
    Json ours;
    try {
      const Rank rank = rank_of(row);
      if (rank.model.tied)
        row["bytes"]["embedding"] =
            row["bytes"]["embedding"].get<std::int64_t>() + std::exchange(row["bytes"]["head"], 0).get<std::int64_t>();
      ours["bytes"] = bytes_of_rank(rank, row["tensor"], row["batched_tokens"]);
      if (row.contains("cache")) ours["cache"] = cache_of_rank(rank, row["cache"]);
    } catch (const std::exception& e) {
      FAIL_CHECK(row["id"].get<std::string>() << ": " << e.what());
      continue;
    }
    std::int64_t weights = 0;
    for (const Json& bytes : row["bytes"]) weights += bytes.get<std::int64_t>();
    const bool open = row.contains("open");
    bool met = true;
    for (const char* part : {"bytes", "cache"}) {
      if (!row.contains(part)) continue;
      const std::int64_t tolerance = part == std::string_view("bytes") ? weights / 2000 : 0;
      for (const auto& [key, value] : ours[part].items()) {
        if (!row[part].contains(key)) continue;
        const std::int64_t got = value, want = row[part][key];
        met = met && std::abs(got - want) <= tolerance;
        if (open) continue;
        CHECK_MESSAGE(std::abs(got - want) <= tolerance, row["id"].get<std::string>(), " ", part, " ", key, ": ", got,
                      ", executed ", want, ", ", got - want, ", ",
                      want == 0 ? 0 : 100.0 * static_cast<double>(got - want) / static_cast<double>(want), "%");
      }
    }
    if (open) CHECK_MESSAGE(!met, row["id"].get<std::string>(), " is met now");
  }
  CHECK(rows > 0);
}

TEST_CASE("ranks of servers hold what the engines' own classes allocate") {
  const char* other = std::getenv("OOMPLAN_EXECUTED_SERVERS");
  if (other != nullptr) return judge(other);
  judge(OOMPLAN_SOURCE_DIR "/tests/data/executed_servers.jsonl");
  judge(OOMPLAN_SOURCE_DIR "/tests/data/executed_servers_0_24.jsonl");
  judge(OOMPLAN_SOURCE_DIR "/tests/data/executed_compressed.jsonl");
  judge(OOMPLAN_SOURCE_DIR "/tests/data/executed_sglang.jsonl");
  judge(OOMPLAN_SOURCE_DIR "/tests/data/executed_drafts.jsonl");
  judge(OOMPLAN_SOURCE_DIR "/tests/data/executed_server_options.jsonl");
}

}  // namespace
