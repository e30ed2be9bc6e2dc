// Words: quotes and expansions (Bash Reference Manual 5.2, 3.1.2 and 3.5).
#include <cctype>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

bool in_quotes(Within within) {
  return within == Within::operand_quoted || within == Within::double_quotes || within == Within::here_document ||
         within == Within::arithmetic;
}

void add(std::vector<Piece>& out, Piece::Kind kind, std::string_view text) {
  if (out.empty() || out.back().kind != kind) out.push_back({kind});
  out.back().text += text;
}
void add(std::vector<Piece>& out, Within within, char c) {
  add(out, in_quotes(within) ? Piece::Kind::quoted : Piece::Kind::plain, std::string_view(&c, 1));
}

bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// A code point as UTF-8.
void add_point(std::string& out, unsigned long point) {
  const auto byte = [&](unsigned long value) { out += static_cast<char>(value); };
  if (point < 0x80) {
    byte(point);
  } else if (point < 0x800) {
    byte(0xC0 | point >> 6), byte(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    byte(0xE0 | point >> 12), byte(0x80 | (point >> 6 & 0x3F)), byte(0x80 | (point & 0x3F));
  } else {
    byte(0xF0 | (point >> 18 & 7)), byte(0x80 | (point >> 12 & 0x3F)), byte(0x80 | (point >> 6 & 0x3F)),
        byte(0x80 | (point & 0x3F));
  }
}

}  // namespace

Word Parser::word(Within within) {
  Word out;
  peek();
  out.line = line_;
  pieces(out.pieces, within);
  return out;
}

Word Parser::whole(Within within) {
  Word out = word(within);
  if (!done()) fail(found_here(), "the end");
  return out;
}

bool Parser::ends(char c, Within within, int nesting) {
  switch (within) {
    case Within::word:
      return std::string_view(" \t\n;&|<>()").find(c) != std::string_view::npos;
    case Within::regular:
      return nesting == 0 && std::string_view(" \t\n;&<>)").find(c) != std::string_view::npos;
    case Within::operand:
    case Within::operand_quoted:
      return c == '}';
    case Within::pattern:
      return c == '}' || c == '/';
    case Within::double_quotes:
      return c == '"';
    case Within::here_document:
      return false;
    case Within::arithmetic:
      return c == ')' && nesting == 0;
    case Within::subscript:
      return c == ']' && nesting == 0;
  }
  return true;
}

void Parser::pieces(std::vector<Piece>& out, Within within) {
  enter();
  const bool counts = within == Within::arithmetic || within == Within::regular || within == Within::subscript;
  const char opening = within == Within::subscript ? '[' : '(', closing = within == Within::subscript ? ']' : ')';
  for (int nesting = 0; !done();) {
    const char c = raw();
    const bool substitution = within == Within::word && (c == '<' || c == '>') && raw(1) == '(';
    if (!substitution && ends(c, within, nesting)) break;
    if (counts && c == opening) ++nesting;
    if (counts && c == closing) --nesting;
    piece(out, within);
  }
  leave();
}

void Parser::piece(std::vector<Piece>& out, Within within) {
  const char c = raw();
  if (c == '\\') {
    escape(out, within);
  } else if (c == '\'' && !in_quotes(within)) {
    single_quotes(out);
  } else if (c == '"' && within == Within::arithmetic) {
    next();  // quotes are taken away there
  } else if (c == '"' && within != Within::here_document) {
    out.push_back(double_quotes());
  } else if (c == '`') {
    out.push_back(backquotes());
  } else if (c == '$' && expansion(out, within)) {
    // it is read
  } else if ((c == '<' || c == '>') && raw(1) == '(' && within == Within::word) {
    out.push_back(process());
  } else {
    add(out, within, c);
    next();
  }
}

void Parser::escape(std::vector<Piece>& out, Within within) {
  const std::string_view special = within == Within::here_document    ? "$`\\"
                                   : within == Within::operand_quoted ? "$`\\\"}"
                                                                      : "$`\\\"";
  const char c = raw(1);
  if (in_quotes(within) && (c == '\0' || special.find(c) == std::string_view::npos)) {
    add(out, Piece::Kind::quoted, "\\");
    next();
    return;
  }
  next();
  if (at_ >= text_.size()) {
    add(out, Piece::Kind::quoted, "\\");  // at the end of the text it is itself
    return;
  }
  add(out, Piece::Kind::quoted, std::string_view(&c, 1));
  next();
}

void Parser::single_quotes(std::vector<Piece>& out) {
  const std::size_t end = text_.find('\'', at_ + 1);
  if (end == std::string_view::npos) fail("a quote that is never closed", "' at its end");
  add(out, Piece::Kind::quoted, text_.substr(at_ + 1, end - at_ - 1));
  while (at_ <= end) next();
}

/// $'...' (3.1.2.4).
void Parser::ansi_quotes(std::vector<Piece>& out) {
  std::string text;
  const int line = line_;
  const std::size_t start = at_;
  at_ += 2;
  while (raw() != '\'') {
    if (at_ >= text_.size()) {
      at_ = start, line_ = line;
      fail("a quote that is never closed", "' at its end");
    }
    if (raw() == '\\' && at_ + 1 < text_.size()) {
      ansi_escape(text);
    } else {
      text += raw();
      next();
    }
  }
  next();
  add(out, Piece::Kind::quoted, text);
}

void Parser::ansi_escape(std::string& out) {
  static constexpr std::string_view kNames = "abeEfnrtv\\'\"?", kBytes = "\a\b\033\033\f\n\r\t\v\\'\"?";
  next();
  const char c = raw();
  next();
  if (const auto at = kNames.find(c); at != std::string_view::npos) {
    out += kBytes[at];
    return;
  }
  const auto number = [&](unsigned long base, int most) {
    unsigned long value = 0;
    for (int i = 0; i < most; ++i, next()) {
      const auto digit =
          std::string_view("0123456789abcdef").find(static_cast<char>(std::tolower(static_cast<unsigned char>(raw()))));
      if (digit == std::string_view::npos || digit >= base || at_ >= text_.size()) break;
      value = value * base + digit;
    }
    return value;
  };
  if (c >= '0' && c <= '7') {
    --at_;
    out += static_cast<char>(number(8, 3));
  } else if (c == 'x') {
    out += static_cast<char>(number(16, 2));
  } else if (c == 'u') {
    add_point(out, number(16, 4));
  } else if (c == 'U') {
    add_point(out, number(16, 8));
  } else {
    out += '\\';
    out += c;
  }
}

Piece Parser::double_quotes() {
  Piece out{Piece::Kind::double_quoted};
  const int line = line_;
  const std::size_t start = at_;
  next();
  pieces(out.inside, Within::double_quotes);
  if (done()) {
    at_ = start, line_ = line;
    fail("a quote that is never closed", "\" at its end");
  }
  next();
  return out;
}

std::string Parser::name() {
  std::string out;
  for (char c = peek(); in_name(c); c = peek()) {
    out += c;
    next();
  }
  return out;
}

bool Parser::expansion(std::vector<Piece>& out, Within within) {
  const bool quoted = in_quotes(within);
  const char c = raw(1);
  if (c == '\'' && !quoted) return ansi_quotes(out), true;
  if (c == '"' && !quoted) {
    next();  // a translated string: the text itself
    out.push_back(double_quotes());
    return true;
  }
  if (c == '{') return out.push_back(braces(within)), true;
  if (c == '(') {
    Piece piece{Piece::Kind::arithmetic};
    if (raw(2) != '(' || !arithmetic(piece)) piece = command_substitution();
    out.push_back(std::move(piece));
    return true;
  }
  if (c == '[') {
    Piece piece{Piece::Kind::arithmetic};
    at_ += 2;
    pieces(piece.inside, Within::subscript);
    if (!take("]")) fail(found_here(), "] that closes $[");
    out.push_back(std::move(piece));
    return true;
  }
  auto parameter = std::make_shared<Parameter>();
  if (starts_name(c)) {
    next();
    parameter->name = name();
  } else if (c != '\0' && (std::isdigit(static_cast<unsigned char>(c)) != 0 ||
                           std::string_view("@*#?-$!").find(c) != std::string_view::npos)) {
    parameter->name = std::string(1, c);
    if (c == '@' || c == '*') parameter->all = c;
    at_ += 2;
  } else {
    return false;
  }
  parameter->written = "$" + parameter->name;
  Piece piece{Piece::Kind::parameter};
  piece.parameter = std::move(parameter);
  out.push_back(std::move(piece));
  return true;
}

Piece Parser::command_substitution() {
  Piece out{Piece::Kind::command};
  const std::size_t start = at_;
  const int line = line_;
  at_ += 2;
  enter();
  std::vector<Pending> outer;
  outer.swap(pending_);  // here-documents of the inside begin behind line breaks of the inside
  out.script = std::make_shared<const Script>(list({}, ')'));
  outer.insert(outer.end(), pending_.begin(), pending_.end());
  pending_.swap(outer);
  leave();
  if (!take(")")) {
    at_ = start, line_ = line;
    fail("$( that is never closed", ") at its end");
  }
  out.text = std::string(text_.substr(start, at_ - start));
  return out;
}

Piece Parser::backquotes() {
  Piece out{Piece::Kind::command};
  const std::size_t start = at_;
  const int line = line_;
  std::string inside;
  for (next(); raw() != '`'; next()) {
    if (at_ >= text_.size()) {
      at_ = start, line_ = line;
      fail("` that is never closed", "` at its end");
    }
    if (raw() == '\\' && (raw(1) == '`' || raw(1) == '\\' || raw(1) == '$')) next();
    inside += raw();
  }
  next();
  auto script = std::make_shared<Script>();
  Parser(inside, line, depth_ + 1).script(*script);
  out.script = std::move(script);
  out.text = std::string(text_.substr(start, at_ - start));
  return out;
}

bool Parser::arithmetic(Piece& out) {
  const std::size_t start = at_;
  if (!expression(out.inside, 3)) return false;
  out.text = std::string(text_.substr(start, at_ - start));
  return true;
}

/// What stands between "((" and "))". Kept in mind where it is none: else commands in each other would be read 2^n times.
bool Parser::expression(std::vector<Piece>& out, std::size_t opening) {
  const std::size_t start = at_;
  if (subshells_.contains(start)) return false;
  const int line = line_, depth = depth_;
  at_ += opening;
  try {
    pieces(out, Within::arithmetic);
    if (!done() && raw() == ')' && raw(1) == ')') {
      at_ += 2;
      return true;
    }
  } catch (const Broken&) {
    // no expression: then a subshell, which says what is wrong with it
  }
  subshells_.insert(start);
  at_ = start, line_ = line, depth_ = depth;
  out.clear();
  return false;
}

Piece Parser::process() {
  Piece out{Piece::Kind::process};
  const std::size_t start = at_;
  const int line = line_;
  at_ += 2;
  enter();
  out.script = std::make_shared<const Script>(list({}, ')'));
  leave();
  if (!take(")")) {
    at_ = start, line_ = line;
    fail(fmt::format("{} that is never closed", text_.substr(start, 2)), ") at its end");
  }
  out.text = std::string(text_.substr(start, at_ - start));
  return out;
}

}  // namespace oomplan::launch
