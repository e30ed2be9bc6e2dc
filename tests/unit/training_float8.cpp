// torchtitan's blocks in float8 and under tensor parallelism, compiled: by hand what a layer keeps, what FSDP2 gathers, and what
// is refused.
//
// Legend: T tokens of one sequence, h hidden, A = h query width of a heads, K key/value width, F feed-forward width.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "estimate/figures.hpp"
#include "job/validate_float8.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes kT = 64, kH = 256, kHeads = 4, kA = kH, kK = 128, kF = 512;
constexpr Bytes kMatrices = 2 * kA * kH + 2 * kK * kH + 3 * kF * kH, kNorms = 2 * kH;  // parameters of a layer

TrainingCase float8_llama(int layers, Float8 scaling) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": )" + std::to_string(layers) +
                      R"(, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
                      "vocab_size": 2000, "max_position_embeddings": 64, "tie_word_embeddings": false})",
                  "float8"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::torchtitan;
  t.compile = true;
  t.float8 = scaling;
  t.rms_norm = RmsNorm::by_hand;
  t.repeat_kv = true;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.optimizer = OptimizerKind::sgd;
  t.head = LossHead::cross_entropy;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = kT;
  t.recompute = Recompute::none;
  c.engine = EngineKind::single;
  return c;
}

/// At the loss, where all layers' activations are alive.
Bytes added_by_a_layer(Float8 scaling, Recompute recompute, std::int64_t ranks) {
  Bytes level[2];
  for (const int more : {0, 1}) {
    TrainingCase c = float8_llama(3 + more, scaling);
    c.trainer.recompute = recompute;
    c.trainer.layout.tensor = ranks;
    level[more] = training_figures(c).forward;
  }
  return level[1] - level[0] - 2 * (kMatrices / ranks + kNorms);
}

TEST_CASE("by hand: what a layer in float8 keeps is in 16 bits") {
  const Bytes attention = 2 * kT * kA + 4 * kT * kHeads;
  const Bytes kept = 2 * kT * kH + 2 * kT * kA + 2 * kT * kK + attention + 2 * kT * kF;  // as without float8
  CHECK(added_by_a_layer(Float8::none, Recompute::selective, 1) == kept);
  CHECK(added_by_a_layer(Float8::tensorwise, Recompute::selective, 1) == kept);
  CHECK(added_by_a_layer(Float8::rowwise, Recompute::selective, 1) == kept + 2 * (4 * kT));  // a number a row of both norms
  for (const Float8 scaling : {Float8::none, Float8::tensorwise, Float8::rowwise})
    CHECK(added_by_a_layer(scaling, Recompute::full, 1) == 2 * kT * kH);
  // norms' results are computed again in backward: they are only an input of 8-bit casts
  const Bytes all = 2 * (4 * kT) + 3 * (2 * kT * kA) + attention + 2 * kT * kH + 2 * (2 * kT * kF) + 2 * kT * kH;
  CHECK(added_by_a_layer(Float8::tensorwise, Recompute::none, 1) == all);
}

TEST_CASE("by hand: a checkpointed layer under tensor parallelism keeps one rank's tokens") {
  CHECK(added_by_a_layer(Float8::none, Recompute::full, 2) == 2 * kT / 2 * kH);
}

TEST_CASE("by hand: FSDP2 gathers matrices of layers in 8 bits, norms and what no layer holds in 16") {
  constexpr std::int64_t kRanks = 2;
  TrainingCase c = float8_llama(2, Float8::tensorwise);
  c.engine = EngineKind::fsdp2;
  c.trainer.layout.data = kRanks;
  c.trainer.storage = c.trainer.reduce = DType::fp32;
  const auto unit = [&](bool gathered, StationPlace place) {
    c.trainer.float8_all_gather = gathered;
    TrainTapes tapes;
    tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, kT, false));
    const TrainPlan p = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
    for (std::size_t s = 0; s < tapes.train->stations.size(); ++s)
      if (tapes.train->stations[s].place == place) return p.units[s];
    return UnitBytes{};
  };
  const UnitBytes wide = unit(false, StationPlace::layers), narrow = unit(true, StationPlace::layers);
  CHECK(wide.gathered == 2 * (kMatrices + kNorms));
  CHECK(wide.scaled == 0);
  CHECK(narrow.gathered == kMatrices + 2 * kNorms);
  CHECK(narrow.unsharded == narrow.gathered);
  CHECK(narrow.cast == (kMatrices + 2 * kNorms) / kRanks);
  CHECK(narrow.scaled == 2 * (4 * kF * kH / kRanks));  // one matrix of the feed-forward, scaled and clamped in fp32
  CHECK(narrow.reduce_input == wide.reduce_input);
  CHECK(narrow.resident == wide.resident);
  CHECK(unit(true, StationPlace::embedding).gathered == unit(false, StationPlace::embedding).gathered);
}

TEST_CASE("float8 that is not described is refused by name") {
  Trainer t = float8_llama(2, Float8::tensorwise).trainer;
  const auto knobs = [&](EngineKind engine) {
    std::vector<std::string> out;
    for (const KnobProblem& p : float8_problems(t, engine)) out.push_back(p.knob);
    return out;
  };
  CHECK(knobs(EngineKind::fsdp2).empty());
  CHECK(knobs(EngineKind::ddp) == std::vector<std::string>{"float8"});
  t.float8_all_gather = true;
  CHECK(knobs(EngineKind::fsdp2).empty());
  CHECK(knobs(EngineKind::single) == std::vector<std::string>{"float8_all_gather"});
  t.float8 = Float8::rowwise;
  CHECK(knobs(EngineKind::fsdp2) == std::vector<std::string>{"float8_all_gather"});
  t.float8_all_gather = false;
  t.compile = false;
  CHECK(knobs(EngineKind::fsdp2) == std::vector<std::string>{"float8"});
  t.compile = true;
  t.kernels = Kernels::hf_flash;
  CHECK(knobs(EngineKind::fsdp2) == std::vector<std::string>{"float8"});
}

}  // namespace
