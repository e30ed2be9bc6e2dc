// Command lines as HfArgumentParser takes them: rows that the parsers of TRL and Transformers themselves wrote
// (benchmarks/oracle/parse_arguments.py).
#include <doctest/doctest.h>

#include <fstream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "frontends/structured/over_defaults.hpp"
#include "frontends/telling.hpp"
#include "frontends/transformers/arguments.hpp"

using namespace oomplan;
using namespace oomplan::transformers;

namespace {

using Json = nlohmann::json;

Json json_of(const compose::Node& n) {
  switch (n.kind) {
    case compose::Node::Kind::boolean:
      return n.boolean;
    case compose::Node::Kind::integer:
      return n.integer;
    case compose::Node::Kind::real:
      return n.real;
    case compose::Node::Kind::text:
      return n.text;
    case compose::Node::Kind::list: {
      Json out = Json::array();
      for (const auto& item : n.items) out.push_back(json_of(item));
      return out;
    }
    case compose::Node::Kind::map: {
      Json out = Json::object();
      for (const auto& entry : n.entries) out[entry.key] = json_of(entry.value);
      return out;
    }
    default:
      return nullptr;
  }
}

/// What argparse keeps as a text is parsed by __post_init__, which the rows do not run.
bool same(const Json& ours, const Json& theirs) {
  if (ours.is_object() && theirs.is_string()) return Json::parse(theirs.get<std::string>(), nullptr, false) == ours;
  if (ours.is_number() && theirs.is_number()) return ours.get<double>() == theirs.get<double>();
  if (ours.is_string() && theirs.is_number()) return std::stod(ours.get<std::string>()) == theirs.get<double>();  // of a union
  return ours == theirs;
}

}  // namespace

TEST_CASE("command lines are taken as HfArgumentParser takes them") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/parsed_arguments.jsonl");
  REQUIRE(in);
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    std::vector<std::string> words = row["words"].get<std::vector<std::string>>();
    const TrainerRow& trainer = *find_trainer(words.front());
    words.erase(words.begin());
    const std::string trl = row["trl"].get<std::string>(), hf = "transformers " + row["transformers"].get<std::string>();
    const bool newest = row["transformers"] == "5.24.0";
    const Release release = *find_release(trl.empty() || newest ? hf : "trl " + trl);
    CAPTURE(line);
    const Classes classes(release, trainer);
    Arguments read = read_arguments(words, classes, std::string(trainer.name));
    structured::ClassTable table(std::make_unique<Classes>(release, trainer));
    structured::OverDefaults merged = structured::over_defaults(table, trainer.name, read.given, false);
    const bool stray = !row.contains("error") && row["left"] == Json::array({"stray"});  // the script would stop at it
    const bool refused = !read.problems.empty() || !merged.problems.empty();
    CHECK(refused == (row.contains("error") || stray));
    if (row.contains("error") || stray) continue;
    std::size_t left = 0;
    for (const OtherFlag& other : read.others) left += 1 + other.values.size();
    CHECK(left == row["left"].size());
    for (const auto& [key, value] : row["values"].items()) {
      CAPTURE(key);
      const compose::Node* ours = merged.root.find(key);
      REQUIRE(ours != nullptr);
      CHECK_MESSAGE(same(json_of(*ours), value), json_of(*ours).dump());
    }
    for (const auto& entry : read.given.entries) {  // and nothing besides
      const compose::Node by_default = table.by_default(*classes.field(entry.key));
      const bool kept = json_of(by_default) == json_of(*merged.root.find(entry.key));
      CHECK_MESSAGE((kept || row["values"].contains(entry.key)), entry.key);
    }
  }
  CHECK(rows >= 120);
}
