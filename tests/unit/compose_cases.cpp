// What Hydra 1.3.2 and OmegaConf 2.3.0 answered when they were run: tests/data/compose_cases.jsonl, made by
// benchmarks/oracle/compose_cases.py. A case may carry "ours" and "because": an answer that differs on purpose.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "frontends/compose/compose.hpp"

namespace {

using namespace oomplan;
using namespace oomplan::compose;
using Json = nlohmann::json;

std::vector<Json> cases(std::string_view kind) {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/compose_cases.jsonl");
  REQUIRE(in.good());
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);) {
    Json row = Json::parse(line);
    if (row["kind"] == kind) out.push_back(std::move(row));
  }
  return out;
}

std::string key_text(const Entry& entry) {
  switch (entry.key_kind) {
    case Node::Kind::integer:
      return "int " + entry.key;
    case Node::Kind::real:
      return "float " + entry.key;
    case Node::Kind::boolean:
      return "bool " + entry.key;
    default:
      return entry.key;
  }
}

/// As encoded() of compose_cases.py.
Json encoded(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return "null";
    case Node::Kind::boolean:
      return "bool " + python_text(node);
    case Node::Kind::integer:
      return "int " + python_text(node);
    case Node::Kind::real:
      return "float " + python_text(node);
    case Node::Kind::missing:
      return "missing";
    case Node::Kind::unknown:
      return "unknown";
    case Node::Kind::broken:
      return "error";
    case Node::Kind::text:
    case Node::Kind::interpolation:
      return "str " + node.text;
    case Node::Kind::list:
    case Node::Kind::map:
      break;
  }
  Json out = node.kind == Node::Kind::list ? Json::array() : Json::object();
  for (const auto& item : node.items) out.push_back(encoded(item));
  for (const auto& entry : node.entries) out[key_text(entry)] = encoded(entry.value);
  return out;
}

/// "error InterpolationKeyError" -> "error": which exception it is does not matter to a reader.
Json without_exceptions(const Json& value) {
  if (value.is_string()) return value.get<std::string>().starts_with("error ") ? Json("error") : value;
  Json out = value;
  for (auto& item : out) item = without_exceptions(item);
  return out;
}

/// The answer that is expected: null when the whole thing is refused.
Json expected(const Json& row) {
  if (row.contains("ours")) return row["ours"].is_object() && row["ours"].contains("error") ? Json() : row["ours"];
  return row.contains("answer") ? without_exceptions(row["answer"]) : Json();
}

std::string texts(const std::vector<Problem>& problems) {
  std::string out;
  for (const auto& problem : problems) out += to_text(problem) + "\n";
  return out;
}

bool has_error(const Json& value) {
  if (value.is_string()) return value == "error";
  for (const auto& item : value)
    if (has_error(item)) return true;
  return false;
}

/// Compares a tree and its problems with what is expected; refusals must be told with a place.
void check(const Json& row, Composed composed, const Environment& environment) {
  const Json want = expected(row);
  CAPTURE(row.dump());
  Resolved resolved = resolve(composed.root, environment);
  auto problems = std::move(composed.problems);
  problems.insert(problems.end(), resolved.problems.begin(), resolved.problems.end());
  CAPTURE(texts(problems));
  for (const auto& problem : problems) {
    CHECK_FALSE(problem.place.file.empty());
    CHECK_FALSE((problem.found.empty() && problem.why.empty()));
  }
  if (want.is_null()) {
    CHECK_FALSE(problems.empty());
    return;
  }
  CHECK(encoded(resolved.root) == want);
  CHECK(problems.empty() == !has_error(want));
}

}  // namespace

TEST_CASE("compose: YAML scalars are typed as OmegaConf types them") {
  const auto rows = cases("scalar");
  CHECK(rows.size() > 100);
  for (const auto& row : rows) {
    CAPTURE(row.dump());
    std::vector<Problem> problems;
    Node value;
    try {
      const Document document = read_document("v: " + row["text"].get<std::string>() + "\n", "main.yaml");
      problems = document.problems;
      REQUIRE(document.root.find("v") != nullptr);
      value = *document.root.find("v");
    } catch (const InputError& e) {
      problems = e.problems;
    }
    const Json want = row.contains("ours") ? row["ours"] : row.value("answer", Json("error"));
    CAPTURE(texts(problems));
    if (want == "error") {
      CHECK_FALSE(problems.empty());
    } else {
      CHECK(problems.empty());
      CHECK(encoded(value) == want);
    }
  }
}

TEST_CASE("compose: overrides are read as Hydra's grammar reads them") {
  const auto rows = cases("override");
  CHECK(rows.size() > 150);
  for (const auto& row : rows) {
    CAPTURE(row.dump());
    const std::string typed = row["text"];
    const bool refused = row.contains("error") || row.value("ours", "") == "error" || row.value("answer", Json()) == "sweep";
    try {
      const Override given = read_override(typed);
      CHECK_FALSE(refused);
      constexpr std::array<const char*, 4> kTypes{"CHANGE", "ADD", "FORCE_ADD", "DEL"};
      CHECK(row["type"] == kTypes[static_cast<std::size_t>(given.kind)]);
      CHECK(row["key"] == given.key);
      CHECK(row["package"] == (given.package ? Json(*given.package) : Json()));
      CHECK(row["answer"] == encoded(given.value.value_or(Node{})));
      CHECK(given.typed == typed);
    } catch (const InputError& e) {
      CAPTURE(e.what());
      CHECK(refused);
      if (row.value("answer", Json()) == "sweep") CHECK(std::string(e.what()).find("sweep") != std::string::npos);
    }
  }
}

TEST_CASE("compose: configurations compose and resolve as Hydra and OmegaConf do it") {
  const auto rows = cases("compose");
  CHECK(rows.size() > 150);
  for (const auto& row : rows) {
    const std::string config = row["config"];
    const auto slash = config.rfind('/');
    Request request;
    request.folder = slash == std::string::npos ? "" : config.substr(0, slash);
    request.config = config.substr(slash == std::string::npos ? 0 : slash + 1);
    request.config = request.config.substr(0, request.config.find(".yaml"));
    request.overrides = row["overrides"].get<std::vector<std::string>>();
    request.files = in_memory(row["files"].get<std::map<std::string, std::string>>());
    request.environment = row["env"].get<Environment>();
    check(row, compose::compose(request), request.environment);
  }
}

TEST_CASE("compose: dot lists are read as OmegaConf reads them") {
  for (const auto& row : cases("dotlist")) {
    const auto environment = row["env"].get<Environment>();
    check(row, load_with_dotlist(row["text"], "main.yaml", row["arguments"].get<std::vector<std::string>>(), environment),
          environment);
  }
}

TEST_CASE("compose: every difference from the real libraries is explained") {
  for (const char* kind : {"scalar", "override", "compose", "dotlist"})
    for (const auto& row : cases(kind)) {
      CAPTURE(row.dump());
      CHECK(row.contains("ours") == row.contains("because"));
    }
}
