#include "frontends/compose/default.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/compose/grammar.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;
constexpr std::string_view kGlobal = "_global_", kGroup = "_group_";

std::string dotted(std::string path) {
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}
std::string above(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}
std::string without_slash(const std::string& path) { return path.starts_with('/') ? path.substr(1) : path; }

[[noreturn]] void refuse(const Place& place, std::string found, std::string expected, std::string why = {}) {
  throw InputError({place, std::move(found), std::move(expected), {}, std::move(why)});
}

bool is_word(const Node& node) {
  return node.kind == Kind::text || node.kind == Kind::interpolation || node.kind == Kind::missing;
}

/// "optional override group@package:rename": words, then the group, then the package.
void read_group(const std::string& written, Default& out) {
  const auto at = written.find('@');
  std::string group = written.substr(0, at);
  if (at != std::string::npos) {
    std::string package = written.substr(at + 1);
    out.package = package.substr(0, package.find(':'));
    if (out.package == "_here_") out.package = "";
  }
  if (out.group) {
    std::size_t begin = 0;
    for (std::size_t blank = group.find(' '); blank != std::string::npos; blank = group.find(' ', begin)) {
      const std::string word = group.substr(begin, blank - begin);
      if (word == "optional")
        out.optional = true;
      else if (word == "override")
        out.override_ = true;
      else
        break;
      begin = blank + 1;
    }
    group = group.substr(group.rfind(' ') + 1);
  }
  out.path = std::move(group);
}

void read_options(const Node& value, Default& out, const Place& place) {
  if (value.kind == Kind::null) return;
  if (is_word(value)) {
    out.option = value.kind == Kind::missing ? "???" : value.text;
    return;
  }
  if (value.kind != Kind::list) refuse(place, describe(value), "an option: a name, a list of names or null");
  out.several = true;
  for (const auto& item : value.items) {
    if (!is_word(item)) refuse(item.origin.place, describe(item), "the name of an option");
    if (item.kind == Kind::interpolation)
      refuse(item.origin.place, describe(item), "the name of an option", "Hydra resolves no interpolation in a list of options");
    out.options.push_back(item.text);
  }
}

}  // namespace

std::vector<Default> read_defaults(const Node& list, const std::string& config) {
  if (list.kind != Kind::list)
    refuse(list.origin.place, describe(list), "a list", fmt::format("the defaults of '{}' must be a list", config));
  std::vector<Default> out;
  for (const auto& item : list.items) {
    Default made;
    made.place = item.origin.place;
    if (item.kind == Kind::map) {
      if (item.entries.size() != 1)
        refuse(made.place, fmt::format("{} keys", item.entries.size()), "one group and its option",
               fmt::format("in the defaults list of '{}'", config));
      made.group = true;
      read_group(item.entries[0].key, made);
      if (made.path.empty()) refuse(made.place, "no name", "a group and its option");
      read_options(item.entries[0].value, made, made.place);
    } else if (is_word(item)) {
      read_group(item.text, made);
      if (made.is_self() && made.package) refuse(made.place, "_self_ with a package", "_self_");
    } else {
      refuse(made.place, describe(item), "the name of a config, or a group and its option");
    }
    out.push_back(std::move(made));
  }
  return out;
}

void Default::set_parent(const std::string& folder, const std::string& package_above) {
  base = folder;
  parent_package = package_above;
  if (!package || package->find(kGroup) == std::string::npos) return;
  std::string resolved = *package;
  const std::string own = dotted(group_path());
  for (auto at = resolved.find(kGroup); at != std::string::npos; at = resolved.find(kGroup, at + own.size()))
    resolved.replace(at, kGroup.size(), own);
  package = fmt::format("{}.{}", kGlobal, resolved);
}

void Default::set_header(const std::optional<std::string>& name) {
  if (!name) return;
  const bool absolute = *name == kGlobal || name->starts_with(std::string(kGlobal) + ".");
  header = absolute ? *name : fmt::format("{}.{}", kGlobal, *name);
}

std::string Default::relative_group() const { return group ? without_slash(path) : above(without_slash(path)); }

std::string Default::group_path() const {
  std::string own = relative_group();
  if (path.starts_with('/') || base.empty()) return own;
  return own.empty() ? base : base + "/" + own;
}

std::optional<std::string> Default::name() const {
  if (group) return option;
  return path.substr(path.rfind('/') + 1);
}

std::string Default::config_path() const {
  if (group) return group_path() + "/" + option.value_or("None");
  const std::string own = without_slash(path);
  return path.starts_with('/') || base.empty() ? own : base + "/" + own;
}

std::string Default::final_package(bool with_header) const {
  std::string own = package ? *package : with_header && header ? *header : dotted(relative_group());
  std::string out = parent_package.empty() ? own : own.empty() ? parent_package : parent_package + "." + own;
  const auto global = out.rfind(kGlobal);
  if (global == std::string::npos) return out;
  return out.substr(std::min(global + kGlobal.size() + 1, out.size()));
}

std::string Default::override_key() const {
  std::string own = group_path();
  const std::string to = final_package(false);
  if (dotted(own) == to) return own;
  return own + "@" + (to.empty() ? std::string(kGlobal) : to);
}

bool Default::is_interpolation() const {
  if (several) return false;
  return group ? option && has_interpolation(*option) : has_interpolation(config_path());
}

}  // namespace oomplan::compose
