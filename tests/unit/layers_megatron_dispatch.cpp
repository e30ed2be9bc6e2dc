// Megatron-core's allgather dispatcher against what it saved and kept when it
// ran (tests/data/executed_megatron_dispatch.jsonl, made by
// benchmarks/oracle/execute_megatron_dispatch.py).
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "megatron_dispatcher_case.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TEST_CASE(
    "megatron: the allgather dispatcher saves and keeps what it saved "
    "and kept") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_dispatch.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    const TrainingCase c = dispatcher_case(row, "allgather");
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    std::map<Bytes, std::int64_t> want, got;
    for (const auto& tensor : row["saved"]) want[tensor[0].get<Bytes>()] += tensor[1].get<std::int64_t>();
    for (const auto& site : saved_of_chunk_layer(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0).front(), 0))
      if (site.name.find("permutation.") != std::string::npos)  // indices, probabilities and mask
        ++got[site.bytes.value(stage.counts)];
    CHECK(want == got);
    // where nothing is gathered the map is the router's own, which the row does
    // not count
    const Bytes map = row["ranks"] == 1 ? row["tokens"].get<Bytes>() * row["experts"].get<Bytes>() : 0;
    Bytes maps = 0;
    const LastRouting& last = stage.permutations.at(0);
    for (std::size_t i = 0; i < last.maps.size(); ++i) maps += last.units[i] * last.maps[i];
    CHECK(stage.routing + maps == row["kept"].get<Bytes>() + map);
    const std::int64_t all = row["ranks"].get<std::int64_t>() * row["splits"].get<std::int64_t>();
    const Bytes gathered = all == 1 ? 0 : 2 * row["tokens"].get<Bytes>() * all * row["hidden"].get<Bytes>();
    CHECK(stage.gathered == gathered);
  }
  CHECK(rows == 5);
}

}  // namespace
