// [[ ... ]] (Bash Reference Manual 5.2, 3.2.5.2).
#include <array>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

constexpr std::string_view kUnary = "abcdefghkprstuvwxzGLNOSRno";
constexpr std::array<std::string_view, 15> kBinary{"==",  "!=",  "=~",  "=",   "<",   ">",   "-eq", "-ne",
                                                   "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"};

bool is_unary(std::string_view word) {
  return word.size() == 2 && word[0] == '-' && kUnary.find(word[1]) != std::string_view::npos;
}

}  // namespace

Condition Parser::condition(int opened) {
  Condition out = conjunction(opened);
  for (skip_lines(); take("||"); skip_lines()) {
    Condition both{Condition::Kind::disjunction};
    both.parts.push_back(std::move(out));
    both.parts.push_back(conjunction(opened));
    out = std::move(both);
  }
  return out;
}

Condition Parser::conjunction(int opened) {
  Condition out = negation(opened);
  for (skip_lines(); take("&&"); skip_lines()) {
    Condition both{Condition::Kind::conjunction};
    both.parts.push_back(std::move(out));
    both.parts.push_back(negation(opened));
    out = std::move(both);
  }
  return out;
}

Condition Parser::negation(int opened) {
  skip_lines();
  if (!take_word("!")) return primary(opened);
  enter();
  Condition out{Condition::Kind::negation};
  out.parts.push_back(negation(opened));
  leave();
  return out;
}

Word Parser::condition_word(int opened) {
  skip_lines();
  if (done()) fail(found_here(), fmt::format("]] of the [[ of line {}", opened));
  Word out = word(Within::word);
  if (out.pieces.empty()) fail(found_here(), "a word of [[ ]]");
  return out;
}

Condition Parser::primary(int opened) {
  skip_lines();
  if (reserved() == "]]") fail("']]'", "a condition");
  if (take("(")) {
    enter();
    Condition inside = condition(opened);
    skip_lines();
    if (!take(")")) fail(found_here(), ") that closes the ( of [[ ]]");
    leave();
    return inside;
  }
  Condition out;
  if (const std::string op = reserved(); is_unary(op)) {
    const std::size_t start = at_;
    const int line = line_;
    at_ += op.size();
    skip_lines();
    const std::string after = reserved();
    if (after != "]]" && !next_is("&&") && !next_is("||") && !next_is(")")) {
      out.kind = Condition::Kind::unary;
      out.op = op;
      out.words.push_back(condition_word(opened));
      return out;
    }
    at_ = start, line_ = line;
  }
  out.words.push_back(condition_word(opened));
  skip_lines();
  for (const std::string_view op : kBinary) {
    const bool sign = op == "<" || op == ">";
    if (sign ? !take(op) : !take_word(op)) continue;
    out.kind = Condition::Kind::binary;
    out.op = op;
    if (op != "=~") {
      out.words.push_back(condition_word(opened));
      return out;
    }
    skip_blanks();
    out.words.push_back(word(Within::regular));
    if (out.words.back().pieces.empty()) fail(found_here(), "an expression behind =~");
    return out;
  }
  return out;
}

}  // namespace oomplan::launch
