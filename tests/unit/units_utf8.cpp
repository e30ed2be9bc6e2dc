#include <doctest/doctest.h>

#include <random>
#include <string>

#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "units/json_text.hpp"
#include "units/utf8.hpp"

using namespace oomplan;

namespace {

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text, i))
    if (utf8_length(text, i) == 0) return false;
  return true;
}

/// Characters of one to four bytes, broken ones, controls, marks that turn the direction.
std::string random_text(std::mt19937& random) {
  static const std::string kPieces[] = {
      "a",        "é",    "–",    "😀",     "\xff", "\xe2\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
      "\xc0\xaf", "\x1b", "\x7f", "\u0085", "\n",   "\u202e",   "\u2067",       "\u200f"};
  std::string out;
  for (auto n = random() % 40; n > 0; --n) out += kPieces[random() % std::size(kPieces)];
  return out;
}

}  // namespace

TEST_CASE("printable text is UTF-8 of the same characters, but for what steers a terminal or turns the direction") {
  CHECK(printable("d4–t1 é 😀") == "d4–t1 é 😀");
  CHECK(printable("a\tb\nc") == "a b c");
  CHECK(printable("\x1b[31m") == "?[31m");
  CHECK(printable("x\u202egnp.exe") == "x?gnp.exe");
  CHECK(printable("\u0085\u2028\u061c") == "???");
  CHECK(printable("\xed\xa0\x80") == "???");
  std::mt19937 random(7);  // NOLINT: the same texts every time
  for (int i = 0; i < 2000; ++i) {
    const std::string text = printable(random_text(random));
    CHECK(is_utf8(text));
    CHECK(printable(text) == text);
  }
}

TEST_CASE("a cut never halves a character") {
  CHECK(shortened("abc", 3) == "abc");
  CHECK(shortened("d4–t1", 4) == "d4...");
  CHECK(shortened("d4–t1", 5) == "d4–...");
  CHECK(character_at("d4–t1", 2) == "–");
  CHECK(character_at("ab\xff", 2) == "\xff");
  CHECK(character_at("ab", 2).empty());
  std::mt19937 random(8);  // NOLINT: the same texts every time
  for (int i = 0; i < 2000; ++i) {
    const std::string text = printable(random_text(random));
    for (const std::size_t longest : {0U, 1U, 2U, 3U, 7U, 20U}) {
      const std::string cut = shortened(text, longest);
      CHECK(is_utf8(cut));
      CHECK(cut.size() <= longest + 3 + (text.size() <= longest ? text.size() : 0));
    }
  }
}

TEST_CASE("what an error says can be read, whatever it was made of") {
  std::mt19937 random(9);  // NOLINT: the same texts every time
  for (int i = 0; i < 500; ++i) {
    const auto text = [&] { return random_text(random); };
    const InputError error(Problem{{text(), 1, 1, text()}, text(), text(), text(), text()});
    CHECK(is_utf8(error.what()));
    CHECK(printable(error.what()) == error.what());
    CHECK(is_utf8(to_text(error.problems[0])));
  }
}

TEST_CASE("JSON holds the same values, and nothing that turns the direction of writing") {
  const nlohmann::json value = {{"layout", "d4\u202et1 – \u061c"}};
  const std::string text = json_text(value, -1);
  CHECK(text == R"({"layout":"d4\u202et1 – \u061c"})");
  CHECK(nlohmann::json::parse(text) == value);
  CHECK(json_text(nlohmann::json("\xff")) == "\"\uFFFD\"");
}
