#include "frontends/native.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/yaml.hpp"
#include "job/knobs.hpp"
#include "job/names.hpp"
#include "job/role_names.hpp"
#include "job/unsupported.hpp"

namespace oomplan {
namespace {

using yaml::Node;

constexpr std::string_view kVersionKey = "oomplan";
constexpr std::string_view kVersion = "1";

/// Keys of a job, of roles, and the first parts of dotted ones ("sync", "precision").
bool is_group(std::string_view key) {
  const std::string prefix = std::string(key) + ".";
  return std::any_of(knobs().begin(), knobs().end(), [&](const Knob& k) { return k.key.starts_with(prefix); });
}
std::vector<std::string> keys_in_group(std::string_view group) {
  std::vector<std::string> out;
  for (const auto& k : knobs())
    if (k.key.starts_with(std::string(group) + ".")) out.emplace_back(k.key.substr(group.size() + 1));
  return out;
}
bool takes_a_list(std::string_view key) {
  return std::any_of(knobs().begin(), knobs().end(), [&](const Knob& k) { return k.key == key && k.type == KnobType::items; });
}

class Reader {
 public:
  explicit Reader(const Source& source) : source_(source) {}

  NativeText run() {
    const Node root = yaml::parse(source_.text, source_.name);
    if (root.kind != Node::Kind::map)
      throw InputError({place(root, {}), yaml::describe(root), "a job file: keys and values, 'oomplan: 1' first", {}, {}});
    check_version(root);
    for (const auto& [key, value] : root.entries) read_entry(key, value);
    for (const auto& text : source_.overrides) read_override(text);
    return std::move(out_);
  }

 private:
  Place place(const Node& node, std::string path) const { return {source_.name, node.line, node.column, std::move(path)}; }
  void problem(const Node& at, std::string path, std::string found, std::string expected, std::string why = {},
               std::string near = {}) {
    out_.problems.push_back({place(at, std::move(path)), std::move(found), std::move(expected), std::move(near), std::move(why)});
  }

  void check_version(const Node& root) {
    const Node* version = root.find(kVersionKey);
    if (version == nullptr)
      problem(root, std::string(kVersionKey), "nothing", "'oomplan: 1' as the first line",
              "it says which version of the format the file has");
    else if (version->text != kVersion)
      problem(*version, std::string(kVersionKey), yaml::describe(*version), "1", "this is the only version of the format");
  }

  void read_entry(const Node& key, const Node& value) {
    if (key.text == kVersionKey) return;
    const auto kind = kind_of_role_named(key.text);
    if (!kind) return read_value(key, value, key.text, key.text);
    if (value.kind != Node::Kind::map) return problem(value, key.text, yaml::describe(value), "the settings of the role: a map");
    out_.roles.push_back({*kind, place(key, key.text), key.text});
    for (const auto& [inner, setting] : value.entries)
      read_value(inner, setting, fmt::format("{}.{}", key.text, inner.text), inner.text);
  }

  /// `path` is the dotted key, `knob` the part of it behind the role.
  void read_value(const Node& key, const Node& value, const std::string& path, const std::string& knob) {
    switch (value.kind) {
      case Node::Kind::map:
        return read_group(key, value, path, knob);
      case Node::Kind::list:
        return read_list(key, value, path, knob);
      case Node::Kind::null:
        if (value.text.empty()) return problem(key, path, "nothing", "a value, or null for the default");
        return;  // null: as if it were not written
      case Node::Kind::scalar:
        break;
    }
    if (is_group(knob) && value.kind == Node::Kind::scalar)
      return problem(value, path, yaml::describe(value), fmt::format("a map with {}", list_of(keys_in_group(knob))));
    const bool unknown = !takes(knob);
    add(path, value.text, {Origin::Kind::file, place(unknown ? key : value, path), {}, {}});
  }
  static bool takes(std::string_view knob) {
    return std::any_of(knobs().begin(), knobs().end(), [&](const Knob& k) { return k.key == knob; });
  }
  void read_group(const Node& key, const Node& value, const std::string& path, const std::string& knob) {
    if (auto why = unsupported_key(knob); !why.empty()) return problem(key, path, "an unknown key", {}, std::move(why));
    if (!is_group(knob)) {
      if (takes(knob)) return problem(value, path, "a map", "one value");
      std::vector<std::string> valid = spellings<RoleKind>();
      const bool outer = path == knob;
      return problem(key, path, "an unknown key", outer ? "a role: " + list_of(valid) : "a key of the role", {},
                     outer ? nearest(knob, valid) : "");
    }
    if (knob.find('.') != std::string::npos) return problem(value, path, "a map", "one value");
    for (const auto& [inner, setting] : value.entries)
      read_value(inner, setting, fmt::format("{}.{}", path, inner.text), fmt::format("{}.{}", knob, inner.text));
  }
  void read_list(const Node& key, const Node& value, const std::string& path, const std::string& knob) {
    if (takes(knob) && !takes_a_list(knob)) return problem(value, path, "a list", "one value");
    std::vector<std::string> items;
    for (const auto& item : value.items) {
      if (item.kind != Node::Kind::scalar) return problem(item, path, yaml::describe(item), "a word in a list");
      items.push_back(item.text);
    }
    add(path, fmt::format("[{}]", fmt::join(items, ", ")), {Origin::Kind::file, place(takes(knob) ? value : key, path), {}, {}});
  }

  /// "actor.tokens_per_micro_batch=16k", as behind a launch command.
  void read_override(const std::string& text) {
    const auto equals = text.find('=');
    Place at{"command line", 0, 0, {}};
    if (equals == std::string::npos || equals == 0) {
      out_.problems.push_back({at, fmt::format("'{}'", text), "key=value, such as actor.tokens_per_micro_batch=16k", {}, {}});
      return;
    }
    at.path = text.substr(0, equals);
    const std::string value = text.substr(equals + 1);
    if (value.empty()) {
      out_.problems.push_back({at, "nothing behind '='", "a value", {}, {}});
      return;
    }
    if (value == "null" || value == "~") {  // back to the default
      std::erase_if(out_.settings, [&](const Setting& s) { return s.key == at.path; });
      return;
    }
    add(at.path, value, {Origin::Kind::override_, at, {}, {}});
  }

  void add(const std::string& key, const std::string& text, Origin origin) {
    out_.settings.push_back({key, text, std::move(origin)});
  }

  const Source& source_;
  NativeText out_;
};

}  // namespace

NativeText read_native(const Source& source) { return Reader(source).run(); }

}  // namespace oomplan
