// Adapters and FSDP1's units: as flat parameters of their own, inside of their layer's, and what does not go together.
//
// Legend: h = 8 hidden, A = 8 (two query heads of d = 4), K = 4 (one key/value head), F = 12, V = 1000, r = 2, N = 2 ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "estimate/figures.hpp"
#include "job/validate_adapters.hpp"
#include "job/validate_units.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 8, A = 8, K = 4, F = 12, V = 1000, r = 2, layers = 3, N = 2;

TrainingCase with_adapters() {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 8, "intermediate_size": 12,
                      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 1000,
                      "max_position_embeddings": 64, "tie_word_embeddings": false})",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_flash;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = T;
  t.wrap_embedding = t.wrap_head = false;
  t.use_orig_params = true;
  t.layout.data = N;
  t.lora.rank = r;
  t.lora.targets = {"q_proj", "v_proj"};
  t.lora.format = AdapterFormat::storage;
  c.engine = EngineKind::fsdp1;
  return c;
}

TrainPlan plan_of(const TrainingCase& c, TrainTapes& tapes) {
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
  return make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
}

const FlatBytes& layer_of(const TrainPlan& p) {
  for (std::size_t s = 0; s < p.wrapped.size(); ++s)
    if (p.wrapped[s]) return p.flat.units[s];
  FAIL("no unit");
  return p.flat.root;
}

// every number of elements is a multiple of 8, so nothing is padded: parameters begin at addresses that 16 divides
constexpr Bytes kLayer = A * h + 2 * K * h + h * A + 3 * F * h + 2 * h;
constexpr Bytes kPairs = r * (h + A) + r * (h + K);

}  // namespace

TEST_CASE("units by hand: every adapter is a flat parameter of its own") {
  TrainTapes tapes;
  const TrainPlan p = plan_of(with_adapters(), tapes);
  CHECK(layer_of(p).fresh == 0);  // the layer is frozen
  REQUIRE(p.flat.adapters.size() == 4);
  Bytes shards = 0;
  for (const AdapterFlat& a : p.flat.adapters) shards += a.shard;
  CHECK(shards == 2 * kPairs / N);
  CHECK(p.flat.adapters[0].original == 2 * r * h);
  CHECK(p.flat.adapters[0].flat == 2 * r * h);
  CHECK(layer_of(p).resident == 2 * (kLayer + kPairs) / N);
  CHECK(p.gradients == layers * 2 * kPairs / N);
  CHECK(p.optimizer == 2 * p.gradients);
}

TEST_CASE("units by hand: the passes of a checkpointed layer gather one adapter, and the one before it ahead") {
  TrainingCase c = with_adapters();
  c.trainer.recompute = Recompute::full;
  c.trainer.storage = DType::fp32;
  c.trainer.lora.targets = {"down_proj"};
  TrainTapes tapes;
  const TrainPlan p = plan_of(c, tapes);
  REQUIRE(p.flat.adapters.size() == 2);
  CHECK(p.flat.adapters[0].gathered.low_precision == 2 * r * F / N);
  CHECK(p.flat.adapters[0].gathered.unsharded == 2 * r * F);
  CHECK(p.flat.adapters[1].gathered.unsharded == 2 * r * h);
  // kept whole behind the first pass instead, they are a layer's sum
  CHECK(layer_of(p).adapter_unsharded == 2 * r * (F + h));
}

TEST_CASE("units by hand: a flat parameter of frozen and trained parts gets gradients as a whole") {
  TrainingCase c = with_adapters();
  c.trainer.lora.own_units = false;
  TrainTapes tapes;
  const TrainPlan p = plan_of(c, tapes);
  CHECK(p.flat.adapters.empty());
  CHECK(layer_of(p).fresh == 2 * (kLayer + kPairs));
  CHECK(p.gradients == layers * 2 * (kLayer + kPairs) / N);
  CHECK(p.flat.root.fresh == 0);  // no part of it is trained
  // the modules' order: q, its pair, k, v, its pair, and so on: rank 0 has the first half, in which both pairs lie
  CHECK(p.flat.trained == layers * 2 * kPairs);
  CHECK(p.optimizer == 2 * p.flat.trained);
  // LoRA's forward pass then keeps inputs of frozen matrices too
  TrainingCase apart = with_adapters();
  CHECK(training_figures(c).forward > training_figures(apart).forward);
}

TEST_CASE("units: what adapters under FSDP1 do not go with is said by name") {
  const auto told = [](const Trainer& t, EngineKind engine = EngineKind::fsdp1) {
    std::vector<std::string> out;
    for (const KnobProblem& p : unit_problems(t, engine)) out.push_back(p.knob);
    return out;
  };
  using Knobs = std::vector<std::string>;
  Trainer t = with_adapters().trainer;
  CHECK(told(t).empty());
  t.lora.own_units = false;
  CHECK(told(t).empty());
  t.use_orig_params = false;
  t.lora.format = AdapterFormat::fp32;
  t.lora.base.format = BaseFormat::nf4;
  CHECK(told(t) == Knobs{"use_orig_params", "lora.format", "lora.own_units"});
  CHECK(told(t, EngineKind::ddp).empty());  // there the knob is unknown
  t = with_adapters().trainer;
  t.checkpoint_units = true;
  CHECK(told(t) == Knobs{"checkpoint_units"});  // without a checkpoint
  t.recompute = Recompute::full;
  t.reentrant = true;
  CHECK(told(t).empty());
  t.lora.own_units = false;
  CHECK(told(t) == Knobs{"checkpoint_units"});
  t.lora = {};
  CHECK(told(t).empty());
  t = with_adapters().trainer;
  t.lora.base.casts_heads = true;
  CHECK(told(t, EngineKind::single) == Knobs{"lora.casts_heads", "lora.casts_heads"});
  t.lora.base.prepare_kbit = t.autocast = true;
  CHECK(told(t, EngineKind::single).empty());
}

TEST_CASE("units: a checkpoint around frozen units keeps inputs and their gradients") {
  TrainingCase c = with_adapters();
  c.trainer.recompute = Recompute::full;
  c.trainer.reentrant = true;
  const Bytes inside = training_figures(c).backward;
  c.trainer.checkpoint_units = true;
  CHECK(training_figures(c).backward + 2 * kLayer >= inside);  // nobody gathers the next layer ahead
}

TEST_CASE("units: a checkpoint around trained units gathers each for itself") {
  TrainingCase c = with_adapters();
  c.trainer.lora = {};
  c.trainer.recompute = Recompute::full;
  c.trainer.reentrant = true;
  const TrainingFigures inside = training_figures(c);
  c.trainer.checkpoint_units = true;
  const TrainingFigures around = training_figures(c);
  CHECK(around.forward == inside.forward);
  CHECK(around.backward <= inside.backward);
}

TEST_CASE("units: routers that are made in fp32 go into no unit with 16 bits") {
  // as PyTorch 2.13 itself said of models of two layers: FSDP2 looks at trained parameters alone, FSDP1 at all of a unit
  using Knobs = std::vector<std::string>;
  Role role;
  Architecture a;
  a.runs.resize(1);
  a.runs[0].layer.feed_forward.experts = 8;
  const auto told = [&](std::string_view family, EngineKind engine, DType storage, std::int64_t rank, bool views) {
    a.family = family;
    role.architecture = std::make_shared<const Architecture>(a);
    role.engine = engine;
    role.trainer.kernels = Kernels::hf_flash;
    role.trainer.storage = storage;
    role.trainer.lora.rank = rank;
    role.trainer.use_orig_params = views;
    Knobs out;
    for (const KnobProblem& p : mixed_unit_problems(role)) out.push_back(p.knob);
    return out;
  };
  const Knobs format{"precision.storage"}, parts{"use_orig_params"};
  for (const char* family : {"ernie4_5_moe", "hunyuan_v1_moe"}) {
    CAPTURE(family);
    CHECK(told(family, EngineKind::fsdp2, DType::bf16, 0, false) == format);
    CHECK(told(family, EngineKind::fsdp2, DType::bf16, 5, false).empty());
    CHECK(told(family, EngineKind::fsdp2, DType::fp32, 0, false).empty());
    CHECK(told(family, EngineKind::fsdp1, DType::fp16, 0, true) == format);
    CHECK(told(family, EngineKind::fsdp1, DType::bf16, 5, false) == format);
    CHECK(told(family, EngineKind::fsdp1, DType::fp32, 0, true).empty());
    CHECK(told(family, EngineKind::single, DType::bf16, 0, false).empty());
  }
  CHECK(told("ernie4_5_moe", EngineKind::fsdp1, DType::fp32, 0, false) == parts);  // its correction is a frozen parameter
  CHECK(told("ernie4_5_moe", EngineKind::fsdp1, DType::fp32, 5, false).empty());   // so is everything beside the adapters
  CHECK(told("hunyuan_v1_moe", EngineKind::fsdp1, DType::fp32, 0, false).empty());
  CHECK(told("mixtral", EngineKind::fsdp2, DType::bf16, 0, false).empty());
  a.runs[0].layer.feed_forward.experts = 0;  // dense layers alone have no router
  CHECK(told("ernie4_5_moe", EngineKind::fsdp2, DType::bf16, 0, false).empty());
}

TEST_CASE("kinds of adapters: what is trained, by hand") {
  TrainingCase c = with_adapters();
  c.engine = EngineKind::single;
  c.trainer.layout.data = 1;
  c.trainer.lora.format = AdapterFormat::fp32;
  const Bytes frozen = 2 * (2 * V * h + h + layers * kLayer);
  c.trainer.lora.kind = AdapterKind::vera;
  // lambda_b and lambda_d of both matrices, and the pair that all share
  CHECK(training_figures(c).parameters == frozen + 4 * (layers * (A + K + 2 * r) + r * h + A * r));
  CHECK(training_figures(c).states == 2 * 4 * layers * (A + K + 2 * r));
  c.trainer.lora.kind = AdapterKind::ia3;
  c.trainer.lora.targets = {"k_proj", "v_proj", "down_proj"};
  CHECK(training_figures(c).parameters == frozen + 4 * layers * (2 * K + F));
}

TEST_CASE("kinds of adapters: what they do not go with is said by name") {
  const auto told = [](const Trainer& t, EngineKind engine) {
    std::vector<std::string> out;
    for (const KnobProblem& p : adapter_problems(t, engine)) out.push_back(p.knob);
    return out;
  };
  using Knobs = std::vector<std::string>;
  Trainer t = with_adapters().trainer;
  CHECK(told(t, EngineKind::fsdp1).empty());
  t.lora.kind = AdapterKind::ia3;
  CHECK(told(t, EngineKind::fsdp1) == Knobs{"engine", "lora.rank"});
  t.lora.rank = 1;
  CHECK(told(t, EngineKind::fsdp2).empty());
  t.cpu_offload_policy = true;
  CHECK(told(t, EngineKind::fsdp2) == Knobs{"cpu_offload_policy"});
  t.cpu_offload_policy = false;
  t.lora.kind = AdapterKind::vera;
  t.lora.format = AdapterFormat::fp32;
  CHECK(told(t, EngineKind::fsdp2) == Knobs{"lora.format"});
  t.autocast = true;
  t.lora.base.format = BaseFormat::nf4;
  CHECK(told(t, EngineKind::single) == Knobs{"autocast", "lora.base"});
  t = with_adapters().trainer;
  t.lora.kind = AdapterKind::adapter;
  t.sequences_per_micro_batch = 2;
  CHECK(told(t, EngineKind::single) == Knobs{"lora.kind", "sequences_per_micro_batch"});
}
