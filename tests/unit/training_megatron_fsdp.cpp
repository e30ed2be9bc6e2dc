// Megatron-FSDP: steps that its own code executed on fake tensors (tests/data/executed_megatron_fsdp.jsonl, made by
// benchmarks/oracle/execute_megatron_fsdp.py).
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimate/figures.hpp"
#include "executed_rows.hpp"
#include "training/megatron_fsdp.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

const std::vector<ExecutedRow>& fsdp_steps() {
  static const std::vector<ExecutedRow> rows = executed_rows("executed_megatron_fsdp.jsonl");
  return rows;
}

/// In percent.
double fsdp_tolerance(const std::string& phase) { return phase == "load" || phase == "forward" ? 1e-9 : 0.01; }

TEST_CASE("megatron-fsdp: every phase of an executed step") {
  std::map<std::string, double> worst;
  for (const auto& [row, made] : fsdp_steps()) {
    CAPTURE(row["id"].get<std::string>());
    const MegatronStage stage = make_megatron_stage(*made.architecture, made.trainer, 0, made.micro_batches);
    const TrainingFigures f = training_figures(made);
    const std::map<std::string, Bytes> got{
        {"load", f.load}, {"forward", f.forward}, {"backward", f.backward}, {"optimizer", f.optimizer}};
    // Transformer Engine's workspace and the rotary table were not there
    const Bytes besides = stage.workspace * stage.workspaces + stage.tables;
    for (const auto& [phase, bytes] : got) {
      CAPTURE(phase);
      const auto want = row["peaks"][phase].get<double>();
      const double error = 100 * (static_cast<double>(bytes - (phase == "load" ? 0 : besides)) - want) / want;
      CAPTURE(error);
      CHECK(std::abs(error) <= fsdp_tolerance(phase));
      worst[phase] = std::max(worst[phase], std::abs(error));
    }
    std::vector<std::int64_t> sizes, expected;
    for (const FsdpBucket& b : stage.fsdp->buckets) sizes.push_back(b.elements);
    for (const Json& b : row["buckets"]) expected.push_back(b[0].get<std::int64_t>());
    CHECK(sizes == expected);
  }
  for (const auto& [phase, error] : worst) MESSAGE(phase << ": at most " << error << " %");
  CHECK(fsdp_steps().size() == 59);
}

TEST_CASE("megatron-fsdp: a step folds as it expands") {
  for (const auto& [row, made] : fsdp_steps()) {
    CAPTURE(row["id"].get<std::string>());
    const MegatronStage plan = make_megatron_stage(*made.architecture, made.trainer, 0, made.micro_batches);
    const auto record = [&](auto& recorder) {
      MegatronFsdpEngine engine(recorder, plan, "trainer");
      engine.load();
      for (int step = 0; step < 2; ++step) {
        engine.passes(std::min<std::int64_t>(made.micro_batches, 2), [](bool) {});
        engine.optimizer_step();
      }
    };
    PeakRecorder folded;
    record(folded);
    ProgramWriter writer;
    record(writer);
    Bytes level = 0, peak = 0;
    expand(writer.take(), [&](const Event& e) {
      if (e.kind != Program::Kind::alloc && e.kind != Program::Kind::free) return true;
      level += e.kind == Program::Kind::alloc ? e.bytes : -e.bytes;
      peak = std::max(peak, level);
      return true;
    });
    CHECK(folded.span().peak == peak);
    CHECK(folded.span().net == level);
  }
}

}  // namespace
