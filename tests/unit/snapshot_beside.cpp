// Predicted processes beside recorded ones, block by block: two actors of slime behind their start, and a prediction beside
// itself.
#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "estimate/explain.hpp"
#include "snapshot/beside.hpp"
#include "snapshot/predicted.hpp"
#include "snapshot_of_run.hpp"

using namespace oomplan;
namespace snap = oomplan::snapshot;

namespace {

using Changes = std::vector<std::pair<std::string, std::string>>;

/// slime's example on four GPUs, with changes of its text.
Job example_of(const Changes& changes) {
  std::ifstream file(OOMPLAN_SOURCE_DIR "/examples/slime/grpo_4b.sh");
  std::ostringstream text;
  text << file.rdbuf();
  Source source;
  source.text = text.str();
  source.name = "run.sh";
  source.environment["NUM_GPUS"] = "4";
  for (const auto& [from, to] : changes) {
    const auto at = source.text.find(from);
    REQUIRE(at != std::string::npos);
    source.text.replace(at, from.size(), to);
  }
  return read(source).job;
}

std::vector<snap::PredictedRun> predicted(const Job& job) {
  std::vector<snap::PredictedRun> out;
  for (const auto& run : all_runs(job, Catalog::builtin(), TapeStore::shared()))
    out.push_back({run.ranks, snap::predicted_snapshot(run.program, run.settings)});
  return out;
}

snap::Snapshot recorded_run(const std::string& name) {
  return recorded::snapshot_of(recorded::Reader(OOMPLAN_SOURCE_DIR "/tests/data/snapshots/" + name + ".bin").run());
}

struct Case {
  std::string name;
  Changes changes;
  Bytes merged;  ///< bytes of a layer's first projection, which the checkpoint's loading joins
  std::int64_t layers;
};

/// Qwen2.5-7B on one data-parallel rank.
const Changes kQwen25{{"--num-layers 36", "--num-layers 28 --add-qkv-bias --untie-embeddings-and-output-weights"},
                      {"--hidden-size 2560", "--hidden-size 3584"},
                      {"--ffn-hidden-size 9728", "--ffn-hidden-size 18944"},
                      {"--num-attention-heads 32", "--num-attention-heads 28"},
                      {"--num-query-groups 8", "--num-query-groups 4"},
                      {"   --qk-layernorm\n", ""},
                      {"--vocab-size 151936", "--vocab-size 152064"},
                      {"Qwen/Qwen3-4B\n", "Qwen/Qwen2.5-7B\n"},
                      {"--tensor-model-parallel-size 2", "--tensor-model-parallel-size 4"}};

}  // namespace

TEST_CASE("actors of slime behind their start hold the predicted blocks: weights, gradients, masters and states, all of them") {
  const std::array<Case, 2> cases{{{"slime_qwen3_4b_megatron_tp2_dp2_init_rank1", {}, 2 * 9728 / 2 * 2560 * 2, 36},
                                   {"slime_qwen25_7b_megatron_tp4_dp1_init_rank3", kQwen25, 2 * 18944 / 4 * 3584 * 2, 28}}};
  for (const auto& c : cases) {
    CAPTURE(c.name);
    const auto runs = predicted(example_of(c.changes));
    const auto found = snap::beside(recorded_run(c.name), 0, runs);
    REQUIRE(found);
    CHECK(found->phase == "actor.optimizer");
    CHECK(found->ranks.find("actor") == 0);
    std::int64_t whole = 0;
    for (const auto& row : found->rows) {
      CAPTURE(row.bytes);
      CAPTURE(row.tensor);
      const std::int64_t joined = row.bytes == c.merged ? c.layers : 0;
      if (row.bytes <= 512) continue;  // steps and counters
      if (row.recorded > 0) CHECK(row.recorded == row.predicted + joined);
      whole += row.recorded > 0 ? row.recorded : 0;
      if (row.recorded > 0) continue;
      // what first runs with a step: workspaces, the output layer's buffer, stand-ins for gradients
      CHECK(row.predicted == 1);
      CHECK(row.tensor.find("state") == std::string::npos);
    }
    CHECK(whole > 400);
    CHECK(found->recorded_alone - c.merged * c.layers <= 8 * 512);
    CHECK(found->alike > 22 * kGiB);
  }
}

TEST_CASE("a prediction beside itself leaves nothing over, and is of the phase of its highest moment") {
  const auto runs = predicted(example_of({}));
  REQUIRE(runs.size() >= 2);
  for (const auto& run : runs) {
    const auto found = snap::beside(run.snapshot, 0, runs);
    REQUIRE(found);
    CHECK(found->predicted_alone == 0);
    CHECK(found->recorded_alone == 0);
    CHECK(found->predicted.allocated == found->recorded.allocated);
    CHECK(found->predicted.reserved == found->recorded.reserved);
    CHECK(found->alike > 0);
    for (const auto& row : found->rows) CHECK(row.left_over() == 0);
  }
  snap::Snapshot empty;
  empty.traces.emplace_back();
  CHECK_FALSE(snap::beside(empty, 0, runs));
  CHECK_THROWS_AS(snap::beside(runs[0].snapshot, 0, runs, "actor.forwards"), InputError);
  const auto stated = snap::beside(runs[0].snapshot, 0, runs, "actor.backward");
  REQUIRE(stated);
  CHECK(stated->phase == "actor.backward");
}
