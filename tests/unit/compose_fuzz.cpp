// Broken configurations and launch commands by the thousand: whatever the bytes are, the answer is a tree and problems with
// texts, nothing is thrown, and it takes a bounded time.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "frontends/compose/launch.hpp"

using namespace oomplan;
using namespace oomplan::compose;

namespace {

struct Seeds {
  std::vector<std::map<std::string, std::string>> folders;
  std::vector<std::string> arguments;
};

Seeds seeds() {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/compose_cases.jsonl");
  Seeds out;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row["kind"] == "override") out.arguments.push_back(row["text"]);
    if (row["kind"] != "compose") continue;
    out.folders.push_back(row["files"].get<std::map<std::string, std::string>>());
    for (const auto& typed : row["overrides"]) out.arguments.push_back(typed);
  }
  return out;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }

  std::string changed(std::string text, const std::string& other) {
    static const std::vector<std::string> kWords{"${",
                                                 "}",
                                                 "${a}",
                                                 "${.a}",
                                                 "${..}",
                                                 "${oc.env:",
                                                 "${oc.select:",
                                                 "${oc.decode:",
                                                 "${oc.create:",
                                                 "${oc.dict.values:",
                                                 "\\",
                                                 "'",
                                                 "\"",
                                                 "[",
                                                 "]",
                                                 "{",
                                                 "{a: ",
                                                 ": ",
                                                 "\n",
                                                 "  ",
                                                 "- ",
                                                 "&x ",
                                                 "*x",
                                                 "<<: *x",
                                                 "???",
                                                 "null",
                                                 "1e-6",
                                                 "1:30",
                                                 "0x",
                                                 "9223372036854775808",
                                                 "!!int ",
                                                 "defaults: ",
                                                 "_self_",
                                                 "@",
                                                 "_global_",
                                                 "/",
                                                 "..",
                                                 "+",
                                                 "~",
                                                 "=",
                                                 ",",
                                                 "(",
                                                 ")",
                                                 "\xff",
                                                 "\x01",
                                                 "\xc3\xa9",
                                                 "# @package "};
    for (std::size_t n = 1 + below(4); n > 0; --n) {
      const std::size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          text.insert(at, kWords[below(kWords.size())]);
          break;
        case 1:
          text.erase(at, below(6));
          break;
        case 2:
          text.insert(at, 1, static_cast<char>(below(256)));
          break;
        case 3:
          text.insert(at, other.substr(below(other.size() + 1), below(30)));
          break;
        default:
          text.insert(at, text.substr(below(text.size() + 1), below(30)));
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

void check_problems(const std::vector<Problem>& problems) {
  for (const auto& problem : problems) CHECK_FALSE(to_text(problem).empty());
}

}  // namespace

TEST_CASE("compose fuzz: changed configurations and arguments") {
  const Seeds from = seeds();
  REQUIRE(from.folders.size() > 100);
  Mutator mutate(20240607);
  int clean = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    auto files = from.folders[mutate.below(from.folders.size())];
    for (auto& [name, text] : files)
      if (mutate.below(2) == 0) text = mutate.changed(text, from.folders[mutate.below(from.folders.size())].begin()->second);
    Request request;
    request.config = "main";
    for (std::size_t n = mutate.below(3); n > 0; --n) {
      const auto& typed = from.arguments[mutate.below(from.arguments.size())];
      request.overrides.push_back(mutate.below(2) == 0 ? typed : mutate.changed(typed, "a.b=1"));
    }
    request.files = in_memory(files);
    const Composed composed = compose::compose(request);
    const Resolved resolved = resolve(composed.root, {{"A", "1"}});
    check_problems(composed.problems);
    check_problems(composed.warnings);
    check_problems(resolved.problems);
    ++(composed.problems.empty() && resolved.problems.empty() ? clean : refused);
    check_problems(load_with_dotlist(files.begin()->second, "x.yaml", request.overrides, {}).problems);
  }
  CHECK(clean > 500);
  CHECK(refused > 500);
}

TEST_CASE("compose fuzz: bytes") {
  Mutator mutate(7);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (std::size_t n = mutate.below(60); n > 0; --n) bytes += static_cast<char>(mutate.below(round % 2 == 0 ? 256 : 128));
    Request request;
    request.config = "main";
    request.overrides = {bytes, "a=" + bytes, "+a.b=" + bytes};
    request.files = in_memory({{"main.yaml", round % 3 == 0 ? bytes : "a: 1\n"}});
    const Composed composed = compose::compose(request);
    check_problems(composed.problems);
    Node text = text_node("${" + bytes + "}");
    text.kind = Node::Kind::interpolation;
    Node root;
    root.kind = Node::Kind::map;
    root.entries.push_back({"a", Node::Kind::text, {}, std::move(text)});
    check_problems(resolve(root, {}).problems);
  }
}
