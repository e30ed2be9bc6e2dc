// slime's Adam without states, against what a step of it held (tests/data/executed_stateless_adam.jsonl, made by
// benchmarks/oracle/execute_stateless_adam.py).
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "training/megatron_shares.hpp"

namespace {

using namespace oomplan;

/// One rank's parameters; a buffer has them in reverse.
MegatronParameters parameters_of(const nlohmann::json& run) {
  std::vector<MegatronTensor> tensors;
  for (const bool decays : {true, false})
    for (const nlohmann::json& elements : run[decays ? "decays" : "plain"]) {
      MegatronTensor t;
      t.elements = elements;
      t.decays = decays;
      tensors.insert(tensors.begin(), t);
    }
  MegatronParameters out;
  out.dense_tensors = {tensors};
  out.expert_tensors = {{}};
  return out;
}

TEST_CASE("megatron: a step of Adam without states holds what it held") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_stateless_adam.jsonl");
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const nlohmann::json row = nlohmann::json::parse(line);
    CAPTURE(line);
    CHECK(held_by_stateless_steps(parameters_of(row["run"]), {0}, 1, 1, !row["run"]["decoupled"].get<bool>()) == row["peak"]);
  }
  CHECK(rows == 14);
}

}  // namespace
