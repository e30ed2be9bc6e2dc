// Rows of executed steps in tests/data: lines of configs by name, then a job and what was measured of it.
#pragma once
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"

namespace oomplan {

struct ExecutedRow {
  nlohmann::json row;
  TrainingCase made;
};

/// Adds those of tests/data/`file`.
inline void read_executed(const std::string& file, std::vector<ExecutedRow>& out) {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/" + file);
  REQUIRE(in.good());
  std::map<std::string, std::string> configs;
  for (std::string line; std::getline(in, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    const std::string config = row["config"];
    if (row.contains("fields")) {
      configs[config] = row["fields"].dump();
      continue;
    }
    TrainingCase made = read_training_case(row["job"].dump(), configs.at(config), Catalog::builtin());
    out.push_back({std::move(row), std::move(made)});
  }
}

inline std::vector<ExecutedRow> executed_rows(const std::string& file) {
  std::vector<ExecutedRow> out;
  read_executed(file, out);
  return out;
}

}  // namespace oomplan
