// Words become texts: expansions, splitting, quotes (Bash Reference Manual 5.2, 3.5).
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "frontends/launch/braces.hpp"
#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

constexpr std::size_t kMostFields = 200'000;

bool is_list(const Piece& piece) {
  using Operator = Parameter::Operator;
  if (piece.kind != Piece::Kind::parameter) return false;
  const Operator op = piece.parameter->op;
  return (piece.parameter->all == '@' || piece.parameter->indirect) && op != Operator::length && op != Operator::otherwise;
}

}  // namespace

std::vector<Field> Evaluator::fields_of(const std::vector<Word>& words) {
  std::vector<Field> out;
  for (const Word& word : words) expand_word(word, out);
  return out;
}

void Evaluator::expand_word(const Word& word, std::vector<Field>& out) {
  if (word.line > 0) line_ = word.line;
  for (const Word& one : without_braces(word, budget_)) {
    std::vector<Field> fields{{}};
    const bool assigns = !one.pieces.empty() && one.pieces[0].kind == Piece::Kind::plain &&
                         one.pieces[0].text.find("=~") != std::string::npos &&
                         is_name(std::string_view(one.pieces[0].text).substr(0, one.pieces[0].text.find("=~")));
    if (assigns) {  // name=~/folder
      const std::size_t sign = one.pieces[0].text.find('=') + 1;
      add_text(fields, text_of(std::string_view(one.pieces[0].text).substr(0, sign)), true, false);
      const bool last = one.pieces.size() == 1;
      const std::string rest = one.pieces[0].text.substr(sign);
      fields.back().text += last || rest.find('/') != std::string::npos ? tilde(text_of(rest)) : text_of(rest);
      add_pieces({one.pieces.begin() + 1, one.pieces.end()}, fields, false, false);
    } else {
      add_pieces(one.pieces, fields, false, false);
    }
    for (const Field& field : fields) split(field, out);
    budget_.spend(static_cast<std::int64_t>(fields.size()));
    if (out.size() > kMostFields) throw TooMuch("a command of more than 200000 words");
  }
}

Text Evaluator::joined_text(const Word& word) {
  if (word.line > 0) line_ = word.line;
  return plain(pattern_text(word));
}

/// ~ stands for a folder behind every colon, too.
Text Evaluator::assigned_text(const Word& word) {
  Text out;
  Word part{{}, word.line};
  for (const Piece& piece : word.pieces) {
    std::string_view rest = piece.kind == Piece::Kind::plain ? std::string_view(piece.text) : std::string_view();
    for (std::size_t at = 0; (at = rest.find(":~")) != std::string_view::npos; rest.remove_prefix(at + 1)) {
      part.pieces.push_back({Piece::Kind::plain, std::string(rest.substr(0, at + 1))});
      out += joined_text(std::exchange(part, {{}, word.line}));
      budget_.text(out.size());
    }
    if (piece.kind == Piece::Kind::plain)
      part.pieces.push_back({Piece::Kind::plain, std::string(rest)});
    else
      part.pieces.push_back(piece);
  }
  return out + joined_text(part);
}

Text Evaluator::pattern_text(const Word& word) {
  std::vector<Field> fields{{}};
  add_pieces(word.pieces, fields, false, false);
  Text out;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) out += unit_of(' ');
    out += fields[i].text;
  }
  budget_.text(out.size());
  return out;
}

void Evaluator::add_pieces(const std::vector<Piece>& pieces, std::vector<Field>& fields, bool quoted, bool split) {
  if (++depth_ > 200) throw TooMuch("more than 200 commands or expansions in each other");
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const bool starts = i == 0 && fields.size() == 1 && fields[0].text.empty() && !quoted;
    if (starts && piece.kind == Piece::Kind::plain && piece.text.starts_with('~') &&
        (pieces.size() == 1 || piece.text.find('/') != std::string::npos))
      add_text(fields, tilde(text_of(piece.text)), false, split);
    else
      add_piece(piece, fields, quoted, split);
  }
  --depth_;
}

/// The text with its "~" at the start as a folder; others' folders stay as they are written.
Text Evaluator::tilde(const Text& text) {
  if (text.size() > 1 && byte_of(text[1]) != '/') return text;
  Text home = value_of("HOME");
  for (char32_t& unit : home) unit |= kQuoted;
  return home + text.substr(1);
}

void Evaluator::add_text(std::vector<Field>& fields, const Text& text, bool quoted, bool split) {
  Field& field = fields.back();
  budget_.text(field.text.size() + text.size());
  const char32_t flags = quoted ? kQuoted : split ? kExpanded : 0;
  for (const char32_t unit : text) field.text += is_quoted(unit) ? unit : unit | flags;
}

void Evaluator::add_piece(const Piece& piece, std::vector<Field>& fields, bool quoted, bool split) {
  budget_.spend(1);
  switch (piece.kind) {
    case Piece::Kind::plain:
      return add_text(fields, text_of(piece.text), quoted, split);
    case Piece::Kind::quoted:
      fields.back().kept = true;
      return add_text(fields, text_of(piece.text), true, false);
    case Piece::Kind::double_quoted: {
      if (piece.inside.size() == 1 && is_list(piece.inside[0])) return add_piece(piece.inside[0], fields, true, false);
      fields.back().kept = true;
      return add_pieces(piece.inside, fields, true, false);
    }
    case Piece::Kind::parameter:
      return add_parameter(*piece.parameter, fields, quoted, split);
    case Piece::Kind::command:
      return add_text(fields, substitution(*piece.script, piece.text), quoted, true);
    case Piece::Kind::arithmetic:
      return add_text(fields, arithmetic_text(piece.inside), quoted, true);
    case Piece::Kind::process: {
      const Text path = unknown_text(Unknown::Kind::outside, piece.text);
      const Text output = substitution(*piece.script, piece.text);
      if (piece.text.starts_with('<')) files_[path] = std::make_shared<Text>(output.empty() ? output : output + text_of("\n"));
      return add_text(fields, path, true, false);
    }
  }
}

void Evaluator::add_list(const Texts& list, char all, std::vector<Field>& fields, bool quoted, bool split) {
  if (all == '*' && quoted) {
    const Text between = separators();
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0 && !between.empty()) add_text(fields, between.substr(0, 1), true, split);
      add_text(fields, list[i], true, split);
    }
    fields.back().kept = true;
    return;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) fields.emplace_back();
    if (quoted) fields.back().kept = true;
    add_text(fields, list[i], quoted, true);
    budget_.spend(1);
    if (fields.size() > kMostFields) throw TooMuch("a word of more than 200000 words");
  }
}

Text Evaluator::separators() {
  const std::optional<Text> given = value_if_set("IFS");
  return given ? *given : text_of(" \t\n");
}

/// 3.5.7: what came from expansions outside of quotes is split at the characters of IFS.
void Evaluator::split(const Field& field, std::vector<Field>& out) {
  if (std::none_of(field.text.begin(), field.text.end(), [](char32_t u) { return is_expanded(u) && !is_quoted(u); })) {
    if (!field.text.empty() || field.kept) out.push_back(field);
    return;
  }
  const Text ifs = separators();
  const auto separates = [&](char32_t unit) {
    return is_expanded(unit) && !is_quoted(unit) && !is_unknown(unit) && ifs.find(unit & 0xFFU) != Text::npos;
  };
  const auto blank = [&](char32_t unit) {
    const char c = byte_of(unit);
    return separates(unit) && (c == ' ' || c == '\t' || c == '\n');
  };
  const Text& text = field.text;
  const std::size_t before = out.size();
  Field part;
  const auto emit = [&] {
    part.kept = part.text.empty();
    out.push_back(std::move(part));
    part = {};
    if (out.size() > kMostFields) throw TooMuch("a command of more than 200000 words");
  };
  std::size_t i = 0;
  const auto skip_blanks = [&] {
    while (i < text.size() && blank(text[i])) ++i;
  };
  for (skip_blanks(); i < text.size();) {
    if (!separates(text[i])) {
      part.text += text[i++];
      continue;
    }
    skip_blanks();
    const bool hard = i < text.size() && separates(text[i]);  // no blank: then empty words count
    if (hard) {
      ++i;
      skip_blanks();
    }
    if (hard || !part.text.empty()) emit();
  }
  if (!part.text.empty()) emit();
  if (out.size() == before && field.kept) out.push_back({{}, true});
}

Text Evaluator::substitution(const Script& script, const std::string& written) {
  const auto sink = std::make_shared<Text>();
  const int line = line_;
  Status status;
  subshell([&] {
    streams_.out[1] = sink;
    if (script.items.size() == 1 && script.items[0].pipelines.size() == 1 && script.items[0].pipelines[0].commands.size() == 1) {
      const Command& only = script.items[0].pipelines[0].commands[0];
      const bool reads_file = only.kind == Command::Kind::simple && only.arguments.empty() && only.assignments.empty() &&
                              only.redirections.size() == 1 && only.redirections[0].op == "<";
      if (reads_file) {  // $(< file)
        redirect(only.redirections);
        write(1, rest_of_input());
        return;
      }
    }
    status = run(script);
    if (flow_ == Flow::ended) status = last_;
  });
  line_ = line;
  last_ = status;
  substituted_ = status;
  Text out = *sink;
  while (!out.empty() && byte_of(out.back()) == '\n' && !is_unknown(out.back())) out.pop_back();
  // Its parts are unknown as a whole: name it as the script writes it.
  if (out.size() == 1 && is_unknown(out[0]) && unknowns_[index_of(out[0])].kind == Unknown::Kind::outside)
    return unknown_text(Unknown::Kind::outside, written);
  return out;
}

Text Evaluator::arithmetic_text(const std::vector<Piece>& pieces) {
  std::vector<Field> fields{{}};
  add_pieces(pieces, fields, true, false);
  try {
    return text_of(fmt::format("{}", calculated(plain(fields.back().text))));
  } catch (const NeedsUnknown& e) {
    return Text(1, e.unit);
  }
}

std::int64_t Evaluator::calculated(const Text& expression, bool decides) {
  Names names;
  names.get = [&](const std::string& name, const std::string& subscript) {
    std::optional<Text> value = subscript.empty() ? value_if_set(name) : element_if_set(name, subscript);
    if (!value) value = unset_text(name);
    return decides ? as_bash(*value) : *value;
  };
  names.set = [&](const std::string& name, const std::string& subscript, std::int64_t value) {
    const Text text = text_of(fmt::format("{}", value));
    if (subscript.empty())
      set(name, text);
    else
      set_element(name, subscript, text, false);
  };
  names.is_unset = [&](char32_t unit) { return is_unset(unit); };
  if (++depth_ > 200) throw TooMuch("more than 200 expansions in each other");
  const std::int64_t out = calculate(expression, names, budget_);
  --depth_;
  return out;
}

}  // namespace oomplan::launch
