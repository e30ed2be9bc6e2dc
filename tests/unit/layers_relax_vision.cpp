// Qwen3-VL and Qwen3.5 as Relax runs them under Megatron-Bridge, with towers that are trained, frozen, or whose mergers alone are
// trained: parameters, what is kept, and whole steps that ran (benchmarks/oracle/execute_relax_vision.py).
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"
#include "estimate/figures.hpp"
#include "layers/megatron_vision.hpp"
#include "megatron_folds.hpp"
#include "qwen35_runs.hpp"
#include "qwen3_vl_runs.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

std::string frozen_of(const Json& run) {
  const std::string part = run.value("frozen", "");
  return part.empty() ? "all" : part == "tower" ? "none" : "projector";
}

TrainingCase executed_case(const Json& run) {
  const bool qwen3 = run["kind"] == "qwen3_vl", moe = run["experts"].get<int>() > 0;
  const auto images = static_cast<std::int64_t>(run["images"].size());
  Json trainer{{"engine", "megatron"},
               {"models_by", "megatron-bridge"},
               {"cross_entropy", "slime_sliced"},
               {"layout", qwen35_layout(run)},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", run["sequence_parallel"]},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", run["fused"]},
               {"deallocate_outputs", run["deallocates"]},
               {"distributed_optimizer", false},
               {"rotary_fusion", false},
               {"activation_fusion", true},
               {"attention", "flash"},
               {"recompute", run["recompute"]},
               {"vision", {{"train", frozen_of(run)}}},
               {"tokens_per_micro_batch", run["tokens"].get<int>() * run["sequences"].get<int>()}};
  if (moe)
    trainer.update(
        {{"permute_fusion", true}, {"shared_expert_overlap", false}, {"router_dtype", "fp32"}, {"router_aux_loss", false}});
  if (run.contains("mtp"))
    trainer.update({{"mtp_layers", run["mtp"]},
                    {"mtp_fused_loss", run.value("native", false)},
                    {"mtp_detached", !run.value("reaches", false)},
                    {"mtp_alone", run.value("alone", false)},
                    {"jit_fuser", !run.value("native", false)}});  // fake tensors ran uncompiled
  if (run.contains("rank"))
    trainer["lora"] = {{"rank", run["rank"]},
                       {"targets", run["targets"]},
                       {"scope", run["scope"]},
                       {"masked_gates", run["masked"]},
                       {"format", "storage"}};
  if (run["recompute"] == "full")
    trainer.update({{"recompute_method", run["recompute_method"]}, {"recompute_layers", run["recompute_layers"]}});
  if (images > 0) {
    const std::int64_t patch = run["patch"];
    trainer["vision"].update({{"images", images},
                              {"height", run["images"][0][0].get<std::int64_t>() * patch},
                              {"width", run["images"][0][1].get<std::int64_t>() * patch}});
  }
  const Json job{{"framework", "relax 2026.08"}, {"model", "tiny"}, {"trainer", trainer}};
  const Json config = qwen3 ? qwen3_vl_config(run) : qwen35_config(run);
  TrainingCase c = read_training_case(job.dump(), config.dump(), Catalog::builtin());
  // Relax's loss is executed by itself; beside blocks that predict it is slime's, of one sample
  c.trainer.megatron.loss = run.contains("mtp") ? MegatronLoss::slime : MegatronLoss::unfused;
  c.trainer.sequence_tokens = run["tokens"];
  if (run.contains("value")) c.trainer.head = LossHead::value;
  return c;
}

Bytes kept_bytes(const MegatronStage& stage) {
  const Tape& tape = *stage.chunks.front();
  Bytes out = 0;
  for (const TapeSite& site : tape.sites)
    if (site.saved) out += site.bytes.value(stage.counts) * tape.stations[site.station].count;
  return out;
}

/// From step to step the first layer's last recomputation keeps its input, a view of all tokens' embedding, of which a rank's
/// part is counted.
double kept_embedding(const Json& run) {
  if (run["experts"] == 0 || run["recompute"] != "full" || run.value("alone", false)) return 0;
  const auto ranks = run["tensor"].get<double>();
  return 2 * run["hidden"].get<double>() * run["tokens"].get<double>() * run["sequences"].get<double>() * (ranks - 1) / ranks /
         run.value("context", 1);
}

/// Of packed sequences that several ranks share out each is exchanged by itself, and all are counted as one.
double allowed(const Json& run) {
  const bool shared = run.value("context", 1) > 1, again = run["experts"] > 0 && run["recompute"] == "full";
  if (shared) return again ? 0.017 : run["last"] ? 0.011 : 0.03;
  if (run.contains("value")) return again ? 0.015 : 0.004;
  return again ? 0.015 : run["last"] ? 0.002 : 0.004;
}

/// Of packed sequences that several ranks share out each is exchanged by itself, and all are counted as one.
double allowed_beside(const Json& run) { return run.value("context", 1) > 1 && run["sequences"] > 1 ? 0.062 : 0.004; }

TEST_CASE("Kimi's tower has as many parameters as its checkpoint, on every tensor rank") {
  const Architecture kimi = *Catalog::builtin().model("moonshotai/Kimi-K2.6").architecture;
  std::int64_t tower = 0;
  for (const Parameter& p : parameters(kimi)) tower += p.part == ParameterPart::tower ? p.total() : 0;
  ChunkOptions chunk;
  chunk.te.tensor = 8;
  CHECK(tower > 400'000'000);
  CHECK(tower_elements(kimi, chunk) == tower);
}

TEST_CASE("steps of Relax's vision-language models with adapters are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_relax_adapted_towers.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0, worst_shared = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = executed_case(run);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    CHECK(stage.gradients == 4 * (run["trained"].get<Bytes>() + run["trained_experts"].get<Bytes>()));
    const Bytes more = kept_bytes(stage) - row["saved"].get<Bytes>();
    CAPTURE(more);
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    for (const auto& [phase, level] : {std::pair<std::string, Bytes>{"forward", f.forward}, {"backward", f.backward}}) {
      const auto ran = row["peaks"][phase].get<double>() + (phase == "backward" ? kept_embedding(run) : 0);
      const double apart = (static_cast<double>(level - (f.optimizer - stage.averaged)) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < allowed_beside(run));
      double& most = run.value("context", 1) > 1 && run["sequences"] > 1 ? worst_shared : worst;
      most = std::max(most, std::fabs(apart));
    }
  }
  CHECK(rows == 46);
  MESSAGE(rows << " steps, worst level off by "
               << fmt::format("{:.3f} %, of several sequences under context parallelism by {:.3f} %", 100 * worst,
                              100 * worst_shared));
}

TEST_CASE("steps of Relax's vision-language models are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_relax_vision.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0, worst_again = 0, worst_shared = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = executed_case(run);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1, {.critic = run.contains("value")});
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    CHECK(stage.gradients == 4 * run["trained"].get<Bytes>());
    const Bytes more = kept_bytes(stage) - row["saved"].get<Bytes>();
    CAPTURE(more);
    // numbers of sequences, ids, masks and states of random numbers were kept, too; what mergers keep of the last block alone is
    // no site of every block
    const bool judged = run["recompute"] == "none" && !run.contains("mtp") && frozen_of(run) != "projector";
    const std::int64_t shared =
        run.value("context", 1) > 1 ? run["tokens"].get<std::int64_t>() * run["sequences"].get<std::int64_t>() : 0;
    if (judged) CHECK(std::abs(more) < 600 + 5 * shared);
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    const bool again = run["experts"] > 0 && run["recompute"] == "full";
    for (const auto& [phase, level] : {std::pair<std::string, Bytes>{"forward", f.forward}, {"backward", f.backward}}) {
      // the loss asks its caller for labels, which are not counted
      // ... and keeps them unless it is nothing times the states
      const bool labeled = run.contains("mtp") && !(phase == "backward" && run.value("alone", false));
      const double labels = labeled ? 8 * run["tokens"].get<double>() * run["sequences"].get<double>() : 0;
      const auto ran = row["peaks"][phase].get<double>() - labels + (phase == "backward" ? kept_embedding(run) : 0);
      const double apart = (static_cast<double>(level - (f.optimizer - stage.averaged)) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < allowed(run));
      double& most = run.value("context", 1) > 1 ? worst_shared : again ? worst_again : worst;
      most = std::max(most, std::fabs(apart));
    }
  }
  CHECK(rows == 140);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst) << ", where experts run again by "
               << fmt::format("{:.3f} %", 100 * worst_again) << ", under context parallelism by "
               << fmt::format("{:.3f} %", 100 * worst_shared));
}

}  // namespace
