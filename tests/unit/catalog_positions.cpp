// Context lengths of the built-in models against their published configuration files, or the defaults of transformers' classes
// where these leave them out: tests/data/context_lengths.jsonl names the source of every row.
#include <doctest/doctest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "catalog/architecture.hpp"
#include "catalog/catalog.hpp"

using namespace oomplan;

TEST_CASE("built-in models have the positions that were published") {
  std::ifstream rows(std::string(OOMPLAN_SOURCE_DIR) + "/tests/data/context_lengths.jsonl");
  REQUIRE(rows.good());
  std::size_t seen = 0;
  for (std::string line; std::getline(rows, line); ++seen) {
    const auto row = nlohmann::json::parse(line);
    const auto id = row.at("id").get<std::string>();
    INFO(id << " by " << row.at("source").get<std::string>());
    CHECK(Catalog::builtin().model(id).architecture->max_positions == row.at("positions").get<std::int64_t>());
  }
  CHECK(seen > 200);
}
