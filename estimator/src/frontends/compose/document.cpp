#include "frontends/compose/document.hpp"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "frontends/compose/grammar.hpp"
#include "frontends/compose/scalar.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;

class Converter {
 public:
  Converter(std::vector<Problem>& problems, Origin origin) : problems_(problems), origin_(std::move(origin)) {}

  Node value(const yaml::Node& from) {
    switch (from.kind) {
      case yaml::Node::Kind::map:
        return map(from);
      case yaml::Node::Kind::list:
        return list(from);
      case yaml::Node::Kind::null:
      case yaml::Node::Kind::scalar:
        break;
    }
    return scalar(from);
  }

 private:
  Origin origin(const yaml::Node& from) const {
    Origin out = origin_;
    if (out.kind == Origin::Kind::file) {
      out.place.line = from.line;
      out.place.column = from.column;
    }
    return out;
  }
  void problem(const yaml::Node& at, std::string found, std::string expected, std::string why = {}) {
    Place place = origin(at).place;
    place.path = path_;
    problems_.push_back({std::move(place), std::move(found), std::move(expected), {}, std::move(why)});
  }
  void refuse_tag(const yaml::Node& from, std::string_view known) {
    if (from.tag.empty() || from.tag == known) return;
    problem(from, fmt::format("the tag {}", from.tag), "a plain value, list or map",
            "OmegaConf's loader constructs nothing else");
  }

  Node scalar(const yaml::Node& from) {
    if (!from.tag.empty()) {
      auto tagged = tagged_scalar(from.tag, from.text);
      if (!tagged) refuse_tag(from, {});
      return finished(from, tagged.value_or(Node{}));
    }
    if (from.kind == yaml::Node::Kind::null) return finished(from, {});
    return finished(from, from.quoted ? text_scalar(from.text) : plain_scalar(from.text));
  }
  Node finished(const yaml::Node& from, Node out) {
    out.origin = origin(from);
    if (out.kind == Kind::broken) problem(from, yaml::describe(from), "a value", out.text);
    if (out.kind != Kind::text) return out;
    const std::size_t before = problems_.size();
    out = checked_text(std::move(out), problems_);
    for (std::size_t i = before; i < problems_.size(); ++i) problems_[i].place.path = path_;
    return out;
  }
  Node list(const yaml::Node& from) {
    refuse_tag(from, "tag:yaml.org,2002:seq");
    Node out;
    out.kind = Kind::list;
    out.origin = origin(from);
    for (const auto& item : from.items) out.items.push_back(value(item));
    return out;
  }

  static void put(Node& map, Entry entry) {
    const auto same = [&](const Entry& e) { return e.key == entry.key && e.key_kind == entry.key_kind; };
    const auto it = std::find_if(map.entries.begin(), map.entries.end(), same);
    if (it == map.entries.end()) {
      map.entries.push_back(std::move(entry));
    } else {
      *it = std::move(entry);
    }
  }
  Entry entry(const yaml::Node& key, const yaml::Node& held) {
    Node name = key.tag.empty() ? (key.quoted ? text_scalar(key.text) : plain_scalar(key.text))
                                : tagged_scalar(key.tag, key.text).value_or(Node{});
    if (name.kind == Kind::missing) name.kind = Kind::text;
    if (name.kind == Kind::null || name.kind == Kind::broken)
      problem(key, yaml::describe(key), "a key that is a text, a number or a boolean");
    std::string text = python_text(name);
    const std::size_t above = path_.size();
    path_ += (path_.empty() ? "" : ".") + text;
    Node inside = value(held);
    path_.resize(above);
    return {std::move(text), name.kind, origin(key).place, std::move(inside)};
  }
  /// Merged keys come first, and what is written out wins (PyYAML's flatten_mapping).
  Node map(const yaml::Node& from) {
    refuse_tag(from, "tag:yaml.org,2002:map");
    Node out;
    out.kind = Kind::map;
    out.origin = origin(from);
    for (const auto& [key, held] : from.entries)
      if (is_merge(key)) merge(out, held);
    std::vector<Entry> own;
    own.reserve(from.entries.size());
    for (const auto& [key, held] : from.entries)
      if (!is_merge(key)) own.push_back(entry(key, held));
    if (out.entries.empty()) {
      out.entries = std::move(own);
    } else {
      for (auto& each : own) put(out, std::move(each));
    }
    return out;
  }
  static bool is_merge(const yaml::Node& key) { return key.text == "<<" && !key.quoted && key.tag.empty(); }
  void merge(Node& into, const yaml::Node& held) {
    std::vector<const yaml::Node*> maps{&held};
    if (held.kind == yaml::Node::Kind::list) {
      maps.clear();
      for (const auto& item : held.items) maps.insert(maps.begin(), &item);  // the first of a list wins
    }
    for (const auto* each : maps) {
      if (each->kind != yaml::Node::Kind::map) {
        problem(*each, yaml::describe(*each), "a map, or a list of maps, behind the merge key <<");
        continue;
      }
      for (auto& merged : map(*each).entries) put(into, std::move(merged));
    }
  }

  std::vector<Problem>& problems_;
  std::string path_;  ///< of the value that is read
  Origin origin_;
};

/// "# @package NAME" on the first lines (hydra/plugins/config_source.py, Hydra 1.3.2: 512 characters, up to the first other
/// line).
std::optional<std::string> package_header(const std::string& text, const std::string& file) {
  constexpr std::size_t kHeader = 512;
  std::istringstream lines(text.substr(0, kHeader));
  std::optional<std::string> out;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    std::vector<std::string> parts;
    for (std::string word; words >> word;) parts.push_back(word);
    if (parts.empty()) continue;
    std::string head = parts[0];
    const bool hash_alone = head == "#" && parts.size() > 1 && parts[1].starts_with('@');
    if (!hash_alone && !head.starts_with("#@")) break;
    head = hash_alone ? parts[1] : head.substr(1);
    parts.erase(parts.begin(), parts.begin() + (hash_alone ? 2 : 1));
    if (parts.size() != 1)
      throw InputError({{file, number, 1, {}}, fmt::format("'{}'", line), "# @package NAME", {}, "Hydra reads it as a header"});
    if (head == "@package") out = parts[0];
  }
  return out;
}

}  // namespace

Node checked_text(Node text, std::vector<Problem>& problems) {
  if (text.kind != Kind::text || !has_interpolation(text.text)) return text;
  const auto read = read_text(text.text);
  if (const auto* fault = std::get_if<GrammarFault>(&read)) {
    problems.push_back({text.origin.place,
                        describe(text),
                        "an interpolation: ${key}, ${.key} or ${resolver:...}",
                        {},
                        fmt::format("{}, at position {}", fault->why, fault->at + 1)});
    text.kind = Kind::broken;
    text.text = fault->why;
    return text;
  }
  text.kind = Kind::interpolation;
  return text;
}

Document read_document(const std::string& text, const std::string& file) {
  Document out;
  const yaml::Node root = yaml::parse(text, file, {true, "a configuration"});
  out.package = package_header(text, file);
  Converter converter(out.problems, {Origin::Kind::file, {file, 0, 0, {}}, {}, {}});
  const bool empty = root.kind == yaml::Node::Kind::null;
  if (!empty && root.kind != yaml::Node::Kind::map)
    throw InputError({{file, root.line, root.column, {}}, yaml::describe(root), "a map of keys and values", {}, {}});
  out.root = converter.value(root);
  out.root.kind = Kind::map;
  return out;
}

Node read_value(const std::string& text, const std::string& key, std::vector<Problem>& problems) {
  const std::string typed = fmt::format("{}={}", key, text);
  const Origin origin{Origin::Kind::override_, {"command line", 0, 0, key}, typed, {}};
  try {
    return Converter(problems, origin).value(yaml::parse(text, "command line", {true, "a value"}));
  } catch (const InputError& e) {
    for (auto problem : e.problems) {
      problem.place = origin.place;
      problems.push_back(std::move(problem));
    }
  }
  Node out;
  out.kind = Kind::broken;
  out.origin = origin;
  return out;
}

}  // namespace oomplan::compose
