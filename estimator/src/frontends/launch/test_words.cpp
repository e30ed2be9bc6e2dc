// test, [ and the operators of [[ (Bash Reference Manual 5.2, 6.4).
#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/pattern.hpp"

namespace oomplan::launch {
namespace {

constexpr std::array<std::string_view, 14> kBinary{"=",   "==",  "!=",  "<",   ">",   "-eq", "-ne",
                                                   "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"};
constexpr std::string_view kUnary = "abcdefghkprstuvwxzGLNOSRno";

bool is_binary(std::string_view op) { return std::find(kBinary.begin(), kBinary.end(), op) != kBinary.end(); }
bool is_unary(std::string_view op) { return op.size() == 2 && op[0] == '-' && kUnary.find(op[1]) != std::string_view::npos; }

std::optional<std::int64_t> whole_number(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.erase(0, 1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  if (text.starts_with('+')) text.erase(0, 1);
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return out;
}

bool compares(std::string_view op, std::int64_t a, std::int64_t b) {
  if (op == "-eq") return a == b;
  if (op == "-ne") return a != b;
  if (op == "-lt") return a < b;
  if (op == "-le") return a <= b;
  if (op == "-gt") return a > b;
  return a >= b;
}

}  // namespace

Status Evaluator::test_unary(std::string_view op, const Text& given) {
  const Text value = as_bash(given);
  const std::optional<char32_t> open = first_unknown(value);
  if (op == "-z" || op == "-n") {
    const bool only_unknown = std::all_of(value.begin(), value.end(), is_unknown);
    if (open && only_unknown) return undecided(*open);
    return of(value.empty() == (op == "-z"));
  }
  if (open) return undecided(*open);
  const std::string text = bytes_of(value);
  if (op == "-v") {
    const std::size_t bracket = text.find('[');
    if (bracket != std::string::npos && text.ends_with(']'))
      return of(element_if_set(text.substr(0, bracket), text.substr(bracket + 1, text.size() - bracket - 2)).has_value());
    return of(value_if_set(text).has_value() || !elements_of(text, false).empty());
  }
  if (op == "-o")
    return of((text == "errexit" && state_.errexit) || (text == "nounset" && state_.nounset) ||
              (text == "pipefail" && state_.pipefail));
  if (op == "-t") return of(false);
  // files: devices of the machine that the user states, and what the script itself wrote
  if (text.starts_with("/dev/nvidia") || text == "/dev/null") return of(true);
  if (text.starts_with("/dev/davinci") || text == "/dev/kfd" || text.empty()) return of(false);
  if (files_.contains(text_of(path_of(value)))) return of(op != "-d");
  return undecided(unknown(Unknown::Kind::outside, fmt::format("{} {}", op, text)));
}

Status Evaluator::test_binary(std::string_view op, const Text& given, const Text& pattern, bool patterns) {
  const Text left = as_bash(given), right = as_bash(pattern);
  if (op == "=" || op == "==" || op == "!=") {
    Text literal = right;
    if (!patterns)
      for (char32_t& unit : literal) unit |= kQuoted;
    const Match match = matches(left, literal, budget_);
    if (match == Match::unknown) {
      // the same unknown on both sides is equal to itself
      if (plain(left) == plain(right)) return of(op != "!=");
      return undecided(first_unknown(left).value_or(first_unknown(right).value_or(0)));
    }
    return of((match == Match::yes) == (op != "!="));
  }
  if (const std::optional<char32_t> open = first_unknown(left)) return undecided(*open);
  if (const std::optional<char32_t> open = first_unknown(right)) return undecided(*open);
  if (op == "<") return of(bytes_of(left) < bytes_of(right));
  if (op == ">") return of(bytes_of(left) > bytes_of(right));
  if (op == "-nt" || op == "-ot" || op == "-ef")
    return undecided(unknown(Unknown::Kind::outside, fmt::format("{} {} {}", bytes_of(left), op, bytes_of(right))));
  if (patterns) return of(compares(op, calculated(plain(left), true), calculated(plain(right), true)));
  const std::optional<std::int64_t> a = whole_number(bytes_of(left)), b = whole_number(bytes_of(right));
  if (!a || !b) {
    note(Note::Level::warning, fmt::format("[: '{}' is no whole number, so the test fails", bytes_of(a ? right : left)));
    return {2, false, {}};
  }
  return of(compares(op, *a, *b));
}

/// POSIX: what the words mean depends on how many they are.
Status Evaluator::test_words(Texts words) {
  const auto is = [&](std::size_t i, std::string_view text) {
    return i < words.size() && !first_unknown(words[i]) && bytes_of(words[i]) == text;
  };
  const auto op = [&](std::size_t i) { return first_unknown(words[i]) ? std::string() : bytes_of(words[i]); };
  budget_.spend(1);
  if (words.size() > 100) throw TooMuch("a test of more than 100 words");
  if (words.empty()) return of(false);
  if (words.size() == 1) return test_unary("-n", words[0]);
  if (words.size() == 2) {
    if (is(0, "!")) return negated(test_words({words[1]}));
    if (is_unary(op(0))) return test_unary(op(0), words[1]);
    return {2, false, {}};
  }
  if (words.size() == 3 && is_binary(op(1))) return test_binary(op(1), words[0], words[2], false);
  for (const std::string_view joins : {"-o", "-a"}) {  // -a binds closer
    for (std::size_t i = 1; i + 1 < words.size(); ++i) {
      if (!is(i, joins)) continue;
      const Status left = test_words({words.begin(), words.begin() + static_cast<std::ptrdiff_t>(i)});
      const Status right = test_words({words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end()});
      const bool either_is_enough = joins == "-o";
      if (!left.unknown && left.success() == either_is_enough) return left;
      if (!right.unknown && right.success() == either_is_enough) return right;
      return left.unknown ? left : right;
    }
  }
  if (is(0, "!")) return negated(test_words({words.begin() + 1, words.end()}));
  if (is(0, "(") && is(words.size() - 1, ")")) return test_words({words.begin() + 1, words.end() - 1});
  note(Note::Level::warning, "[: too many words, so the test fails");
  return {2, false, {}};
}

}  // namespace oomplan::launch
