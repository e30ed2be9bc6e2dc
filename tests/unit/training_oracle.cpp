// Training steps that PyTorch executed: tests/data/oracle_rows.jsonl, made by benchmarks/oracle/compact.py, and
// tests/data/executed_*.jsonl, made by benchmarks/oracle/execute*.py.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimate/figures.hpp"
#include "executed_rows.hpp"
#include "layers/tape.hpp"
#include "layers/vision.hpp"
#include "sampled.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

/// A file of tests/data to judge alone; null: all of them.
const char* one_file() { return std::getenv("OOMPLAN_EXECUTED_STEPS"); }

const std::vector<ExecutedRow>& executed() {
  static const std::vector<ExecutedRow> rows = [] {
    std::vector<ExecutedRow> out;
    if (one_file() != nullptr) {
      read_executed(one_file(), out);
      return out;
    }
    read_executed("oracle_rows.jsonl", out);
    read_executed("executed_rows.jsonl", out);
    read_executed("executed_sdpa.jsonl", out);
    read_executed("executed_heads.jsonl", out);
    read_executed("executed_fused_heads.jsonl", out);
    read_executed("executed_fused_heads_sharded.jsonl", out);
    read_executed("executed_clamped.jsonl", out);
    read_executed("executed_fsdp1.jsonl", out);
    read_executed("executed_parallel.jsonl", out);
    read_executed("executed_litgpt.jsonl", out);
    read_executed("executed_torchtune.jsonl", out);
    read_executed("executed_liger.jsonl", out);
    read_executed("executed_optimizers.jsonl", out);
    read_executed("executed_apollo.jsonl", out);
    read_executed("executed_packed.jsonl", out);
    read_executed("executed_packed_sharded.jsonl", out);
    read_executed("executed_int8.jsonl", out);
    read_executed("executed_states.jsonl", out);
    read_executed("executed_zero.jsonl", out);
    read_executed("executed_zero_heads.jsonl", out);
    read_executed("executed_reference_fsdp1.jsonl", out);
    read_executed("executed_alst.jsonl", out);
    read_executed("executed_dora.jsonl", out);
    read_executed("executed_dora_sharded.jsonl", out);
    read_executed("executed_dora_zero.jsonl", out);
    read_executed("executed_foak.jsonl", out);
    read_executed("executed_preference.jsonl", out);
    read_executed("executed_trainer.jsonl", out);
    read_executed("executed_slime_fsdp.jsonl", out);
    read_executed("executed_accelerate.jsonl", out);
    read_executed("executed_trainer_vision.jsonl", out);
    read_executed("executed_trainer_experts.jsonl", out);
    read_executed("executed_zero_plain.jsonl", out);
    read_executed("executed_trl.jsonl", out);
    read_executed("executed_scaler.jsonl", out);
    read_executed("executed_knobs.jsonl", out);
    read_executed("executed_offload.jsonl", out);
    read_executed("executed_offload_units.jsonl", out);
    read_executed("executed_offload_linear.jsonl", out);
    read_executed("executed_stash_offload.jsonl", out);
    read_executed("executed_experts.jsonl", out);
    read_executed("executed_compiled.jsonl", out);
    read_executed("executed_vision.jsonl", out);
    read_executed("executed_towers.jsonl", out);
    read_executed("executed_llava.jsonl", out);
    read_executed("executed_mistral3.jsonl", out);
    read_executed("executed_text_alone.jsonl", out);
    read_executed("executed_flat_towers.jsonl", out);
    read_executed("executed_verl_vision.jsonl", out);
    read_executed("executed_verl_linear.jsonl", out);
    read_executed("executed_float8.jsonl", out);
    read_executed("executed_ring.jsonl", out);
    read_executed("executed_mixed.jsonl", out);
    read_executed("executed_vectors.jsonl", out);
    read_executed("executed_vectors_sharded.jsonl", out);
    read_executed("executed_archon.jsonl", out);
    read_executed("executed_compiled_archon.jsonl", out);
    read_executed("executed_fuzz.jsonl", out);
    read_executed("executed_families.jsonl", out);
    read_executed("executed_formats.jsonl", out);
    read_executed("executed_found.jsonl", out);
    read_executed("executed_policies.jsonl", out);
    read_executed("executed_fresh.jsonl", out);
    read_executed("executed_outside.jsonl", out);
    return out;
  }();
  return rows;
}

using Multiset = std::map<std::string, std::int64_t>;

std::string key(std::string_view dtype, const std::vector<std::int64_t>& shape) {
  std::string out(dtype);
  for (const auto d : shape) out += " " + std::to_string(d);
  return out;
}

Multiset expected(const Json& saved) {
  Multiset out;
  for (const auto& tensor : saved)
    out[key(tensor[0].get<std::string>(), tensor[1].get<std::vector<std::int64_t>>())] += tensor[2].get<std::int64_t>();
  return out;
}

/// The run of equal layers that a layer is in.
int run_of(const Architecture& a, std::int64_t layer) {
  int run = 0;
  for (; layer >= a.runs.at(static_cast<std::size_t>(run)).count; ++run) layer -= a.runs[static_cast<std::size_t>(run)].count;
  return run;
}

/// The run of a block of the vision tower: they come behind those of the layers.
int run_of_block(const Architecture& a, std::int64_t block) {
  const std::vector<TowerRun> runs = tower_runs(a.tower);
  std::size_t run = 0;
  for (; block >= runs.at(run).count; ++run) block -= runs[run].count;
  return first_tower_run(a) + static_cast<int>(run);
}

Multiset predicted(const TrainingCase& c, int run) {
  const PassOptions options =
      train_pass(c.trainer, c.engine, *c.architecture, false, c.trainer.tokens_per_micro_batch, c.trainer.kernel_internals);
  const PassCounts pass = pass_counts(c.trainer, c.trainer.tokens_per_micro_batch, c.trainer.head, *c.architecture);
  Multiset out;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, options, run)) {
    std::vector<std::int64_t> shape;
    for (const auto& d : site.shape) shape.push_back(d.value(pass.counts));
    if (site.one_more) ++shape.back();
    out[key(row(site.dtype).name, shape)] += times;
  }
  return out;
}

std::string text(const Multiset& m) {
  std::string out;
  for (const auto& [name, times] : m) out += "\n  " + std::to_string(times) + " x " + name;
  return out;
}

TEST_CASE("every phase of an executed training step is predicted to 0.05 percent") {
  double worst = 0;
  std::string worst_row;
  std::size_t figures = 0, looked_at = 0;
  for (const auto& [row, made] : executed()) {
    if (looked_at++ % kEveryCase != 0) continue;
    CAPTURE(row["id"].get<std::string>());
    const TrainingFigures f = training_figures(made);
    const std::map<std::string, Bytes> got{{"forward", f.forward}, {"backward", f.backward}, {"optimizer", f.optimizer}};
    for (const auto& [phase, bytes] : row["peaks"].items()) {
      CAPTURE(phase);
      const auto want = bytes.get<double>();
      const double error = 100 * (static_cast<double>(got.at(phase)) - want) / want;
      // of small models under CPUOffload the step has 2 KiB on the device, and a block of the allocator 512 bytes
      const bool met = std::abs(error) < 0.05 || std::abs(static_cast<double>(got.at(phase)) - want) <= 512;
      CAPTURE(error);
      CHECK(met);
      if (std::abs(error) >= 0.05) continue;
      if (std::abs(error) > worst) {
        worst = std::abs(error);
        worst_row = row["id"].get<std::string>() + ", " + phase;
      }
      ++figures;
    }
  }
  CHECK((one_file() != nullptr || executed().size() >= 5000));
  MESSAGE(executed().size() << " rows, " << figures << " figures, worst " << worst << " % (" << worst_row << ")");
}

TEST_CASE("the tensors that a layer saves have the shapes, formats and numbers that autograd saved") {
  std::size_t compared = 0, looked_at = 0;
  for (const auto& [row, made] : executed()) {
    if (!row.contains("saved") || looked_at++ % kEveryCase != 0) continue;
    CAPTURE(row["id"].get<std::string>());
    const int run = row.contains("block") ? run_of_block(*made.architecture, row["block"].get<std::int64_t>())
                                          : run_of(*made.architecture, row["layer"].get<std::int64_t>());
    const Multiset want = expected(row["saved"]), got = predicted(made, run);
    CAPTURE(text(want));
    CAPTURE(text(got));
    CHECK(want == got);
    ++compared;
  }
  CHECK((one_file() != nullptr || compared >= 698 / kEveryCase));
  MESSAGE(compared << " layers compared");
}

}  // namespace
