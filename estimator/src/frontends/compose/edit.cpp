// As omegaconf/basecontainer.py _map_merge and omegaconf/omegaconf.py OmegaConf.update (OmegaConf 2.3.0).
#include "frontends/compose/edit.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/compose/lookup.hpp"
#include "units/enums.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;

std::string below(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

Node empty_map(const Origin& origin) {
  Node out;
  out.kind = Kind::map;
  out.origin = origin;
  return out;
}

std::string_view type_name(const Node& node) { return node.kind == Kind::list ? "a list" : "a map"; }

/// Paths of the tree that end in `key`.
void paths_ending(const Node& node, const std::string& path, const std::string& key, std::vector<std::string>& out) {
  constexpr std::size_t kMost = 200;
  for (const auto& entry : node.entries) {
    if (out.size() >= kMost) return;
    if (entry.key == key) out.push_back(below(path, key));
    paths_ending(entry.value, below(path, entry.key), key, out);
  }
}

std::size_t in_common(const std::string& a, const std::string& b) {
  const auto x = split_key(a), y = split_key(b);
  std::size_t n = 0;
  while (n < x.size() && n < y.size() && x[n] == y[n]) ++n;
  return n;
}

/// Another place of the tree that has what was typed: the one with the same end, then the one that begins alike. "": none, or
/// several that are as good.
std::string meant_elsewhere(const Node& root, const std::string& typed, const std::string& rest) {
  std::string dotted = typed;
  std::replace(dotted.begin(), dotted.end(), '/', '.');
  if (dotted != typed && root.at(dotted) != nullptr) return dotted;
  std::vector<std::string> paths;
  paths_ending(root, {}, split_key(typed).back(), paths);
  if (paths.size() == 1) return paths[0];
  const auto ends_alike = [&](const std::string& p) { return p == rest || p.ends_with("." + rest); };
  const bool several = rest.find('.') != std::string::npos;  // a whole end is as good as a beginning
  if (std::none_of(paths.begin(), paths.end(), [&](const std::string& p) { return in_common(p, typed) > 0; })) {
    if (!several) return {};
    std::erase_if(paths, [&](const std::string& p) { return !ends_alike(p); });
  }
  const auto rank = [&](const std::string& p) {
    return std::pair(in_common(p, typed), -std::ssize(split_key(p)));  // begins alike, and is short
  };
  std::stable_sort(paths.begin(), paths.end(), [&](const std::string& a, const std::string& b) { return rank(a) > rank(b); });
  return paths.empty() || (paths.size() > 1 && rank(paths[0]) == rank(paths[1])) ? "" : paths[0];
}

}  // namespace

void Editor::tell(const Node& at, std::string path, std::string found, std::string expected, std::string why) {
  Place place = at.origin.place;
  place.path = std::move(path);
  problems_.push_back({std::move(place), std::move(found), std::move(expected), {}, std::move(why)});
}

void Editor::tell_unknown(const Node& where, const Node& at, const std::string& path, const std::string& key,
                          const std::string& rest) {
  std::vector<std::string> keys;
  for (const auto& entry : where.entries) keys.push_back(entry.key);
  const std::string typed = rest.empty() ? path : below(path, rest);
  std::string near = nearest(key, keys);
  std::string why = fmt::format("Hydra's struct mode sets only keys that exist; +{} adds it", typed);
  if (where.kind != Node::Kind::map && where.kind != Node::Kind::null) why = "what stands above it is a value, which has no keys";
  if (!near.empty()) {
    near = below(path.size() > key.size() ? path.substr(0, path.size() - key.size() - 1) : "", near);
    if (!rest.empty() && root_.at(below(near, rest)) != nullptr) near = below(near, rest);
  } else {
    near = meant_elsewhere(root_, typed, rest.empty() ? key : below(key, rest));
  }
  Place place = at.origin.place;
  place.path = typed;
  problems_.push_back({std::move(place), "an unknown key", keys.empty() ? "" : "a key that is in the configuration",
                       std::move(near), std::move(why)});
}

void Editor::merge(const Node& from) { merge_map(root_, from, {}, !struct_); }

void Editor::merge_map(Node& into, const Node& from, const std::string& path, bool open) {
  if (!from.entries.empty()) into.origin = from.origin;
  for (const auto& entry : from.entries) merge_entry(into, entry, path, open);
}

void Editor::merge_entry(Node& into, const Entry& entry, const std::string& path, bool open) {
  const std::string here = below(path, entry.key);
  const auto same = [&](const Entry& e) { return e.key == entry.key && e.key_kind == entry.key_kind; };
  const auto it = std::find_if(into.entries.begin(), into.entries.end(), same);
  const Node& from = entry.value;
  if (it == into.entries.end()) {
    if (!open) return tell_unknown(into, from, here, entry.key);
    into.entries.push_back(entry);
    return;
  }
  const bool missing = from.kind == Kind::missing;
  if (it->value.kind == Kind::interpolation && (missing || from.is_container())) copy_target(it->value);
  if (missing) return;
  Node& to = it->value;
  if (!to.is_container() || !from.is_container()) {
    to = from;
    it->place = entry.place;
  } else if (to.kind != from.kind) {
    tell(from, here, std::string(type_name(from)), std::string(type_name(to)),
         "OmegaConf merges maps with maps, lists with lists");
  } else if (to.kind == Kind::list) {
    to = from;
  } else {
    merge_map(to, from, here, open);
  }
}

/// An interpolation that leads to a map or a list becomes a copy of it, as it is now.
void Editor::copy_target(Node& interpolation) {
  constexpr int kMostTargets = 1000;
  if (++targets_ > kMostTargets)
    throw InputError({interpolation.origin.place,
                      fmt::format("more than {} merges over interpolations", kMostTargets),
                      "a configuration",
                      {},
                      {}});
  Node copy;
  {
    Lookup lookup(root_, environment_);
    const Found found = lookup.follow(interpolation);
    if (found.kind != Found::Kind::value || !found.node->is_container()) return;
    if (size_of(root_) + size_of(*found.node) > kMostNodes)
      throw InputError({interpolation.origin.place, fmt::format("more than {} values", kMostNodes), "a configuration", {}, {}});
    // a copy in a copy in a copy: each stays within what a file may have, or trees grow that nothing can walk through
    if (depth_of(*found.node) > kDeepest)
      throw InputError({interpolation.origin.place, fmt::format("more than {} levels", kDeepest), "a configuration", {}, {}});
    copy = *found.node;
  }
  interpolation = std::move(copy);
}

/// The child of `from` on the way to a key; what is no container becomes an empty map where keys may be added (OmegaConf makes it
/// one in struct mode too, and fails on the key below). nullptr: refused, and told.
Node* Editor::step(Node& from, const std::string& key, const std::string& path, const std::string& rest, const Node& value,
                   bool open) {
  if (from.kind == Kind::list) {
    const auto i = index_of(key);
    if (i < 0 || i >= std::ssize(from.items)) {
      tell(value, path, fmt::format("'{}'", key), fmt::format("an index below {}", from.items.size()), "this is a list");
      return nullptr;
    }
    Node& item = from.items[static_cast<std::size_t>(i)];
    if (!item.is_container() && open) item = empty_map(value.origin);
    return &item;
  }
  if (Node* child = from.find(key)) {
    if (!child->is_container() && open) *child = empty_map(value.origin);
    return child;
  }
  if (!open) {
    tell_unknown(from, value, path, key, rest);
    return nullptr;
  }
  from.entries.push_back({key, Kind::text, value.origin.place, empty_map(value.origin)});
  return &from.entries.back().value;
}

bool Editor::update(const std::string& key, Node value, Mode mode, bool merged) {
  const bool open = mode == Mode::add || !struct_;
  const auto parts = split_key(key);
  if (std::ssize(parts) > kDeepest) {
    tell(value, key, fmt::format("{} levels", parts.size()), fmt::format("at most {}", kDeepest), {});
    return false;
  }
  Node* here = &root_;
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    const std::string path = joined(parts, i + 1);
    here = step(*here, parts[i], path, key.size() > path.size() ? key.substr(path.size() + 1) : "", value, open);
    if (here == nullptr) return false;
  }
  const std::string& last = parts.back();
  Node* target = here->kind == Kind::map ? here->find(last) : nullptr;
  if (here->kind == Kind::list) {
    const auto i = index_of(last);
    if (i < 0 || i >= std::ssize(here->items)) {
      tell(value, key, fmt::format("'{}'", last), fmt::format("an index below {}", here->items.size()), "this is a list");
      return false;
    }
    target = &here->items[static_cast<std::size_t>(i)];
  }
  if (target == nullptr) {
    if (!open || !here->is_container()) {
      tell_unknown(*here, value, key, last);
      return false;
    }
    const Place place = value.origin.place;
    here->entries.push_back({last, Kind::text, place, std::move(value)});
    return true;
  }
  if (!merged || !value.is_container() || !target->is_container()) {
    *target = std::move(value);
    return true;
  }
  if (target->kind != value.kind) {
    tell(value, key, std::string(type_name(value)), std::string(type_name(*target)), "Hydra merges it into what is there");
    return false;
  }
  const std::size_t problems = problems_.size();
  if (value.kind == Kind::list) {
    *target = std::move(value);
  } else {
    merge_map(*target, value, key, open);
  }
  return problems == problems_.size();
}

/// As in OmegaConf, interpolations on the way are followed: the key goes where it is.
bool Editor::remove(const std::string& key) {
  const auto parts = split_key(key);
  std::string above = joined(parts, parts.size() - 1);
  if (!above.empty()) {
    Lookup lookup(root_, environment_);
    const Found found = lookup.select(root_, above, false);
    if (found.kind != Found::Kind::value || found.node->kind != Kind::map) return false;
    above = lookup.path_of(*found.node);
    if (above.empty()) return true;  // made by a resolver: the tree does not hold it
  }
  Node* map = above.empty() ? &root_ : root_.at(above);
  if (map == nullptr || map->kind != Kind::map) return false;
  return std::erase_if(map->entries, [&](const Entry& e) { return e.key == parts.back() && e.key_kind == Kind::text; }) > 0;
}

}  // namespace oomplan::compose
