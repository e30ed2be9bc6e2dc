// The rule that exactly one row answers for a fact, and the reader of models/engines/*.json.
#include <doctest/doctest.h>

#include <map>
#include <oomplan/units/errors.hpp>
#include <set>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "catalog/facts.hpp"
#include "catalog/facts_reader.hpp"

namespace {

using namespace oomplan;

Facts read(const std::string& rows) { return Facts(read_facts(R"({"engine": "vllm", "facts": [)" + rows + "]}", "t.json")); }

std::string error_of(const std::string& rows) {
  try {
    read(rows);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("versions compare by their leading numbers") {
  CHECK(compare_versions("0.9", "0.11") == -1);
  CHECK(compare_versions("0.5.10.post1", "0.5.10") == 0);
  CHECK(compare_versions("0.5.10rc1", "0.5.10") == 0);
  CHECK(compare_versions("2.13.0+cpu", "2.13") == 0);
  CHECK(compare_versions("v1.0", "0.99.99") == 1);
  CHECK(compare_versions("99999999999999999999.1", "1") == 1);
  CHECK(compare_versions("", "") == 0);
}

TEST_CASE("a version range is a conjunction") {
  CHECK(version_matches("0.11", ">=0.11,<0.21"));
  CHECK(version_matches("0.20.9", ">=0.11, <0.21"));
  CHECK_FALSE(version_matches("0.21.0", ">=0.11,<0.21"));
  CHECK(version_matches("anything", ""));
  CHECK_FALSE(version_matches("main", ">=0.11"));
  CHECK(version_matches("0.8.5", "0.8.5"));
  CHECK(is_version_range(""));
  CHECK_FALSE(is_version_range(">=new"));
  CHECK_FALSE(is_version_range(">=0.11,"));
}

TEST_CASE("one row answers; the others are told apart by version, GPU and condition") {
  const Facts facts = read(R"(
    {"fact": "graph_bytes", "versions": "<0.11", "value": 1, "source": "s", "kind": "measured"},
    {"fact": "graph_bytes", "versions": ">=0.11", "gpu": ["sm90"], "when": {"tensor_parallel": ">=2"}, "value": 2, "source": "s", "kind": "measured"},
    {"fact": "graph_bytes", "versions": ">=0.11", "gpu": ["sm90"], "when": {"tensor_parallel": 1}, "value": 3, "source": "s", "kind": "inferred"},
    {"fact": "graph_bytes", "versions": ">=0.11", "gpu": ["sm80"], "when": {"moe": false}, "value": 4, "source": "s", "kind": "read in code"})");
  CHECK(facts.find("vllm", "graph_bytes", {"0.10.2", "sm90", {}}).value == 1);
  CHECK(facts.find("vllm", "graph_bytes", {"0.11", "sm90", {{"tensor_parallel", "8"}}}).value == 2);
  CHECK(facts.find("vllm", "graph_bytes", {"0.11", "sm90", {{"tensor_parallel", "1"}}}).value == 3);
  CHECK(facts.find("vllm", "graph_bytes", {"0.11", "sm80", {{"moe", "false"}, {"tensor_parallel", "1"}}}).value == 4);
  CHECK_THROWS_AS(facts.find("vllm", "graph_bytes", {"0.11", "sm80", {{"moe", "true"}}}), InputError);
  CHECK_THROWS_AS(facts.find("vllm", "graph_bytes", {"0.11", "sm80", {}}), InputError);
  CHECK(facts.known_versions("vllm") == std::vector<std::string>{"0.11"});
}

TEST_CASE("conditions compare numbers, versions and words") {
  const Facts facts = read(R"(
    {"fact": "a", "when": {"transformers": ">=4.57.1,<5"}, "value": 1, "source": "s", "kind": "measured"},
    {"fact": "b", "when": {"dtype": "bf16"}, "value": true, "source": "s", "kind": "measured"},
    {"fact": "c", "when": {"ratio": "<=0.5"}, "value": 3, "source": "s", "kind": "measured"})");
  CHECK(facts.find("vllm", "a", {"", "", {{"transformers", "4.57.3"}}}).value == 1);
  CHECK_THROWS_AS(facts.find("vllm", "a", {"", "", {{"transformers", "4.9.0"}}}), InputError);
  CHECK(facts.find("vllm", "b", {"", "", {{"dtype", "bf16"}}}).value == 1);
  CHECK_THROWS_AS(facts.find("vllm", "b", {"", "", {{"dtype", "fp16"}}}), InputError);
  CHECK(facts.find("vllm", "c", {"", "", {{"ratio", "0.25"}}}).value == 3);
}

TEST_CASE("two rows that match are our defect, none is an error that names what is known") {
  const Facts facts = read(R"(
    {"fact": "a", "versions": ">=0.11", "value": 1, "source": "s", "kind": "measured"},
    {"fact": "a", "versions": ">=0.12", "value": 2, "source": "s", "kind": "measured"})");
  CHECK_THROWS_AS(facts.find("vllm", "a", {"0.12", "", {}}), Defect);
  CHECK_THROWS_WITH_AS(facts.find("vllm", "a", {"0.3", "", {}}), doctest::Contains("known versions: 0.11 or 0.12"), InputError);
  CHECK_THROWS_WITH_AS(facts.find("vllmm", "a", {"0.3", "", {}}), doctest::Contains("did you mean 'vllm'?"), InputError);
  CHECK_THROWS_WITH_AS(facts.find("vllm", "b", {"0.3", "", {}}), doctest::Contains("the fact is not known"), InputError);
}

TEST_CASE("the reader refuses what it does not know") {
  const std::string good = R"("fact": "a", "value": 1, "source": "s", "kind": "measured")";
  CHECK(error_of("{" + good + "}").empty());
  CHECK(error_of("{" + good + R"(, "version": ">=1"})").find("did you mean 'versions'?") != std::string::npos);
  CHECK(error_of("{" + good + R"(, "versions": "new"})").find("facts[0].versions: found 'new'") != std::string::npos);
  CHECK(error_of("{" + good + R"(, "measurements": -1})").find("facts[0].measurements") != std::string::npos);
  CHECK(error_of("{" + good + R"(, "when": {"x": ">=many"}})").find("facts[0].when.x") != std::string::npos);
  CHECK(error_of(R"({"fact": "a", "value": 1, "source": "s", "kind": "guessed"})").find("read in code") != std::string::npos);
  CHECK(error_of(R"({"fact": "a", "value": NaN, "source": "s", "kind": "measured"})").find("not finite") != std::string::npos);
  CHECK(error_of(R"({"fact": "a", "value": 1, "source": "", "kind": "measured"})").find("facts[0].source") != std::string::npos);
}

TEST_CASE("a JSON text is refused when it is no object, too deep, or has a key twice") {
  CHECK_THROWS_AS(read_facts("[]", "t"), InputError);
  CHECK_THROWS_AS(read_facts("{", "t"), InputError);
  CHECK_THROWS_AS(read_facts("", "t"), InputError);
  CHECK_THROWS_WITH_AS(read_facts(R"({"engine": "a", "engine": "b"})", "t"), doctest::Contains("twice"), InputError);
  CHECK_THROWS_WITH_AS(read_facts(std::string(1000000, '['), "t"), doctest::Contains("64 levels"), InputError);
}

/// Values around everything that the rows of one fact compare with.
std::vector<std::string> values_around(const std::set<std::string>& conditions) {
  std::set<std::string> out{"other"};
  for (const std::string& condition : conditions) {
    for (std::size_t at = 0; at <= condition.size();) {
      const std::size_t comma = std::min(condition.find(',', at), condition.size());
      const std::size_t word = std::min(condition.find_first_not_of("<>=! ", at), comma);
      const std::string bound = condition.substr(word, comma - word);
      out.insert(bound);
      const bool number = !bound.empty() && bound.find_first_not_of("0123456789") == std::string::npos;
      if (number) out.insert({std::to_string(std::stoll(bound) - 1), std::to_string(std::stoll(bound) + 1)});
      at = comma + 1;
    }
  }
  return {out.begin(), out.end()};
}

std::vector<FactQuery> queries_of(const std::vector<const Fact*>& rows) {
  std::set<std::string> ranges, gpus{"sm90", "sm80", ""};
  std::map<std::string, std::set<std::string>> conditions;
  for (const Fact* row : rows) {
    ranges.insert(row->versions);
    gpus.insert(row->gpus.begin(), row->gpus.end());
    for (const auto& [key, condition] : row->when) conditions[key].insert(condition);
  }
  std::vector<FactQuery> out;
  std::vector<std::string> versions = values_around(ranges);
  versions.push_back("0");
  for (const std::string& version : std::vector<std::string>(versions)) versions.push_back(version + ".1");
  for (const std::string& version : versions)
    for (const std::string& sm : gpus) out.push_back({version, sm, {}});
  for (const auto& [key, all] : conditions) {
    std::vector<FactQuery> more;
    for (const FactQuery& query : out)
      for (const std::string& value : values_around(all)) {
        more.push_back(query);
        more.back().conditions[key] = value;
      }
    out = std::move(more);
  }
  return out;
}

TEST_CASE("no question has two answers in models/engines, and every row answers one") {
  const Facts& facts = Catalog::builtin().facts();
  std::map<std::pair<std::string, std::string>, std::vector<const Fact*>> by_fact;
  for (const Fact& row : facts.rows()) by_fact[{row.engine, row.fact}].push_back(&row);
  for (const auto& [key, rows] : by_fact) {
    CAPTURE(key.first);
    CAPTURE(key.second);
    std::set<const Fact*> reached;
    for (const FactQuery& query : queries_of(rows)) {
      try {
        reached.insert(&facts.find(key.first, key.second, query));
      } catch (const InputError&) {
      } catch (const Defect& defect) {
        FAIL_CHECK(defect.what());
        break;
      }
    }
    CHECK(reached.size() == rows.size());
  }
}

}  // namespace
