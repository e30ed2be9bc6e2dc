#include "frontends/yaml_text.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/yaml.hpp"
#include "units/json_text.hpp"

namespace oomplan::yaml {
namespace {

/// Plain in every place: no sign that YAML reads as more than a letter, no word that it reads as a number or a flag.
bool plain(std::string_view text, bool flow) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  // "16k" and "1GiB" are no numbers of YAML's
  if (text.empty()) return false;
  const bool size = text.find_first_of("kKMG") != std::string_view::npos && text[0] >= '0' && text[0] <= '9';
  if ((!letter(text[0]) && text[0] != '/' && !size) || text.back() == ':') return false;
  for (const char c : text)
    if (!letter(c) && !(c >= '0' && c <= '9') && std::string_view("_./+-").find(c) == std::string_view::npos &&
        (flow || c != ':'))
      return false;
  for (const std::string_view word : {"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
    if (std::equal(word.begin(), word.end(), text.begin(), text.end(),
                   [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b + 32) : b); }))
      return false;
  return true;
}

/// One edit of one text.
class Editor {
 public:
  Editor(const std::string& text, const FactValue& value) : text_(text), value_(value) {
    for (std::size_t at = 0; at != std::string::npos; at = text.find('\n', at), at += at != std::string::npos ? 1 : 0)
      lines_.push_back(at);
    newline_ = text.find("\r\n") != std::string::npos ? "\r\n" : "\n";
  }

  TextChange run(const std::vector<std::string>& path) {
    const Node root = parse(text_, {}, {true, "a configuration"});
    rest_ = path;
    Spot spot{&root, nullptr, false};
    while (!rest_.empty()) {
      const Spot next = below(spot);
      if (next.node == nullptr) break;
      spot = next;
      rest_.erase(rest_.begin());
      if (!rest_.empty() && aliased(spot)) return fail("the value stands behind an alias");
    }
    if (rest_.empty()) return replace(spot, value_);
    return insert(spot);
  }

 private:
  /// A value on the way; `key` is null for the file itself and for elements of lists.
  struct Spot {
    const Node* node;
    const Node* key;
    bool flow;  ///< inside brackets
  };

  static TextChange fail(std::string why) { return {{}, std::move(why)}; }
  std::size_t offset(const Node& node) const {
    return lines_.at(static_cast<std::size_t>(node.line - 1)) + static_cast<std::size_t>(node.column - 1);
  }
  char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\n'; }
  bool ends(std::size_t i) const { return at(i) == '\n' || at(i) == '\r'; }
  std::size_t skip_blanks(std::size_t i) const {
    while (at(i) == ' ' || at(i) == '\t') ++i;
    return i;
  }
  /// What an alias copied stands before the key.
  static bool aliased(const Spot& spot) {
    return spot.key != nullptr && std::pair(spot.node->line, spot.node->column) < std::pair(spot.key->line, spot.key->column);
  }
  bool opens(const Node& node) const { return at(offset(node)) == '{' || at(offset(node)) == '['; }

  Spot below(const Spot& spot) const {
    const bool flow = spot.flow || (spot.node->line > 0 && opens(*spot.node));
    if (spot.node->kind == Node::Kind::list) {
      const std::int64_t i = compose::index_of(rest_.front());
      if (i < 0 || i >= static_cast<std::int64_t>(spot.node->items.size())) return {nullptr, nullptr, flow};
      return {&spot.node->items[static_cast<std::size_t>(i)], nullptr, flow};
    }
    for (const auto& entry : spot.node->entries)
      if (entry.first.text == rest_.front()) return {&entry.second, &entry.first, flow};
    return {nullptr, nullptr, flow};
  }

  /// Behind the quotes or the letters that begin at `i`; nothing when they go on in another line.
  std::optional<std::size_t> token_end(std::size_t i, bool flow) const {
    const char first = at(i);
    if (first == '"' || first == '\'') {
      for (std::size_t j = i + 1; !ends(j); ++j) {
        if (at(j) == '\\' && first == '"')
          ++j;
        else if (at(j) == first && at(j + 1) == first && first == '\'')
          ++j;
        else if (at(j) == first)
          return j + 1;
      }
      return std::nullopt;
    }
    if (first == '{' || first == '[') return bracket_end(i);
    if (first == '|' || first == '>') return std::nullopt;
    std::size_t j = i;
    while (!ends(j) && !(at(j) == '#' && (j == i || at(j - 1) == ' ' || at(j - 1) == '\t'))) {
      if (flow && (at(j) == ',' || at(j) == '}' || at(j) == ']')) break;
      ++j;
    }
    while (j > i && (at(j - 1) == ' ' || at(j - 1) == '\t')) --j;
    return j;
  }
  std::optional<std::size_t> bracket_end(std::size_t i) const {
    int open = 0;
    for (std::size_t j = i; !ends(j); ++j) {
      if (at(j) == '"' || at(j) == '\'') {
        const auto end = token_end(j, true);
        if (!end) return std::nullopt;
        j = *end - 1;
      }
      if (at(j) == '{' || at(j) == '[') ++open;
      if (at(j) == '}' || at(j) == ']') --open;
      if (open == 0) return j + 1;
    }
    return std::nullopt;
  }

  /// Where the value begins: behind the key's colon, or in the line where a value alone stands.
  std::optional<std::size_t> value_start(const Spot& spot) const {
    if (spot.key == nullptr) return offset(*spot.node);
    const auto key_end = [&]() -> std::optional<std::size_t> {
      const std::size_t from = offset(*spot.key);
      if (at(from) == '"' || at(from) == '\'') return token_end(from, true);
      return text_.compare(from, spot.key->text.size(), spot.key->text) == 0 ? std::optional(from + spot.key->text.size())
                                                                             : std::nullopt;
    }();
    if (!key_end) return std::nullopt;
    std::size_t i = skip_blanks(*key_end);
    if (at(i) != ':') return std::nullopt;
    i = skip_blanks(i + 1);
    // anchors and tags stay
    while (at(i) == '&' || at(i) == '!') {
      while (!ends(i) && at(i) != ' ') ++i;
      i = skip_blanks(i);
    }
    return i;
  }

  TextChange replace(const Spot& spot, const FactValue& value) const {
    auto start = value_start(spot);
    if (!start) return fail("the key is not written plainly");
    if (ends(*start) || at(*start) == '#') {
      if (spot.node->kind != Node::Kind::null) {
        if (spot.node->kind != Node::Kind::scalar) return fail("the value is written over several lines");
        start = offset(*spot.node);
      } else {
        const bool gap = at(*start - 1) == ' ';
        const bool comment = at(*start) == '#';
        const std::size_t from = comment ? *start - 1 : *start;
        return {text_.substr(0, from) + (gap && !comment ? "" : " ") + written(value, spot.flow) + text_.substr(from), {}};
      }
    }
    const auto end = token_end(*start, spot.flow);
    if (!end) return fail("the value is written over several lines");
    const std::string old = text_.substr(*start, *end - *start);
    if (spot.node->kind == Node::Kind::scalar && !spot.node->quoted && spot.node->tag.empty() && old != spot.node->text &&
        !old.starts_with('*'))
      return fail("the value is written over several lines");
    std::string text = written(value, spot.flow);
    if (value.kind() == FactValue::Kind::text && (old.starts_with('"') || old.starts_with('\''))) {
      const std::string& inner = value.text();
      if (inner.find_first_of("\"'\\\n") == std::string::npos) text = old[0] + inner + old[0];
    }
    return {text_.substr(0, *start) + text + text_.substr(*end), {}};
  }

  static FactValue map_of(const std::string& key, FactValue value) {
    FactValue out = FactValue::map();
    out[key] = std::move(value);
    return out;
  }
  FactValue nested() const {
    FactValue out = value_;
    for (std::size_t i = rest_.size(); i-- > 1;) out = map_of(rest_[i], std::move(out));
    return out;
  }

  TextChange insert(const Spot& spot) const {
    const Node& parent = *spot.node;
    if (parent.kind == Node::Kind::list) return fail("the list has no such element");
    const FactValue entry = map_of(rest_.front(), nested());
    if (parent.kind == Node::Kind::scalar) return fail("an interpolation or a plain value stands above it");
    if (parent.kind == Node::Kind::null) {
      const auto start = value_start(spot);
      if (!start) return fail("the key is not written plainly");
      if (spot.flow || spot.key == nullptr || !(ends(*start) || at(*start) == '#')) return replace(spot, entry);
      return insert_line(static_cast<std::size_t>(spot.key->line), static_cast<std::size_t>(spot.key->column) + 1);
    }
    if (parent.line > 0 && opens(parent)) {
      const std::size_t i = offset(parent) + 1;
      const std::string inner = written(entry, true);
      return {text_.substr(0, i) + inner.substr(1, inner.size() - 2) + (parent.entries.empty() ? "" : ", ") + text_.substr(i),
              {}};
    }
    return insert_into_block(spot);
  }
  TextChange insert_into_block(const Spot& spot) const {
    const auto& entries = spot.node->entries;
    if (entries.empty()) return fail("its parent is written in a way that cannot be edited");
    const Node& first = entries.front().first;
    const auto indent = static_cast<std::size_t>(first.column - 1);
    if (spot.key != nullptr && spot.key->line < first.line) return insert_line(static_cast<std::size_t>(spot.key->line), indent);
    if (spot.key == nullptr && skip_blanks(lines_[static_cast<std::size_t>(first.line - 1)]) == offset(first))
      return insert_line(static_cast<std::size_t>(first.line - 1), indent);
    // an element of a list: its first key stands behind the dash
    if (entries.size() > 1) return insert_line(static_cast<std::size_t>(entries[1].first.line - 1), indent);
    if (entries.front().second.kind == Node::Kind::scalar && entries.front().second.line == first.line)
      return insert_line(static_cast<std::size_t>(first.line), indent);
    return fail("its parent is written in a way that cannot be edited");
  }
  /// Behind line number `line` (0: at the top).
  TextChange insert_line(std::size_t line, std::size_t indent) const {
    std::string added;
    for (std::size_t i = 0; i < rest_.size(); ++i)
      added += std::string(indent + 2 * i, ' ') + rest_[i] + ":" +
               (i + 1 < rest_.size() ? std::string() : " " + written(value_)) + newline_;
    if (line < lines_.size()) return {text_.substr(0, lines_[line]) + added + text_.substr(lines_[line]), {}};
    return {text_ + newline_ + added.substr(0, added.size() - newline_.size()), {}};  // the last line has no end
  }

  const std::string& text_;
  const FactValue& value_;
  std::vector<std::size_t> lines_;  ///< where each begins
  std::string newline_;
  std::vector<std::string> rest_;
};

}  // namespace

std::string written(const FactValue& value, bool flow) {
  using Kind = FactValue::Kind;
  if (value.is_null()) return "null";
  if (value.kind() == Kind::text) {
    if (plain(value.text(), flow)) return value.text();
    return json_text(nlohmann::json(value.text()), -1);
  }
  if (value.kind() != Kind::map && value.kind() != Kind::list) return value.plain();
  std::string out;
  for (std::size_t i = 0; i < value.items().size(); ++i)
    out += (out.empty() ? "" : ", ") + (value.is_map() ? written(value.keys()[i], true) + ": " : "") +
           written(value.items()[i], true);
  return value.is_map() ? "{" + out + "}" : "[" + out + "]";
}

TextChange with_value(const std::string& text, const std::string& path, const FactValue& value) {
  return Editor(text, value).run(compose::split_key(path));
}

}  // namespace oomplan::yaml
