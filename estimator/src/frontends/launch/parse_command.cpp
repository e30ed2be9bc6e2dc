// Lists, pipelines, simple commands and redirections (Bash Reference Manual 5.2, 3.2 and 3.6).
#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

constexpr std::size_t kWrittenMost = 120;  // bytes of a command that a message shows

/// Programs of the shell whose arguments may be assignments.
constexpr std::array<std::string_view, 5> kDeclares{"declare", "export", "local", "readonly", "typeset"};
constexpr std::array<std::string_view, 12> kRedirections{"&>>", "<<<", "<<-", "&>", "<<", "<&", "<>", ">>", ">&", ">|", "<", ">"};

std::string plain_text(const Word& word) {
  return word.pieces.size() == 1 && word.pieces[0].kind == Piece::Kind::plain ? word.pieces[0].text : "";
}

/// The delimiter of a here-document: its text without quotes.
void unquote(const std::vector<Piece>& pieces, HereDocument& out) {
  for (const Piece& piece : pieces) {
    out.literal = out.literal || piece.kind == Piece::Kind::quoted || piece.kind == Piece::Kind::double_quoted;
    out.delimiter += piece.parameter ? piece.parameter->written : piece.text;
    unquote(piece.inside, out);
  }
}

}  // namespace

std::string Parser::written(std::size_t from) const {
  std::string out;
  for (std::size_t i = from; i < at_; ++i) {
    const char c = text_[i] == '\t' || text_[i] == '\n' ? ' ' : text_[i];
    if (c == '\\' && i + 1 < at_ && text_[i + 1] == '\n') continue;
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
    if (out.size() > kWrittenMost) return out.substr(0, kWrittenMost - 3) + "...";
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string Parser::reserved() {
  peek();
  std::size_t end = at_;
  while (end < text_.size() && std::string_view(" \t\n;&|<>()").find(text_[end]) == std::string_view::npos) {
    if (std::string_view("'\"\\$`").find(text_[end]) != std::string_view::npos) return "";
    ++end;
  }
  return std::string(text_.substr(at_, end - at_));
}

bool Parser::take_word(std::string_view wanted) {
  if (reserved() != wanted) return false;
  at_ += wanted.size();
  return true;
}

void Parser::need_word(std::string_view wanted, std::string_view opened, int line) {
  skip_lines();
  if (!take_word(wanted)) fail(found_here(), fmt::format("'{}' of the '{}' of line {}", wanted, opened, line));
}

bool Parser::at_end_of(std::initializer_list<std::string_view> ends, char close) {
  if (done() || (close != 0 && raw() == close)) return true;
  const std::string word = reserved();
  return std::find(ends.begin(), ends.end(), word) != ends.end() || (close == ';' && raw() == ';' && raw(1) == ';') ||
         (close == ';' && raw() == ';' && raw(1) == '&');
}

Script Parser::list(std::initializer_list<std::string_view> ends, char close) {
  Script out;
  for (skip_lines(); !at_end_of(ends, close == ';' ? '\0' : close); skip_lines()) {
    if (close == ';' && raw() == ';' && (raw(1) == ';' || raw(1) == '&')) break;
    if (raw() == ';' || raw() == '&' || raw() == '|' || raw() == ')') fail(found_here(), "a command");
    out.items.push_back(and_or());
    skip_blanks();
    if (done()) break;
    if (close == ';' && raw() == ';' && (raw(1) == ';' || raw(1) == '&')) break;
    if (raw() == ';' && raw(1) != ';') {
      next();
    } else if (raw() == '&' && raw(1) != '&') {
      next();
      out.items.back().background = true;
    } else if (raw() != '\n' && !(close != 0 && raw() == close)) {
      fail(found_here(), "the end of the command");
    }
  }
  return out;
}

AndOr Parser::and_or() {
  AndOr out;
  skip_blanks();
  out.line = line_;
  const std::size_t start = at_;
  for (;;) {
    out.pipelines.push_back(pipeline());
    skip_blanks();
    const bool both = take("&&");
    if (!both && !take("||")) break;
    out.needs_success.push_back(both);
    skip_lines();
  }
  out.written = written(start);
  return out;
}

Pipeline Parser::pipeline() {
  Pipeline out;
  for (skip_blanks();; skip_blanks()) {
    if (take_word("!"))
      out.negated = !out.negated;
    else if (take_word("time"))
      skip_blanks(), take_word("-p");
    else
      break;
  }
  for (;;) {
    out.commands.push_back(command());
    skip_blanks();
    if (raw() != '|' || raw(1) == '|') break;
    next();
    out.errors_too.push_back(take("&"));
    skip_lines();
  }
  out.errors_too.push_back(false);
  return out;
}

Command Parser::command() {
  skip_blanks();
  enter();
  Command out;
  const std::size_t start = at_;
  const int line = line_;
  if (compound(out)) {
    for (skip_blanks(); redirection(out.redirections); skip_blanks()) {
    }
  } else {
    out = simple();
  }
  out.line = line;
  out.written = written(start);
  leave();
  return out;
}

/// name=, name+=, name[subscript]= at the start of a word.
bool Parser::assignment(Assignment& out) {
  peek();
  const std::size_t start = at_;
  const int line = line_;
  const char first = raw();
  if (std::isalpha(static_cast<unsigned char>(first)) == 0 && first != '_') return false;
  const auto back = [&] {
    at_ = start, line_ = line;
    return false;
  };
  out.line = line_;
  out.name = name();
  if (peek() == '[') {
    next();
    out.subscript = bracketed();
  }
  out.append = take("+=");
  if (!out.append && !take("=")) return back();
  if (raw() == '(' && !out.subscript)
    array(out);
  else
    out.value = word(Within::word);
  return true;
}

void Parser::array(Assignment& out) {
  const int opened = line_;
  next();
  out.is_array = true;
  for (skip_lines(); peek() != ')'; skip_lines()) {
    if (done()) fail("( that is never closed", fmt::format(") at the end of the array of line {}", opened));
    Element element;
    const std::size_t start = at_;
    if (peek() == '[') {
      next();
      element.subscript = bracketed();
      if (!take("=")) {
        at_ = start;
        element.subscript.reset();
      }
    }
    element.value = word(Within::word);
    if (at_ == start) fail(found_here(), "a word of the array, or )");
    out.elements.push_back(std::move(element));
  }
  next();
  if (!done() && std::string_view(" \t\n;&|<>)").find(raw()) == std::string_view::npos)
    fail(found_here(), "a blank behind the array");
}

Command Parser::simple() {
  Command out;
  bool declares = false;
  for (;; skip_blanks()) {
    skip_blanks();
    if (done() || std::string_view("\n;|)").find(raw()) != std::string_view::npos) break;
    if (raw() == '&' && raw(1) != '>') break;
    if (redirection(out.redirections)) continue;
    Assignment assigned;
    if (out.arguments.empty() && assignment(assigned)) {
      out.assignments.push_back(std::move(assigned));
      continue;
    }
    Argument argument;
    if (declares && assignment(assigned)) {
      argument.assignment = std::make_shared<const Assignment>(std::move(assigned));
    } else {
      if (raw() == '(') fail(found_here(), "the end of the command");
      argument.word = word(Within::word);
      const std::string text = plain_text(argument.word);
      if (out.arguments.empty() && out.assignments.empty() && peek() == '(' && !text.empty()) {
        function(out, text);
        return out;
      }
      if (out.arguments.empty() || declares)
        declares = declares || std::find(kDeclares.begin(), kDeclares.end(), text) != kDeclares.end();
    }
    out.arguments.push_back(std::move(argument));
  }
  if (out.arguments.empty() && out.assignments.empty() && out.redirections.empty()) fail(found_here(), "a command");
  return out;
}

bool Parser::redirection(std::vector<Redirection>& all) {
  peek();
  const std::size_t start = at_;
  Redirection out;
  out.line = line_;
  if (std::isdigit(static_cast<unsigned char>(raw())) != 0) {
    int number = 0;
    for (; std::isdigit(static_cast<unsigned char>(raw())) != 0 && number < 1000; next()) number = number * 10 + (raw() - '0');
    if (raw() != '<' && raw() != '>') {
      at_ = start;
      return false;
    }
    out.descriptor = number;
  }
  const auto op = std::find_if(kRedirections.begin(), kRedirections.end(), [&](std::string_view x) { return next_is(x); });
  if (op == kRedirections.end() || ((*op == "<" || *op == ">") && raw(1) == '(')) {
    at_ = start;
    return false;
  }
  at_ += op->size();
  out.op = *op;
  skip_blanks();
  if (done() || std::string_view("\n;&|)").find(raw()) != std::string_view::npos)
    fail(found_here(), fmt::format("a file behind {}", *op));
  out.target = word(Within::word);
  if (out.target.pieces.empty()) fail(found_here(), fmt::format("a file behind {}", *op));
  if (*op == "<<" || *op == "<<-") {
    auto document = std::make_shared<HereDocument>();
    document->tabs = *op == "<<-";
    unquote(out.target.pieces, *document);
    pending_.push_back({document, out.line});
    out.document = std::move(document);
    out.op = "<<";
  }
  all.push_back(std::move(out));
  return true;
}

/// The bodies of the here-documents that the line before this one asked for.
void Parser::here_documents() {
  std::vector<Pending> all;
  all.swap(pending_);
  for (const Pending& pending : all) {
    HereDocument& document = *pending.document;
    const int first = line_;
    std::string body;
    while (at_ < text_.size()) {
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      std::string_view line = text_.substr(at_, end - at_);
      while (document.tabs && line.starts_with('\t')) line.remove_prefix(1);
      at_ = std::min(end + 1, text_.size());
      ++line_;
      if (line == document.delimiter) break;
      body += line;
      body += '\n';
    }
    document.body.line = first;
    if (document.literal)
      document.body.pieces.push_back({Piece::Kind::quoted, body});
    else
      document.body = Parser(body, first, depth_ + 1).whole(Within::here_document);
  }
}

}  // namespace oomplan::launch
