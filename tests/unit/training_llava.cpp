// LLaVA with a tiny CLIP tower: what the last block, whose output goes nowhere, costs; executed steps are compared in
// training_oracle.cpp.
//
// Legend: v = 8 hidden size of the tower, f = 16 its feed-forward width, p = 2 pixels of a patch's side, h = 8 hidden.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "job/validate_vision.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes v = 8, f = 16, p = 2, h = 8, blocks = 3, patches = 4;
constexpr Bytes kBlock = 4 * (v * v + v) + (v * f + f) + (f * v + v) + 4 * v;
constexpr Bytes kFront = v + 3 * p * p * v + (patches + 1) * v + 2 * v;
constexpr Bytes kProjector = (v * h + h) + (h * h + h);
constexpr Bytes kLanguage = 2 * 1000 * h + h + (4 * h * h + 3 * 12 * h + 2 * h);

std::string config(const std::string& more = {}) {
  return R"({"model_type": "llava", "tie_word_embeddings": false, )" + more +
         R"("text_config": {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 12,
             "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 64},
             "vision_config": {"model_type": "clip_vision_model", "num_hidden_layers": 3, "hidden_size": 8,
             "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 2, "image_size": 4}})";
}

TrainingCase llava(TowerTraining train) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(read_config(config(), "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_sdpa;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = 8;
  t.wrap_embedding = t.wrap_head = false;
  t.vision = {.images = 1, .height = 4, .width = 4, .train = train};
  c.engine = EngineKind::single;
  return c;
}

TEST_CASE("LLaVA's last block gets no states, and all parameters are there") {
  const Bytes all = kLanguage + kFront + blocks * kBlock + 2 * v + kProjector;
  const TrainingFigures trained = training_figures(llava(TowerTraining::all));
  CHECK(trained.parameters == 2 * all);
  CHECK(trained.states == 2 * 2 * (all - kBlock - 2 * v));
  CHECK(training_figures(llava(TowerTraining::none)).states == 2 * 2 * kLanguage);
}

TEST_CASE("LLaVA on several devices, or with other features, is refused by name") {
  Role role;
  const TrainingCase c = llava(TowerTraining::none);
  role.trainer = c.trainer;
  role.architecture = c.architecture;
  role.engine = EngineKind::single;
  CHECK(vision_problems(role).empty());
  role.engine = EngineKind::ddp;
  REQUIRE(vision_problems(role).size() == 1);
  CHECK(vision_problems(role)[0].knob == "engine");
  CHECK_THROWS_AS(read_config(config(R"("vision_feature_layer": -1, )"), "tiny"), InputError);
  CHECK_THROWS_AS(read_config(config(R"("vision_feature_select_strategy": "full", )"), "tiny"), InputError);
}

}  // namespace
