// ${...} (Bash Reference Manual 5.2, 3.5.3).
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

using Operator = Parameter::Operator;

/// Operators with one operand, the longer ones first.
struct OperatorRow {
  std::string_view text;
  Operator op;
  bool also_empty;
  bool is_pattern;  ///< the operand: quotes mean something in it also inside of double quotes
};
constexpr std::array<OperatorRow, 16> kOperators{{
    {":-", Operator::otherwise, true, false},
    {":=", Operator::assign, true, false},
    {":?", Operator::require, true, false},
    {":+", Operator::alternative, true, false},
    {"-", Operator::otherwise, false, false},
    {"=", Operator::assign, false, false},
    {"?", Operator::require, false, false},
    {"+", Operator::alternative, false, false},
    {"##", Operator::cut_front_most, false, true},
    {"#", Operator::cut_front, false, true},
    {"%%", Operator::cut_back_most, false, true},
    {"%", Operator::cut_back, false, true},
    {"^^", Operator::upper, false, true},
    {"^", Operator::upper_first, false, true},
    {",,", Operator::lower, false, true},
    {",", Operator::lower_first, false, true},
}};

constexpr std::string_view kSpecial = "@*#?-$!";

}  // namespace

Word Parser::bracketed() {
  const Word out = word(Within::subscript);
  if (!take("]")) fail(found_here(), "] that closes the subscript");
  return out;
}

Piece Parser::braces(Within within) {
  const std::size_t start = at_;
  const int line = line_;
  at_ += 2;
  enter();
  auto parameter = std::make_shared<Parameter>();
  const bool quoted = within == Within::operand_quoted || within == Within::double_quotes || within == Within::here_document ||
                      within == Within::arithmetic;
  if (!parameter_within(*parameter, quoted)) {
    at_ = start + 2, line_ = line;
    *parameter = {};
    with_operand(*parameter, Operator::wrong, quoted ? Within::operand_quoted : Within::operand);
  }
  if (done()) {
    at_ = start, line_ = line;
    fail("${ that is never closed", "} at its end");
  }
  next();
  leave();
  parameter->written = std::string(text_.substr(start, at_ - start));
  parameter->in_quotes = quoted;
  Piece out{Piece::Kind::parameter};
  out.parameter = std::move(parameter);
  return out;
}

/// What stands in the braces; false: no expansion of a parameter.
bool Parser::parameter_within(Parameter& out, bool quoted) {
  const int depth = depth_;
  try {
    parameter_name(out);
    if (out.op == Operator::none) parameter_operator(out, quoted);
    return done() || raw() == '}';
  } catch (const Broken&) {
    // what is in it is read once more as something else: in each other that doubles every time
    if (++wrong_parameters_ > kMostWrongParameters) throw;
    depth_ = depth;
    return false;
  }
}

/// The parameter, with what may stand in front of it and its subscript.
void Parser::parameter_name(Parameter& out) {
  const auto begins_parameter = [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ||
           (c != '\0' && kSpecial.find(c) != std::string_view::npos);
  };
  const char after = raw(1);
  // ${#} and ${#-x} are the number of arguments, ${#name} is a length
  const bool length =
      peek() == '#' && (begins_parameter(after) && !(kSpecial.find(after) != std::string_view::npos && raw(2) != '}'));
  if (length) next();
  if (!length && peek() == '!' && after != '\0' && begins_parameter(after) && after != '!' && after != '-') {
    next();
    out.indirect = true;
  }
  const char c = peek();
  if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
    for (; std::isdigit(static_cast<unsigned char>(peek())) != 0; next()) out.name += raw();
  } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
    out.name = name();
  } else if (c != '\0' && kSpecial.find(c) != std::string_view::npos) {
    out.name = std::string(1, c);
    if (c == '@' || c == '*') out.all = c;
    next();
  } else {
    fail(found_here(), "the name of a parameter behind ${");
  }
  if (peek() == '[' && is_name(out.name)) {
    next();
    if ((peek() == '@' || peek() == '*') && raw(1) == ']') {
      out.all = raw();
      at_ += 2;
    } else {
      out.subscript = bracketed();
    }
  }
  if (length) out.op = Operator::length;
  if (!out.indirect) return;
  if (is_name(out.name) && out.all != 0) {
    out.op = Operator::keys;
    out.indirect = false;
  } else if (is_name(out.name) && (peek() == '*' || peek() == '@') && raw(1) == '}') {
    out.op = Operator::names;
    out.all = raw();
    out.indirect = false;
    next();
  }
}

void Parser::with_operand(Parameter& out, Operator op, Within within) {
  out.op = op;
  out.operand = word(within);
}

void Parser::parameter_operator(Parameter& out, bool quoted) {
  if (peek() == '}') return;
  const Within plain = quoted ? Within::operand_quoted : Within::operand;
  for (const OperatorRow& row : kOperators)
    if (take(row.text)) {
      out.also_empty = row.also_empty;
      return with_operand(out, row.op, row.is_pattern ? Within::operand : plain);
    }
  if (peek() == '/') return replacement(out, quoted);
  if (peek() == ':') return substring(out);
  if (peek() == '@') {
    next();
    return with_operand(out, Operator::transform, Within::operand);
  }
}

void Parser::replacement(Parameter& out, bool quoted) {
  next();
  Operator op = Operator::replace;
  if (take("/"))
    op = Operator::replace_all;
  else if (take("#"))
    op = Operator::replace_front;
  else if (take("%"))
    op = Operator::replace_back;
  with_operand(out, op, Within::pattern);
  if (peek() != '/') return;
  next();
  out.second = word(quoted ? Within::operand_quoted : Within::operand);
}

/// offset:length, two arithmetic expressions: the first ends at a colon that belongs to no ?: of its own.
void Parser::substring(Parameter& out) {
  next();
  out.op = Operator::substring;
  int questions = 0, nesting = 0;
  out.operand.line = line_;
  Word* into = &out.operand;
  while (!done() && (raw() != '}' || nesting > 0)) {
    const char c = raw();
    if (c == '(') ++nesting;
    if (c == ')') --nesting;
    if (c == '?') ++questions;
    if (c == ':' && questions == 0 && nesting == 0 && !out.second) {
      next();
      out.second.emplace();
      into = &*out.second;
      continue;
    }
    if (c == ':') --questions;
    piece(into->pieces, Within::arithmetic);
  }
}

}  // namespace oomplan::launch
