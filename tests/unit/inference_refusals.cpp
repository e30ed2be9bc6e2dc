// Servers that refused to start and printed figures: tests/data/server_refusals.jsonl, reproduced to the printed digit.
//
// A figure that follows from a printed one (3.18 GiB) is judged by what all values that print so would give.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

double as_gib(Bytes bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }
Bytes bytes_of_gib(double gib) { return static_cast<Bytes>(std::llround(gib * static_cast<double>(kGiB))); }

std::size_t decimals(const std::string& printed) {
  const auto point = printed.find('.');
  return point == std::string::npos ? 0 : printed.size() - point - 1;
}

/// All that is printed as `printed`.
std::pair<Bytes, Bytes> range_of(const std::string& printed) {
  const double value = std::stod(printed), half = 0.5 * std::pow(10.0, -2.0);  // the engine rounds to two decimals
  return {bytes_of_gib(value - half), bytes_of_gib(value + half)};
}

std::string print(Bytes bytes, const std::string& like) {
  return fmt::format("{:.{}f}", std::round(as_gib(bytes) * 100) / 100, decimals(like));
}

DType format_of(const std::string& text) { return text == "fp8" ? DType::fp8 : DType::bf16; }

ServerFigures figures_of(const Json& row, Bytes pool) {
  const Catalog& catalog = Catalog::builtin();
  Server s;
  s.version = row["engine"].get<std::string>().substr(5);
  s.layout.tensor = row["tensor"];
  s.layout.pipeline = row["pipeline"];
  s.max_model_len = row["max_model_len"];
  s.weights = format_of(row["weights"]);
  s.kv = format_of(row["kv"]);
  s.kv_cache_bytes = pool;
  return serve(*catalog.model(row["model"].get<std::string>()).architecture, EngineKind::vllm, s, catalog.gpu("H100-80GB"),
               catalog.facts());
}

void check_request(const Json& row) {
  const std::string pool = row["pool_gib"], needed = row["needed_gib"];
  const auto [least, most] = range_of(pool);
  const ServerFigures low = figures_of(row, least), high = figures_of(row, most);
  CHECK(print(low.request_bytes, needed) == needed);
  CHECK(low.refusal.find("one request of") != std::string::npos);
  if (row["longest"].is_null()) return;
  const std::int64_t longest = row["longest"];
  CHECK(low.longest <= longest);
  CHECK(longest <= high.longest);
  CHECK(high.longest - low.longest < 0.1 * static_cast<double>(longest));  // the range says something
}

void check_tokens(const Json& row) {
  const auto [least, most] = range_of(row["pool_gib"]);
  const std::int64_t tokens = row["tokens"];
  CHECK(figures_of(row, least).kv_tokens <= tokens);
  CHECK(tokens <= figures_of(row, most).kv_tokens);
  CHECK_FALSE(figures_of(row, most).refusal.empty());
}

void check_free(const Json& row) {
  const Catalog& catalog = Catalog::builtin();
  const auto [least, most] = range_of(row["total_gib"]);
  Server s;
  s.version = row["engine"].get<std::string>().substr(5);
  s.memory_fraction = row["fraction"];
  s.max_model_len = 1024;
  Gpu gpu = catalog.gpu("H100-80GB");
  const auto any = catalog.model("Qwen/Qwen3-0.6B").architecture;
  std::array<Bytes, 2> requested{};
  for (const bool high : {false, true}) {
    gpu.usable = high ? most : least;
    const ServerModel model = server_model(*any, EngineKind::vllm, s);
    ServerPoint point = point_of(s);
    point.occupied = gpu.usable - range_of(row["free_gib"]).second;
    const ServerPlan p = plan(model, resolve(catalog.facts(), EngineKind::vllm, s, gpu, model), point);
    CHECK(p.refusal == ServerRefusal::not_enough_free);
    requested[high ? 1 : 0] = p.budget;
  }
  const auto [printed_least, printed_most] = range_of(row["requested_gib"]);
  CHECK(requested[0] <= printed_most);
  CHECK(printed_least <= requested[1]);
}

}  // namespace

TEST_CASE("refusals of servers are reproduced to the printed digit") {
  std::ifstream file(OOMPLAN_SOURCE_DIR "/tests/data/server_refusals.jsonl");
  REQUIRE(file);
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["id"].get<std::string>());
    const std::string kind = row["kind"];
    if (kind == "request")
      check_request(row);
    else if (kind == "tokens")
      check_tokens(row);
    else
      check_free(row);
  }
  CHECK(rows >= 11);
}
