// Megatron-core's schedules: how many tensors between two stages live as each pass of a step begins, as its own functions hold
// them (tests/data/executed_megatron_schedule.jsonl, made by benchmarks/oracle/execute_megatron_schedule.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "training/megatron.hpp"

namespace {

using namespace oomplan;

/// A stage whose layers hold nothing, and whose tensors between two stages have one byte.
MegatronStage bare_stage(const nlohmann::json& row) {
  MegatronStage out;
  out.stages = row["stages"];
  out.stage = row["stage"];
  out.group = row["group"];
  out.micro_batches = row["micro_batches"];
  out.hidden = 1;
  const auto chunks = row["chunks"].get<std::size_t>();
  for (std::size_t c = 0; c < chunks; ++c) {
    out.chunks.push_back(std::make_shared<const Tape>());
    out.permutations.emplace_back();
    out.receives.push_back(out.stage > 0 || c > 0);
    out.hands_on.push_back(out.stage + 1 < out.stages || c + 1 < chunks);
  }
  return out;
}

TEST_CASE("megatron: names of the schedules hold what Megatron's own functions hold") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_schedule.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const nlohmann::json row = nlohmann::json::parse(line);
    CAPTURE(line);
    const MegatronStage stage = bare_stage(row);
    PeakRecorder r;
    MegatronEngine engine(r, stage, "");
    engine.load();
    std::string passes;
    std::vector<Bytes> held;
    for (int step = 0; step < 2; ++step) {
      passes.clear();
      held.clear();
      engine.passes(stage.micro_batches, [&](bool backward) {
        passes += backward ? 'B' : 'F';
        held.push_back(r.span().net);
      });
      engine.optimizer_step();
    }
    CHECK(passes == row["passes"].get<std::string>());
    const std::string got = nlohmann::json(held).dump();
    CAPTURE(got);
    CHECK(held == row["held"].get<std::vector<Bytes>>());
  }
  CHECK(rows > 200);
}

}  // namespace
