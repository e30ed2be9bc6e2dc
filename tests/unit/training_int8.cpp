// A frozen base in 8 bits (LLM.int8) under adapters, on one tiny model; executed steps are compared in training_oracle.cpp.
//
// Legend: T = 4 tokens of one sequence, h = 8 hidden, A = 8 (two query heads of d = 4), K = 4 (one key/value head), F = 12, V =
// 1000, r = 2.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "estimate/figures.hpp"
#include "estimate/outliers.hpp"
#include "job/validate_base.hpp"
#include "layers/tape.hpp"
#include "tiny_llama.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 8, heads = 2, d = 4, A = heads * d, K = d, F = 12, V = 1000, r = 2, layers = 2;
constexpr Bytes kAdapters = layers * r * (2 * (h + A) + 2 * (h + K) + 3 * (h + F));
constexpr Bytes kUnpacked = 2 * V * h + h + layers * 2 * h;  // embedding, output layer, norms

TrainingCase in_8_bits(std::int64_t outliers = 0, std::string version = {}) {
  TrainingCase c = tiny_llama(T, r);
  QuantisedBase& base = c.trainer.lora.base;
  base.format = BaseFormat::int8;
  base.outliers = outliers;
  base.version = std::move(version);
  return c;
}

/// Bytes of the tensor whose name ends so; -1: there is none.
Bytes bytes_of_tensor(const TrainingCase& c, const std::string& name) {
  const auto tape = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
  const auto at = std::find_if(tape->sites.begin(), tape->sites.end(), [&](const auto& s) { return s.name.ends_with(name); });
  return at == tape->sites.end() ? Bytes{-1} : at->bytes.coefficient;
}

std::string first_problem(const Trainer& t, EngineKind engine) {
  const auto problems = base_problems(t, engine);
  return problems.empty() ? std::string() : problems[0].knob;
}

TEST_CASE("a base of 8 bits by hand: a byte an element, a scale for every row") {
  const Bytes elements = 2 * A * h + 2 * K * h + 3 * F * h, rows = A + 2 * K + h + 2 * F + h;
  CHECK(training_figures(in_8_bits()).parameters == layers * (elements + 4 * rows) + 2 * kUnpacked + 4 * kAdapters);
}

TEST_CASE("an 8-bit layer counts in int32 and unpacks its matrix for backward") {
  const TrainingCase c = in_8_bits();
  CHECK(bytes_of_tensor(c, "layer.mlp.gate.int32") == 4 * F);  // of a token
  CHECK(bytes_of_tensor(c, "layer.mlp.gate.CA") == h);
  CHECK(bytes_of_tensor(c, "layer.mlp.gate.subA") == -1);
  CHECK(bytes_of_tensor(c, "gate.backward.dequantised") == 2 * F * h);
  CHECK(bytes_of_tensor(in_8_bits(3), "layer.mlp.gate.subA") == 2 * 3);
  CHECK(bytes_of_tensor(in_8_bits(100), "layer.mlp.gate.subA") == 2 * h);  // all columns there are
}

TEST_CASE("inputs of 8-bit layers outlive a checkpoint without reentry") {
  TrainingCase c = in_8_bits();
  c.trainer.sequence_tokens = 4096;
  c.trainer.recompute = Recompute::full;
  c.trainer.reentrant = false;
  const Bytes kept = training_figures(c).backward;
  c.trainer.reentrant = true;
  CHECK(kept > training_figures(c).backward);
}

TEST_CASE("an estimate says which outliers it takes") {
  Role role;
  role.name = "actor";
  CHECK(outlier_assumption(role).empty());
  role.trainer = in_8_bits().trainer;
  CHECK(outlier_assumption(role).find("lora.base_outliers") != std::string::npos);
  role.trainer.lora.base.outliers = 7;
  CHECK(outlier_assumption(role).find("7 columns") != std::string::npos);
}

TEST_CASE("what an 8-bit base cannot be combined with is said by name") {
  Trainer t = in_8_bits().trainer;
  CHECK(base_problems(t, EngineKind::single).empty());
  CHECK(base_problems(t, EngineKind::ddp).empty());
  CHECK(first_problem(t, EngineKind::fsdp1) == "lora.base");
  CHECK(first_problem(t, EngineKind::fsdp2) == "lora.base");
  t.lora.base.double_quant = true;
  CHECK(first_problem(t, EngineKind::single) == "lora.base_double_quant");
  CHECK(first_problem(in_8_bits(0, "0.44.1").trainer, EngineKind::single) == "lora.bitsandbytes");
  CHECK(first_problem(in_8_bits(2, "0.45.5").trainer, EngineKind::single) == "lora.base_outliers");
  t = in_8_bits(2).trainer;
  t.lora.base.format = BaseFormat::nf4;
  CHECK(first_problem(t, EngineKind::single) == "lora.base_outliers");
}

}  // namespace
