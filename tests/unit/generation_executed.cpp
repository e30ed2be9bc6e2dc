// Passes of transformers' generate() and of lm-evaluation-harness that PyTorch executed, made by
// benchmarks/oracle/execute_generation.py: tests/data/executed_generation.jsonl (5.24), executed_generation_5_10.jsonl (what
// differs there) and executed_generation_4.jsonl (4.57).
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimate/figures.hpp"
#include "executed_rows.hpp"
#include "layers/tape.hpp"
#include "training/engine.hpp"
#include "training/generation.hpp"
#include "training/generation_run.hpp"
#include "training/spread.hpp"

namespace {

using namespace oomplan;

struct Figures {
  Bytes whole = 0, token = 0;
};

Figures figures(const TrainingCase& c, std::int64_t prompt) {
  std::int64_t layers = 0;
  for (const LayerRun& run : c.architecture->runs) layers += run.count;
  const GenerationPasses passes = generation_passes(c.trainer, c.architecture, prompt, {0, layers, true, true}, {false});
  TrainTapes tapes;
  tapes.log_probs = make_tape(*passes.architecture, passes.whole);
  if (passes.grows) tapes.decode = make_tape(*passes.architecture, passes.token);
  const TrainPlan plan = generation_plan(passes, tapes);
  const Bytes resident = plan.resident + plan.buffers;
  Figures out;
  PeakRecorder r;
  TrainEngine<PeakRecorder> engine(r, plan, "");
  Player<PeakRecorder> player(r, *plan.log_probs, plan.log_prob_counts.counts, plan.log_prob_counts.chunks, "");
  engine.forward(player, Index(0));
  out.whole = resident + r.span().peak;
  PeakRecorder again;
  GenerationRun<PeakRecorder> generation(again, plan, "");
  generation.last_token();
  out.token = resident + again.span().peak;
  return out;
}

TEST_CASE("passes of a generator are predicted to 0.15 percent") {
  std::vector<ExecutedRow> rows;
  for (const char* file : {"executed_generation.jsonl", "executed_generation_5_10.jsonl", "executed_generation_4.jsonl"})
    read_executed(file, rows);
  double worst = 0;
  std::size_t compared = 0;
  for (const auto& [row, made] : rows) {
    const Figures f = figures(made, row.value("prompt", std::int64_t{0}));
    for (const auto& [phase, bytes] : row["peaks"].items()) {
      const auto want = bytes.get<double>();
      const double error = 100 * (static_cast<double>(phase == "token" ? f.token : f.whole) - want) / want;
      CAPTURE(row["id"].get<std::string>());
      CAPTURE(phase);
      CAPTURE(error);
      CHECK(std::abs(error) < 0.15);
      worst = std::max(worst, std::abs(error));
      ++compared;
    }
  }
  CHECK(compared >= 600);
  MESSAGE(rows.size() << " rows, " << compared << " figures, worst " << worst << " %");
}

/// Of a llama in 16 bits, by its sizes.
ModuleBytes llama(Bytes hidden, Bytes inner, std::size_t layers, Bytes of_keys, Bytes words, bool tied) {
  ModuleBytes out;
  out.embedding = out.largest_parameter = words * hidden * 2;
  out.head = tied ? 0 : out.embedding;
  out.norm = hidden * 2;
  out.layers.assign(layers, 2 * (2 * hidden * hidden + 2 * hidden * of_keys + 3 * hidden * inner + 2 * hidden));
  return out;
}

/// Layers of every GPU, and where what stands in front of them and behind lies: "7f 12 12 1b".
std::string spread_text(const ModuleBytes& modules, std::int64_t gpus, bool by_parameter) {
  std::string out;
  for (const LayerShare& share : spread_layers(modules, gpus, by_parameter)) {
    out += (out.empty() ? "" : " ") + std::to_string(share.to - share.from);
    out += std::string(share.front ? "f" : "") + (share.back ? "b" : "");
  }
  return out;
}

// What get_balanced_memory and infer_auto_device_map answered for models of these configs on GPUs of 80 GiB: of transformers 5.24
// (by_parameter), and of accelerate 1.15, which transformers 4 calls.
TEST_CASE("layers are spread over GPUs as transformers places them") {
  const ModuleBytes llama8 = llama(4096, 14336, 32, 1024, 128256, false), llama70 = llama(8192, 28672, 80, 1024, 128256, false),
                    smol = llama(576, 1536, 30, 192, 49152, true), llama1 = llama(2048, 8192, 16, 512, 128256, true);
  CHECK(spread_text(llama8, 2, true) == "16f 16b");
  CHECK(spread_text(llama8, 4, true) == "7f 12 12 1b");
  CHECK(spread_text(llama8, 8, true) == "2f 7 7 7 7 2b 0 0");
  CHECK(spread_text(llama70, 4, true) == "19f 22 22 17b");
  CHECK(spread_text(llama70, 8, true) == "9f 11 11 11 11 11 11 5b");
  CHECK(spread_text(smol, 2, true) == "19fb 11");
  CHECK(spread_text(smol, 4, true) == "10fb 19 1 0");
  CHECK(spread_text(llama1, 4, true) == "5fb 10 1 0");
  CHECK(spread_text(llama8, 2, false) == "14f 18b");
  CHECK(spread_text(llama8, 8, false) == "1f 5 5 5 5 5 5 1b");
  CHECK(spread_text(llama70, 4, false) == "19f 21 21 19b");
  CHECK(spread_text(smol, 4, false) == "1fb 10 10 9");
  CHECK(spread_text(llama1, 8, false) == "0 0 0 0 0 0 0 16fb");  // no layer beside the room for the table: all on the last one
}

}  // namespace
