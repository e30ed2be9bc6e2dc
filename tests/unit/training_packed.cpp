// A frozen base that bitsandbytes packed, on one tiny model, every tensor written out; executed steps are compared in
// training_oracle.cpp.
//
// Legend: T = 4 tokens of one sequence, h = 8 hidden, A = 8 (two query heads of d = 4), K = 4 (one key/value head), F = 12, V =
// 1000, r = 2.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "estimate/figures.hpp"
#include "job/training_loop.hpp"
#include "job/validate_base.hpp"
#include "layers/packed.hpp"
#include "layers/tape.hpp"
#include "tiny_llama.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 8, heads = 2, d = 4, A = heads * d, K = d, F = 12, V = 1000, r = 2, layers = 2;
constexpr Bytes kAdapters = layers * r * (2 * (h + A) + 2 * (h + K) + 3 * (h + F));
constexpr Bytes kUnpacked = 2 * V * h + h + layers * 2 * h;  // embedding, output layer, norms

QuantisedBase of_format(BaseFormat format, bool nested = false, std::string version = {}) {
  QuantisedBase base;
  base.format = format;
  base.double_quant = nested;
  base.compute = DType::bf16;
  base.version = std::move(version);
  return base;
}

TrainingCase packed(const QuantisedBase& base) {
  TrainingCase c = tiny_llama(T, r);
  c.trainer.lora.base = base;
  return c;
}

/// Of one layer's seven matrices: `one(elements)`.
template <class One>
Bytes of_matrices(One&& one) {
  return one(A * h) + 2 * one(K * h) + one(h * A) + 3 * one(F * h);
}

TEST_CASE("a base of 4 bits by hand: half a byte an element, a scale for each 64, tables") {
  const Bytes plain = of_matrices([](Bytes n) { return n / 2 + 4 * ceil_div(n, 64) + 4 * 16; });
  CHECK(training_figures(packed(of_format(BaseFormat::nf4))).parameters == layers * plain + 2 * kUnpacked + 4 * kAdapters);
  // scales of one byte with one fp32 for 256 of them, their table, their mean
  const Bytes nested = of_matrices([](Bytes n) { return n / 2 + ceil_div(n, 64) + 4 + 4 * 256 + 4 + 4 * 16; });
  CHECK(training_figures(packed(of_format(BaseFormat::fp4, true))).parameters == layers * nested + 2 * kUnpacked + 4 * kAdapters);
}

TEST_CASE("prepare_model_for_kbit_training makes fp32 of what is not packed") {
  const QuantisedBase plain = of_format(BaseFormat::nf4);
  QuantisedBase prepared = plain;
  prepared.prepare_kbit = true;
  CHECK(training_figures(packed(prepared)).parameters == training_figures(packed(plain)).parameters + 2 * kUnpacked);
  prepared.casts_heads = true;  // TRL: of these the norms stay
  const Bytes norms = kUnpacked - 2 * V * h;
  CHECK(training_figures(packed(prepared)).parameters == training_figures(packed(plain)).parameters + 2 * norms);
}

TEST_CASE("a packed matrix is unpacked in forward and in backward, its scales before it") {
  const TrainingCase c = packed(of_format(BaseFormat::nf4, true, "0.49.2"));
  const auto tape = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
  const auto bytes = [&](const std::string& name) {
    const auto at = std::find_if(tape->sites.begin(), tape->sites.end(), [&](const auto& s) { return s.name == name; });
    return at == tape->sites.end() ? Bytes{-1} : at->bytes.coefficient;
  };
  CHECK(bytes("layer.mlp.gate.dequantised") == 2 * F * h);
  CHECK(bytes("layer.mlp.gate.absmax") == 4 * ceil_div(F * h, 64));
  CHECK(std::count_if(tape->sites.begin(), tape->sites.end(),
                      [](const auto& s) { return s.name.ends_with("gate.backward.dequantised"); }) >= 1);
}

TEST_CASE("releases of bitsandbytes: what each keeps") {
  CHECK(packed_code("0.43.2")->keeps_input);
  CHECK_FALSE(packed_code("0.43.3")->keeps_input);
  CHECK(packed_code("0.45.5")->shares_code);
  CHECK_FALSE(packed_code("0.46.0")->shares_code);
  CHECK(packed_code("0.46.1")->computes_as_given);
  CHECK_FALSE(packed_code("")->computes_as_given);
  CHECK(packed_code("")->dequantises_by_hand);
  CHECK_FALSE(packed_code("0.49.2")->dequantises_by_hand);
  CHECK_FALSE(packed_code("0.41.3").has_value());
  // 0.43.2: every matrix product's input stays as long as the graph, beside what the adapters save
  QuantisedBase old = of_format(BaseFormat::nf4, false, "0.43.2");
  const Bytes keeps = training_figures(packed(old)).backward;
  old.version = "0.43.3";
  CHECK(keeps > training_figures(packed(old)).backward);
}

TEST_CASE("two ranks of FSDP1 share the packed matrices, each has all of what unpacks them") {
  TrainingCase c = packed(of_format(BaseFormat::nf4));
  c.engine = EngineKind::fsdp1;
  c.trainer.layout.data = 2;
  c.trainer.lora.format = AdapterFormat::storage;
  TrainTapes tapes;
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
  const TrainPlan p = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
  const Bytes matrices = of_matrices([](Bytes n) { return n / 2; });
  CHECK(p.resident == (layers * matrices + 2 * kUnpacked + 2 * kAdapters) / 2);
  const Bytes statistics = of_matrices([](Bytes n) { return 4 * ceil_div(n, 64) + 4 * 16; });
  CHECK(p.buffers == layers * statistics + 2 * (d / 2) * 4);
  CHECK(base_problems(c.trainer, EngineKind::fsdp1).empty());
}

TEST_CASE("ranks of FSDP2 share packed matrices in pairs of bytes, or each has all of them") {
  TrainingCase c = packed(of_format(BaseFormat::nf4));
  c.engine = EngineKind::fsdp2;
  c.trainer.layout.data = 3;
  c.trainer.lora.format = AdapterFormat::storage;
  const auto plan = [&] {
    TrainTapes tapes;
    tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
    return make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
  };
  const auto layer = [](const TrainPlan& p) {
    const auto found = std::find_if(p.units.begin(), p.units.end(), [](const UnitBytes& u) { return u.reduce_input > 0; });
    REQUIRE(found != p.units.end());
    return *found;
  };
  const TrainPlan cut = plan();
  const Bytes shards = of_matrices([](Bytes n) { return 2 * ceil_div(n / 4, 3); });
  c.trainer.lora.base.whole = true;
  const TrainPlan whole = plan();
  const Bytes matrices = of_matrices([](Bytes n) { return n / 2; });
  CHECK(whole.resident - cut.resident == layers * (matrices - shards));
  CHECK(layer(cut).gathered - layer(whole).gathered == 3 * shards);
  CHECK(layer(cut).unsharded == layer(cut).gathered);
  CHECK(layer(cut).cast == 0);
}

TEST_CASE("what FSDP2 does not do with a packed base is said by name") {
  Trainer t = packed(of_format(BaseFormat::nf4)).trainer;
  const auto knob = [&](EngineKind engine) {
    const auto problems = base_problems(t, engine);
    return problems.empty() ? std::string{} : problems[0].knob;
  };
  CHECK(knob(EngineKind::fsdp2).empty());
  t.lora.base.whole = true;
  CHECK(knob(EngineKind::fsdp2).empty());
  CHECK(knob(EngineKind::fsdp1) == "lora.base_whole");
  t.lora.base.whole = false;
  t.lora.base.version = "0.49.2";
  CHECK(knob(EngineKind::fsdp2) == "lora.bitsandbytes");
  t.lora.base.version = {};
  t.storage = DType::fp32;
  CHECK(knob(EngineKind::fsdp2) == "precision.storage");
  t.storage = t.compute;
  t.cpu_offload_policy = true;
  CHECK(knob(EngineKind::fsdp2) == "cpu_offload_policy");
  t.cpu_offload_policy = false;
  t.loop = training_loop(t.framework = Framework::verl);
  CHECK(knob(EngineKind::fsdp2) == "lora.base");
}

TEST_CASE("DoRA trains a magnitude for every row beside the pair") {
  TrainingCase c = packed({});
  const Bytes plain = training_figures(c).parameters;
  c.trainer.lora.dora = true;
  const Bytes rows = layers * (A + 2 * K + h + 2 * F + h);
  CHECK(training_figures(c).parameters == plain + 4 * rows);
  CHECK(training_figures(c).states == 2 * 4 * (kAdapters + rows));
  REQUIRE(base_problems(c.trainer, EngineKind::fsdp1).size() == 1);
  CHECK(base_problems(c.trainer, EngineKind::fsdp1)[0].knob == "lora.own_units");
  c.trainer.lora.own_units = false;
  CHECK(base_problems(c.trainer, EngineKind::fsdp1).empty());
  c.trainer.zero.stage = 3;
  c.trainer.recompute = Recompute::full;
  CHECK(base_problems(c.trainer, EngineKind::deepspeed)[0].knob == "lora.dora");
  c.trainer.recompute = Recompute::none;
  CHECK(base_problems(c.trainer, EngineKind::deepspeed).empty());
  c.trainer.zero.stage = 2;
  c.trainer.recompute = Recompute::full;
  CHECK(base_problems(c.trainer, EngineKind::deepspeed).empty());
  CHECK(base_problems(c.trainer, EngineKind::fsdp2).empty());
}

TEST_CASE("what a quantised base cannot be combined with is said by name") {
  Trainer t = packed(of_format(BaseFormat::nf4)).trainer;
  CHECK(base_problems(t, EngineKind::single).empty());
  t.lora.rank = 0;
  REQUIRE(base_problems(t, EngineKind::single).size() == 1);
  CHECK(base_problems(t, EngineKind::single)[0].knob == "lora.rank");
  t.lora.rank = r;
  t.lora.base.version = "0.41.0";
  CHECK(base_problems(t, EngineKind::single)[0].knob == "lora.bitsandbytes");
  t.lora.base = {};
  t.lora.base.prepare_kbit = true;
  CHECK(base_problems(t, EngineKind::single)[0].knob == "lora.prepare_kbit");
}

}  // namespace
