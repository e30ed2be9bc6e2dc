// Characters, lines and the entry of the parser.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

constexpr int kDeepestCommand = 100;  // nested expansions and commands; the scripts of frameworks have fewer than ten

}  // namespace

bool is_name(std::string_view text) {
  const auto letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 && std::all_of(text.begin(), text.end(), letter);
}

char Parser::raw(std::size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

char Parser::peek() {
  while (raw() == '\\' && raw(1) == '\n') {
    at_ += 2;
    ++line_;
  }
  return raw();
}

bool Parser::done() {
  peek();
  return at_ >= text_.size();
}

void Parser::next() {
  if (raw() == '\n') ++line_;
  ++at_;
}

bool Parser::next_is(std::string_view words) const { return text_.substr(at_).starts_with(words); }

bool Parser::take(std::string_view words) {
  peek();
  if (!next_is(words)) return false;
  at_ += words.size();
  return true;
}

void Parser::skip_blanks() {
  while (peek() == ' ' || peek() == '\t') next();
  if (raw() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
}

void Parser::line_break() {
  next();
  here_documents();
}

void Parser::skip_lines() {
  for (skip_blanks(); !done() && raw() == '\n'; skip_blanks()) line_break();
}

void Parser::enter() {
  if (++depth_ > kDeepestCommand)
    fail(fmt::format("more than {} commands or expansions in each other", kDeepestCommand), "fewer");
}

std::string Parser::found_here() {
  if (done()) return "the end of the script";
  if (raw() == '\n') return "the end of the line";
  std::size_t end = at_;
  while (end < text_.size() && end < at_ + 40 && std::string_view(" \t\n").find(text_[end]) == std::string_view::npos) ++end;
  return fmt::format("'{}'", text_.substr(at_, std::max<std::size_t>(end - at_, 1)));
}

void Parser::fail(std::string found, std::string expected) {
  const std::size_t start = at_ == 0 ? std::string_view::npos : text_.substr(0, at_).rfind('\n');
  const std::size_t column = start == std::string_view::npos ? at_ + 1 : at_ - start;
  throw Broken{line_, static_cast<int>(column), std::move(found), std::move(expected)};
}

void Parser::script(Script& out) {
  std::size_t whole = 0;  // commands of lines that were read to their end
  try {
    for (skip_lines(); !done(); skip_lines()) {
      if (raw() == ')' || raw() == ';' || raw() == '&' || raw() == '|') fail(found_here(), "a command");
      out.items.push_back(and_or());
      skip_blanks();
      if (done() || raw() == '\n') {
        if (!done()) line_break();
        whole = out.items.size();
      } else if (raw() == ';' && raw(1) != ';') {
        next();
      } else if (raw() == '&' && raw(1) != '&') {
        next();
        out.items.back().background = true;
      } else {
        fail(found_here(), "the end of the command");
      }
    }
    here_documents();
  } catch (const Broken&) {
    out.items.resize(whole);
    throw;
  }
}

Parsed parse(std::string_view text, const std::string& file, int first_line) {
  auto script = std::make_shared<Script>();
  Parsed out;
  try {
    Parser(text, first_line, 0).script(*script);
  } catch (const Broken& b) {
    out.broken = Problem{{file, b.line, b.column, {}}, b.found, b.expected, {}, {}};
  }
  out.script = std::move(script);
  return out;
}

}  // namespace oomplan::launch
