// The table of what lives, against a map.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <tuple>

#include "program/live_table.hpp"

using namespace oomplan;

TEST_CASE("a table of live tensors finds what a map finds, however they come and go") {
  std::mt19937_64 random(7);
  LiveTable table;
  std::map<std::tuple<std::uint32_t, std::int64_t, std::int64_t>, std::int64_t> expected;
  std::int64_t taken = 0, refused = 0, missed = 0;
  for (std::int64_t i = 0; i < 200'000; ++i) {
    // it fills, past its first size and back, with many identities asked for twice
    const bool filling = i / 20'000 % 2 == 0;
    const Identity key{static_cast<std::int64_t>(random() % 50) - 5, static_cast<std::int64_t>(random() % 40),
                       static_cast<std::uint32_t>(random() % 3)};
    const std::tuple at{key.site, key.a, key.b};
    const auto known = expected.find(at);
    if (random() % 4 < (filling ? 3U : 1U)) {
      REQUIRE(table.insert(key, i) == (known == expected.end()));
      refused += known != expected.end() ? 1 : 0;
      expected.emplace(at, i);
    } else if (known == expected.end()) {
      REQUIRE(table.take(key) == -1);
      ++missed;
    } else {
      REQUIRE(table.take(key) == known->second);
      expected.erase(known);
      ++taken;
    }
  }
  CHECK(taken > 10'000);
  CHECK(refused > 10'000);
  CHECK(missed > 10'000);
}
