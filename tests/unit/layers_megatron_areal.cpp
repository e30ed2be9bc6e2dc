// The loss of AReaL's Megatron engine and its partition of layers against what AReaL's own functions did
// (tests/data/executed_areal_megatron.jsonl, made by benchmarks/oracle/execute_areal_megatron.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "eager_levels.hpp"
#include "layers/megatron.hpp"
#include "training/megatron_areal.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

std::vector<Json> rows(const char* key) {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_areal_megatron.jsonl");
  REQUIRE(in.good());
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);)
    if (Json row = Json::parse(line); row.contains(key)) out.push_back(std::move(row));
  return out;
}

/// As the stage's plan cuts it, but with all of the chunks written out.
Levels predicted(const Json& row) {
  const auto lengths = row["lengths"].get<std::vector<std::int64_t>>();
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), row["padding"].get<std::int64_t>());
  TokenCounts counts;
  const std::int64_t ranks = row.value("context", std::int64_t{1});
  counts.s = tokens / ranks;
  counts.k = lengths[0] / ranks;
  Architecture a;
  a.hidden = row["hidden"].get<std::int64_t>();
  ChunkOptions o;
  o.te.tensor = row["tensor"].get<std::int64_t>();
  o.padded_vocab = row["vocab"].get<std::int64_t>() * o.te.tensor;
  o.areal.on = true;
  o.areal.parts = row.contains("local") || ranks > 1 ? 0 : std::min<std::int64_t>(3, std::ssize(lengths));
  o.areal.fp32 = o.areal.in_place = row.contains("chunked");
  o.areal.gathered = ranks > 1 ? std::min<std::int64_t>(3, std::ssize(lengths)) : 0;
  o.te.context = ranks;
  o.areal.head_chunk = row.value("head_chunk", std::int64_t{0});
  const bool whole = row.contains("release") && o.te.tensor > 1;  // before 0.5.0
  o.areal.chunks = whole ? 0 : static_cast<int>((tokens + 1023) / 1024);
  o.areal.entropy = !row.contains("sft");
  if (!whole) counts.m = (tokens + o.areal.chunks - 1) / o.areal.chunks;
  Eager g;
  Tensor hidden = g.scalar(DType::bf16);
  hidden.shape = {axis::S, axis::B, Dim(a.hidden)};
  hidden.grad_fn = std::make_shared<Node>();
  hidden.grad_fn->apply = [](const Gradients&) { return Gradients{}; };
  o.forward_only = row.contains("forward_only");
  g.grad_enabled = !o.forward_only;
  Tensor loss = run_areal_megatron_head(g, a, o, hidden, {}, [](int) {});
  if (g.grad_enabled) {
    g.in_backward = true;
    g.backward(loss, g.make("gradient", {}, DType::fp32));
  }
  return levels_of(g, counts);
}

TEST_CASE("areal's Megatron loss reaches what its own functions reached") {
  int judged = 0;
  for (const Json& row : rows("lengths")) {
    CAPTURE(row.dump());
    const Levels got = predicted(row);
    const auto lengths = row["lengths"].get<std::vector<std::int64_t>>();
    const double tokens = std::accumulate(lengths.begin(), lengths.end(), 0.0);
    // what is padded goes through the loss here, but not in AReaL
    const double above = row.contains("local") ? 0.002 : 0.002 + 1.5 * row["padding"].get<double>() / tokens;
    const auto near = [&](Bytes figure, const char* key) {
      const double ratio = static_cast<double>(figure) / row[key].get<double>();
      CAPTURE(key);
      CHECK(ratio > 0.998);
      CHECK(ratio < 1 + above);
    };
    near(got.forward, "forward");
    if (row.contains("backward")) near(got.kept, "kept");
    if (row.contains("backward")) near(got.backward, "backward");
    ++judged;
  }
  CHECK(judged == 89);
}

TEST_CASE("areal's partition of layers is what its own function gave") {
  int judged = 0;
  for (const Json& row : rows("stages")) {
    CAPTURE(row.dump());
    const Architecture a = read_config(row["config"].dump(), row["model"].get<std::string>());
    Trainer t;
    t.layout.pipeline = row["stages"].get<std::int64_t>();
    t.layout.expert = row["experts"].get<std::int64_t>();
    t.megatron.virtual_stages = row["chunks"].get<std::int64_t>();
    CHECK(areal_stage_layers(a, t) == row["layers"].get<std::vector<std::int64_t>>());
    ++judged;
  }
  CHECK(judged == 28);
}

}  // namespace
