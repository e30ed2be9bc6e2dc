// A flag in the text of a script: given another value, added, taken out.
#include <doctest/doctest.h>

#include "frontends/script_words.hpp"

namespace {

using namespace oomplan;

const std::string kScript =
    "PERF=(\n"
    "   --tensor 2   # ranks\n"
    "   # --tensor 4\n"
    "   --parallel\n"
    "   --tokens ${TOKENS:-512}\n"
    ")\n"
    "python3 train.py --last=1 \\\n"
    "  --first 'a b' \\\n"
    "  \"${PERF[@]}\"\n";

std::string with(const std::string& flag, std::string_view neighbour = "--tensor") {
  return with_flag(kScript, flag, neighbour).value_or("nothing");
}
std::string replaced(std::string before, std::string after) {
  std::string out = kScript;
  return out.replace(out.find(before), before.size(), after);
}

TEST_CASE("a flag of a script gets another value where it stands") {
  CHECK(with("--tensor=4") == replaced("--tensor 2", "--tensor 4"));
  CHECK(with("--tokens=9") == replaced("--tokens ${TOKENS:-512}", "--tokens 9"));
  CHECK(with("--last=2") == replaced("--last=1", "--last 2"));
  CHECK(with("--first=c") == replaced("--first 'a b'", "--first c"));
  CHECK(with("--parallel") == kScript);
}

TEST_CASE("a flag that a script does not have gets a line of its own") {
  CHECK(with("--new=1") == replaced("   --tensor 2", "   --new 1\n   --tensor 2"));
  CHECK(with("--new", "--first") == replaced("  --first", "  --new \\\n  --first"));
  CHECK(with("--new=1", "--last") == replaced("--last=1", "--new 1 --last=1"));  // a line with other words
  CHECK(with("--new=1", "--unknown") == "nothing");
  CHECK(with("--new=1", "") == "nothing");
}

TEST_CASE("a flag is taken out of a script with its value") {
  const auto without = [](const std::string& flag) { return without_flag(kScript, flag).value_or("nothing"); };
  CHECK(without("--parallel") == replaced("   --parallel\n", ""));
  CHECK(without("--tokens") == replaced("   --tokens ${TOKENS:-512}\n", ""));
  CHECK(without("--first") == replaced("  --first 'a b' \\\n", ""));
  CHECK(without("--last") == replaced("--last=1 ", ""));
  CHECK(without("--tensor") == replaced("--tensor 2   ", ""));  // the comment behind it stays
  CHECK(without("--unknown") == "nothing");
  const std::string twice = kScript + "other --last=3\n";
  CHECK(without_flag(twice, "--last") == std::nullopt);
  CHECK(with_flag(twice, "--last=2", "--tensor") == std::nullopt);
}

}  // namespace
