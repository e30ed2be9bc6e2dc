// Vision towers beside Megatron's language model: parameters against arithmetic by hand, and what the towers saved when they ran
// (ISEEKYAN/mbridge 641a5a0 and Megatron-Bridge 0.5.2 on megatron-core 0.18.0).
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "layers/megatron_vision.hpp"
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

}  // namespace
