// Vision towers beside Megatron's language model: parameters against arithmetic by hand, and what the towers saved when they ran
// (ISEEKYAN/mbridge 641a5a0 and Megatron-Bridge 0.5.2 on megatron-core 0.18.0).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "layers/megatron_vision.hpp"
#include "megatron_folds.hpp"
#include "qwen3_vl_runs.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TrainingCase case_of(const std::string& model, const std::string& layout, Json more = Json::object()) {
  Json trainer{{"engine", "megatron"},
               {"layout", layout},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", true},
               {"tokens_per_micro_batch", 4096},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", false},
               {"rotary_fusion", false},
               {"micro_batches", 4}};
  trainer.update(more, true);
  const Json job{{"framework", "verl 0.8"}, {"model", model}, {"trainer", trainer}};
  return read_training_case(job.dump(), {}, Catalog::builtin());
}

MegatronStage stage_of(const TrainingCase& c, std::int64_t stage = 0) {
  return make_megatron_stage(*c.architecture, c.trainer, stage, 1);
}

TEST_CASE("a tower's parameters stand on the first stage, matrices in parts") {
  const auto tower = [](const std::string& model, const std::string& layout, std::int64_t stage) {
    return (stage_of(case_of(model, layout), stage).weights - stage_of(case_of(model + ":text", layout), stage).weights) / 2;
  };
  // 27 blocks of 15,239,504, patches 1,770,624, positions 2,654,208, merger 40,119,040, three of deepstack 40,125,952
  CHECK(tower("Qwen/Qwen3-VL-8B-Instruct", "d8t1", 0) == 576388336);
  CHECK(tower("Qwen/Qwen3-VL-8B-Instruct", "d2t1p4", 0) == 576388336);
  CHECK(tower("Qwen/Qwen3-VL-8B-Instruct", "d2t1p4", 3) == 0);
  const std::int64_t h = 1152, f = 4304, o = 4096, t = 2;
  const std::int64_t block = (4 * h * h + 2 * h * f) / t + (3 * h + f) / t + 6 * h,
                     merger = (16 * h * h + 4 * h + 4 * h * o) / t + o;
  const std::int64_t split = 27 * block + 1537 * h + 2304 * h + 2 * h + merger + 3 * (8 * h + merger);
  CHECK(tower("Qwen/Qwen3-VL-8B-Instruct", "d4t2", 0) == split);
  const std::int64_t v = 1280, w = 3420, out = 3584;
  const std::int64_t of_2_5 = 32 * ((4 * v * v + 3 * v * w) / t + (3 * v + 2 * w) / t + 4 * v) + 1176 * v + v +
                              (16 * v * v + 4 * v + 4 * v * out) / t + out;
  CHECK(tower("Qwen/Qwen2.5-VL-7B-Instruct", "d4t2", 0) == of_2_5);
}

/// Bytes that stations of a place keep for backward, of a patch; of blocks, those of one.
double kept_of_a_patch(const TrainingCase& c, std::initializer_list<StationPlace> places, int run = -1) {
  const ChunkOptions chunk = megatron_chunks(*c.architecture, c.trainer, 0).front();
  const auto tape = make_chunk_tape(*c.architecture, chunk);
  double bytes = 0;
  for (const TapeSite& site : tape->sites) {
    const Station& station = tape->stations[site.station];
    const bool asked = std::find(places.begin(), places.end(), station.place) != places.end();
    if (!site.saved || !asked || (run >= 0 && station.run != run)) continue;
    bytes += static_cast<double>(site.bytes.coefficient);
  }
  return bytes / static_cast<double>(chunk.vision.patches());
}

Json images(const std::string& recompute) {
  return {{"vision", {{"images", 1}, {"height", 448}, {"width", 448}}}, {"recompute", recompute}};
}

const std::initializer_list<StationPlace> kBlocks{StationPlace::tower}, kOutside{StationPlace::vision, StationPlace::merge},
    kMergers{StationPlace::deepstack};

TEST_CASE("Qwen2.5-VL's tower keeps what it kept") {
  for (const std::int64_t t : {1, 2}) {
    CAPTURE(t);
    const std::string layout = fmt::format("d{}t{}", 8 / t, t);
    const double h = 1280, f = 3420, hn = 80, n = 16, parts = static_cast<double>(t);
    const TrainingCase of_2_5 = case_of("Qwen/Qwen2.5-VL-7B-Instruct", layout, images("none"));
    CHECK(kept_of_a_patch(of_2_5, kBlocks) == 8 * h + 8 * h / parts + 10 * f / parts + 8 * hn + 8 + 4 * n / parts);
    CHECK(kept_of_a_patch(of_2_5, kOutside) == 2 * 1176 + 8 + 4 * h + 4 * h / parts);
    CHECK(kept_of_a_patch(case_of("Qwen/Qwen2.5-VL-7B-Instruct", layout, images("full")), kOutside) ==
          2 * 1176 + 8 + 4 * h + 4 * h / parts + 4 * hn);
  }
}

TEST_CASE("Qwen3-VL's tower keeps what it kept") {
  const std::string model = "Qwen/Qwen3-VL-8B-Instruct";
  const double h = 1152, f = 4304, hn = 72, n = 16;
  for (const std::int64_t t : {1, 2}) {
    CAPTURE(t);
    const std::string layout = fmt::format("d{}t{}", 8 / t, t);
    const double parts = static_cast<double>(t), outside = 2 * 1536 + 48 + 4 * h + 4 * h / parts;
    const TrainingCase none = case_of(model, layout, images("none")), full = case_of(model, layout, images("full"));
    const double block = 8 * h + 8 * h / parts + 4 * f / parts + 16 * hn + 16 + 4 * n / parts;
    CHECK(kept_of_a_patch(none, kBlocks, 0) == block);
    CHECK(kept_of_a_patch(none, kMergers, 0) == 2 * h + 4 * h / parts + 2);
    CHECK(kept_of_a_patch(none, kOutside) == outside);
    CHECK(kept_of_a_patch(full, kOutside) == outside + 4 * hn);
    CHECK(kept_of_a_patch(full, kMergers) == 0);
    const TrainingCase selective = case_of(model, layout, images("selective"));
    const double again = (4 * h + 4 * n) / parts;  // values, output and log-sum-exp that backward makes once more
    CHECK(kept_of_a_patch(selective, kBlocks, 0) == block + (4 * h - 4 * n) / parts + again);
  }
}

/// Images of one size with as many patches in all.
Json images_of(const Json& run) {
  std::int64_t patches = 0;
  for (const Json& image : run["images"]) patches += image[0].get<std::int64_t>() * image[1].get<std::int64_t>();
  const auto images = static_cast<std::int64_t>(run["images"].size());
  if (images == 0) return Json::object();
  std::int64_t rows = 2;
  for (std::int64_t n = 2; n * n <= patches / images; n += 2)
    if (patches / images % (2 * n) == 0) rows = n;
  const std::int64_t pixels = run["patch"].get<std::int64_t>(), columns = patches / images / rows;
  return {{"vision", {{"images", images}, {"height", rows * pixels}, {"width", columns * pixels}}}};
}

TrainingCase executed_case(const Json& run) {
  const bool qwen3 = run["kind"] == "qwen3_vl", whole = run["last"], packed = run.value("packed", true);
  Json trainer{{"engine", "megatron"},
               {"models_by", run["bridge"] == "mbridge" ? "mbridge" : "megatron-bridge"},
               {"layout", fmt::format("d1t{}{}", run["tensor"].get<int>(), whole ? "" : "p2")},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", run["sequence_parallel"]},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", run["fused"]},
               {"deallocate_outputs", run["deallocates"]},
               {"distributed_optimizer", false},
               {"rotary_fusion", false},
               {"activation_fusion", qwen3},
               {"attention", packed ? "flash" : "fused"},
               {"recompute", run["recompute"]}};
  const bool alone = run["sequences"] == 1;  // packed or not, it is the same
  if (packed && !(alone && run.contains("packed")))
    trainer["tokens_per_micro_batch"] = run["tokens"].get<int>() * run["sequences"].get<int>();
  else
    trainer.update({{"sequences_per_micro_batch", run["sequences"]}, {"sequence_tokens", run["tokens"]}});
  if (run["recompute"] == "full")
    trainer.update({{"recompute_method", run["recompute_method"]}, {"recompute_layers", run["recompute_layers"]}});
  trainer.update(images_of(run));
  if (run.contains("packed") && !run["images"].empty())
    trainer["vision"]["images"] = run["images"].size() / run["sequences"].get<std::size_t>();
  const Json job{{"framework", "verl 0.8"}, {"model", "tiny"}, {"trainer", trainer}};
  TrainingCase c = read_training_case(job.dump(), qwen3_vl_config(run).dump(), Catalog::builtin());
  c.trainer.loop.actor_loss = false;  // Megatron's own loss
  if (!qwen3) {                       // heads are wider than transformers makes them
    Architecture wide = *c.architecture;
    for (LayerRun& runs : wide.runs) runs.layer.mixer.head_dim = runs.layer.mixer.rotary_dim = run["head_dim"];
    c.architecture = std::make_shared<const Architecture>(std::move(wide));
  }
  c.trainer.megatron.loss = MegatronLoss::unfused;
  return c;
}

TEST_CASE("steps of vision-language models under Megatron are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_vision.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["run"].dump());
    const TrainingCase c = executed_case(row["run"]);
    const MegatronStage stage = stage_of(c);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    for (const auto& [phase, level] : {std::pair{"forward", f.forward - f.optimizer}, {"backward", f.backward - f.optimizer}}) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(apart);
      // images of unlike sizes are taken as alike, and so is what of them falls to a rank
      const bool alike = row["run"]["images"].size() < 2 || row["run"]["images"][0] == row["run"]["images"][1];
      CHECK(std::fabs(apart) < (alike ? 0.0025 : 0.016));
      if (alike) worst = std::max(worst, std::fabs(apart));
    }
  }
  CHECK(rows == 92);
  MESSAGE(rows << " steps, worst level of images alike off by " << fmt::format("{:.3f} %", 100 * worst));
}

TEST_CASE("steps of Qwen2.5-VL as Megatron-Bridge makes it are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_hf_tower.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    TrainingCase c = executed_case(run);
    c.trainer.kernel_internals = false;
    const MegatronStage stage = stage_of(c);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    for (const auto& [phase, level] : {std::pair{"forward", f.forward}, {"backward", f.backward}}) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level - (f.optimizer - stage.averaged)) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < 0.0025);
      worst = std::max(worst, std::fabs(apart));
    }
  }
  CHECK(rows == 25);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst));
}

TEST_CASE("fold equals trace for towers on every stage, dealt out, frozen and in chunks") {
  for (const char* recompute : {"none", "full"})
    for (const char* maker : {"mbridge", "megatron-bridge"})
      for (const char* layout : {"d4t2", "d1t2p2c2", "d2p4"}) {
        CAPTURE(recompute);
        CAPTURE(maker);
        CAPTURE(layout);
        const Json more{
            {"models_by", maker}, {"recompute", recompute}, {"vision", {{"images", 3}, {"height", 448}, {"width", 448}}}};
        const TrainingCase c = case_of("Qwen/Qwen3-VL-8B-Instruct", layout, more);
        for (std::int64_t stage = 0; stage < c.trainer.layout.pipeline; stage += c.trainer.layout.pipeline > 2 ? 3 : 1)
          folds_as_it_expands(stage_of(c, stage), 4);
      }
  const Json frozen{{"models_by", "megatron-bridge"}, {"vision", {{"images", 2}, {"height", 448}, {"width", 448}}}};
  const TrainingCase c = case_of("Qwen/Qwen3-VL-30B-A3B-Instruct", "d2t2p2e2", frozen);
  for (const std::int64_t stage : {0, 1}) {
    const MegatronStage made = stage_of(c, stage);
    CHECK((made.gradients > 0) == (stage == 0));
    folds_as_it_expands(made, 4);
  }
}

}  // namespace
