// if, case, for, while, functions and groups (Bash Reference Manual 5.2, 3.2.5 and 3.3).
#include <array>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {

namespace {

constexpr std::array<std::string_view, 9> kOutOfPlace{"then", "elif", "else", "fi", "do", "done", "esac", "}", "]]"};

}  // namespace

bool Parser::compound(Command& out) {
  const std::string word = reserved();
  const int line = line_;
  if (word == "if") return take_word("if"), branch(out), true;
  if (word == "case") return take_word("case"), choice(out), true;
  if (word == "for" || word == "select") return each(out), true;
  if (word == "while" || word == "until") return loop(out), true;
  if (word == "{") return take_word("{"), group(out), true;
  if (word == "[[") {
    take_word("[[");
    out.kind = Command::Kind::condition;
    out.test = condition(line);
    skip_lines();
    if (!take_word("]]")) fail(found_here(), fmt::format("]] of the [[ of line {}", line));
    return true;
  }
  if (word == "function") {
    take_word("function");
    skip_blanks();
    const std::string defined = reserved();
    if (defined.empty()) fail(found_here(), "the function's name");
    at_ += defined.size();
    return function(out, defined), true;
  }
  if (word == "coproc") fail("coproc", "a command that oomplan reads; coprocesses are not");
  for (const std::string_view other : kOutOfPlace)
    if (word == other) fail(fmt::format("'{}'", word), "a command");
  return raw() == '(' && parenthesis(out);
}

void Parser::branch(Command& out) {
  const int line = line_;
  out.kind = Command::Kind::branch;
  for (std::string_view opened = "if";; opened = "elif") {
    Clause clause;
    skip_blanks();
    const std::size_t start = at_;
    clause.condition = list({"then", "elif", "else", "fi"});
    if (clause.condition.items.empty()) fail(found_here(), fmt::format("a condition behind '{}'", opened));
    clause.written = written(start);
    while (clause.written.ends_with(';') || clause.written.ends_with(' ')) clause.written.pop_back();
    need_word("then", opened, line);
    clause.body = list({"elif", "else", "fi"});
    if (clause.body.items.empty()) fail(found_here(), "a command behind 'then'");
    out.clauses.push_back(std::move(clause));
    if (!take_word("elif")) break;
  }
  if (take_word("else")) {
    out.body = list({"fi"});
    if (out.body.items.empty()) fail(found_here(), "a command behind 'else'");
  }
  need_word("fi", "if", line);
}

void Parser::choice(Command& out) {
  const int line = line_;
  out.kind = Command::Kind::choice;
  skip_blanks();
  out.words.push_back(word(Within::word));
  if (out.words[0].pieces.empty()) fail(found_here(), "a word behind 'case'");
  need_word("in", "case", line);
  choices(out, line);
  need_word("esac", "case", line);
}

void Parser::choices(Command& out, int line) {
  for (skip_lines(); !done() && reserved() != "esac"; skip_lines()) {
    Clause clause;
    take("(");
    const std::size_t start = at_;
    for (;;) {
      skip_blanks();
      clause.patterns.push_back(word(Within::word));
      if (clause.patterns.back().pieces.empty()) fail(found_here(), fmt::format("a pattern of the 'case' of line {}", line));
      skip_blanks();
      if (!take("|")) break;
    }
    clause.written = written(start);
    if (!take(")")) fail(found_here(), ") behind a pattern");
    clause.body = list({"esac"}, ';');
    skip_lines();
    for (const std::string_view end : {";;&", ";;", ";&"})
      if (clause.end.empty() && take(end)) clause.end = end;
    const bool ended = !clause.end.empty();
    out.clauses.push_back(std::move(clause));
    if (!ended) break;  // only the last one may leave it out
  }
}

void Parser::do_group(Command& out, std::string_view opened, int line) {
  skip_lines();
  if (take_word("{")) {
    out.body = list({"}"});
    if (out.body.items.empty()) fail(found_here(), "a command behind '{'");
    return need_word("}", "{", line);
  }
  need_word("do", opened, line);
  out.body = list({"done"});
  if (out.body.items.empty()) fail(found_here(), "a command behind 'do'");
  need_word("done", opened, line);
}

void Parser::each(Command& out) {
  const int line = line_;
  const std::string opened = reserved();
  take_word(opened);
  out.kind = opened == "for" ? Command::Kind::each : Command::Kind::menu;
  skip_blanks();
  if (opened == "for" && next_is("((") && count(out)) return;
  out.name = reserved();
  if (!is_name(out.name)) fail(found_here(), fmt::format("a variable behind '{}'", opened));
  at_ += out.name.size();
  skip_lines();
  if (take_word("in")) {
    out.has_words = true;
    for (skip_blanks(); !done() && raw() != '\n' && raw() != ';'; skip_blanks()) {
      const std::size_t start = at_;
      out.words.push_back(word(Within::word));
      if (at_ == start) fail(found_here(), "a word, or the end of the list");
    }
  }
  skip_blanks();
  if (raw() == ';') next();
  do_group(out, opened, line);
}

/// for (( first; condition; step ))
bool Parser::count(Command& out) {
  const int line = line_;
  out.kind = Command::Kind::count;
  at_ += 2;
  for (int part = 0; part < 3; ++part) {
    Word expression;
    expression.line = line_;
    for (int nesting = 0; !done();) {
      if (nesting == 0 && (raw() == ';' || raw() == ')')) break;
      nesting += raw() == '(' ? 1 : raw() == ')' ? -1 : 0;
      piece(expression.pieces, Within::arithmetic);
    }
    out.words.push_back(std::move(expression));
    if (part < 2 && !take(";")) fail(found_here(), "; between the expressions of 'for (('");
  }
  if (!take("))")) fail(found_here(), ")) that closes 'for (('");
  skip_blanks();
  if (raw() == ';') next();
  do_group(out, "for", line);
  return true;
}

void Parser::loop(Command& out) {
  const int line = line_;
  const std::string opened = reserved();
  take_word(opened);
  out.kind = Command::Kind::loop;
  out.until = opened == "until";
  Clause clause;
  skip_blanks();
  const std::size_t start = at_;
  clause.condition = list({"do", "done"});
  if (clause.condition.items.empty()) fail(found_here(), fmt::format("a condition behind '{}'", opened));
  clause.written = written(start);
  while (clause.written.ends_with(';') || clause.written.ends_with(' ')) clause.written.pop_back();
  out.clauses.push_back(std::move(clause));
  do_group(out, opened, line);
}

void Parser::group(Command& out) {
  const int line = line_;
  out.kind = Command::Kind::group;
  out.body = list({"}"});
  if (out.body.items.empty()) fail(found_here(), "a command behind '{'");
  need_word("}", "{", line);
}

bool Parser::arithmetic_command(Command& out) {
  Word expression;
  expression.line = line_;
  if (!this->expression(expression.pieces, 2)) return false;
  out.kind = Command::Kind::arithmetic;
  out.words.push_back(std::move(expression));
  return true;
}

bool Parser::parenthesis(Command& out) {
  if (raw(1) == '(' && arithmetic_command(out)) return true;
  const int line = line_;
  next();
  out.kind = Command::Kind::subshell;
  out.body = list({}, ')');
  if (out.body.items.empty()) fail(found_here(), "a command behind (");
  if (!take(")")) fail(found_here(), fmt::format(") of the ( of line {}", line));
  return true;
}

/// Behind the name.
void Parser::function(Command& out, std::string name) {
  skip_blanks();
  if (take("(")) {
    skip_blanks();
    if (!take(")")) fail(found_here(), "() behind a function's name, or no parenthesis");
  }
  skip_lines();
  out = {};
  out.kind = Command::Kind::function;
  out.name = std::move(name);
  Command body;
  body.line = line_;
  if (!compound(body)) fail(found_here(), fmt::format("the body of the function {}", out.name));
  for (skip_blanks(); redirection(body.redirections); skip_blanks()) {
  }
  out.defined = std::make_shared<const Command>(std::move(body));
}

}  // namespace oomplan::launch
