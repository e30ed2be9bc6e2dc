// As omegaconf/base.py (OmegaConf 2.3.0): _resolve_node_interpolation, _select_impl, _dereference_node_impl.
#include "frontends/compose/lookup.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "frontends/compose/evaluation.hpp"
#include "units/enums.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;
constexpr int kMostLinks = 32;  // that lead to each other; OmegaConf ends at Python's recursion limit

Found found(Found::Kind kind, std::string why = {}) { return {kind, nullptr, std::move(why), {}}; }

Found plain(const Node& node) {
  switch (node.kind) {
    case Kind::missing:
      return found(Found::Kind::missing);
    case Kind::unknown:
      return found(Found::Kind::unknown, node.text);
    case Kind::broken:
      return found(Found::Kind::broken, node.text);
    default:
      return {Found::Kind::value, &node, {}, {}};
  }
}

/// A child of a container by key. The text says why there can be none.
std::pair<const Node*, std::string> one(const Node& container, const std::string& key) {
  if (container.kind == Kind::map) return {container.find(key), {}};
  const auto i = index_of(key);
  const bool number = i >= 0 || (key.size() > 1 && key[0] == '-' && index_of(key.substr(1)) >= 0);
  if (!number) return {nullptr, fmt::format("'{}' is no index of a list", key)};
  if (i < 0 || i >= std::ssize(container.items)) return {nullptr, {}};
  return {&container.items[static_cast<std::size_t>(i)], {}};
}

}  // namespace

Lookup::Lookup(const Node& root, const Environment& environment) : root_(root), environment_(environment) {}

const Lookup::Parents& Lookup::parents() {
  if (parents_.empty()) index(root_);
  return parents_;
}

void Lookup::index(const Node& node) {
  for (const auto& item : node.items) {
    parents_[&item] = &node;
    index(item);
  }
  for (const auto& entry : node.entries) {
    parents_[&entry.value] = &node;
    index(entry.value);
  }
}

std::string Lookup::path_of(const Node& node) {
  std::string out;
  const Node* here = &node;
  for (auto it = parents().find(here); it != parents().end(); it = parents().find(here)) {
    const Node& parent = *it->second;
    std::string key;
    for (const auto& entry : parent.entries)
      if (&entry.value == here) key = entry.key;
    if (parent.kind == Kind::list) key = std::to_string(here - parent.items.data());
    out = out.empty() ? key : key + "." + out;
    here = &parent;
  }
  return out;
}

const Node* Lookup::keep(Node node) {
  charge(node.text.size());
  made_.push_back(std::move(node));
  return &made_.back();
}

Found Lookup::follow(const Node& node) {
  if (node.kind != Kind::interpolation) return plain(node);
  if (const auto it = done_.find(&node); it != done_.end()) return it->second;
  if (open_.contains(&node))
    return found(Found::Kind::broken, fmt::format("interpolations lead in a circle through '{}'", path_of(node)));
  if (depth_ >= kMostLinks)
    return found(Found::Kind::broken, fmt::format("more than {} interpolations lead to each other", kMostLinks));
  open_.insert(&node);
  ++depth_;
  Found out = follow_link(node);
  --depth_;
  open_.erase(&node);
  return done_[&node] = std::move(out);
}

Found Lookup::follow_link(const Node& node) {
  const auto read = read_text(node.text);
  if (const auto* fault = std::get_if<GrammarFault>(&read)) return found(Found::Kind::broken, fault->why);
  Found out = Evaluation(*this, node).text(std::get<Text>(read));
  if (out.kind == Found::Kind::absent) out.kind = Found::Kind::broken;
  if (out.kind == Found::Kind::no_container) out.kind = Found::Kind::broken;
  if (out.via.size() > kMostVia) out.via.resize(kMostVia);
  return out;
}

namespace {

/// `parts` with the key of `here` that is nearest to the one at `i`, which `here` lacks; "" without such a key.
std::string respelled(const Node& here, std::vector<std::string> parts, std::size_t i) {
  std::vector<std::string> keys;
  for (const auto& entry : here.entries) keys.push_back(entry.key);
  parts[i] = nearest(parts[i], keys);
  return parts[i].empty() ? "" : joined(parts, parts.size());
}

}  // namespace

Found Lookup::select(const Node& container, const std::string& key, bool stop_at_missing) {
  if (key.empty()) return plain(container);
  const auto parts = split_key(key);
  const Node* here = &container;
  std::vector<Link> via;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [child, why] = one(*here, parts[i]);
    if (!why.empty()) return found(Found::Kind::broken, why);
    if (child == nullptr) {
      Found out = found(Found::Kind::absent, fmt::format("there is no '{}'", joined(parts, i + 1)));
      out.nearest = respelled(*here, parts, i);
      return out;
    }
    const bool last = i + 1 == parts.size();
    if (last) via.insert(via.begin(), {path_of(*child), {}});
    if (child->kind == Kind::missing && !last && !stop_at_missing) return found(Found::Kind::no_container, "it is missing");
    Found next = follow(*child);
    next.linked = child->kind == Kind::interpolation;
    if (last) next.via.insert(next.via.begin(), via.begin(), via.end());
    if (last || next.kind != Found::Kind::value) return next;
    if (!next.node->is_container())
      return found(Found::Kind::no_container,
                   fmt::format("'{}' is {}, which has no '{}'", joined(parts, i + 1), describe(*next.node), parts[i + 1]));
    here = next.node;
  }
  return found(Found::Kind::absent);
}

Node Lookup::fail(const Node& node, Kind kind, const std::string& why, bool tell, std::string nearest) {
  Node out;
  out.kind = kind;
  out.text = why;
  out.origin = node.origin;
  if (!tell || !told_.insert(&node).second) return out;
  Place place = node.origin.place;
  place.path = path_of(node);
  problems_.push_back({std::move(place), describe(node), "an interpolation that OmegaConf resolves", std::move(nearest), why});
  return out;
}

Node Lookup::build(const Found& found) {
  Building building;
  if (found.kind != Found::Kind::value) return {};
  return build(*found.node, building);
}

void Lookup::charge(std::size_t bytes) {
  constexpr std::size_t kMostText = std::size_t{1} << 24;
  bytes_ += bytes;
  if (++built_ > kMostNodes || bytes_ > kMostText)
    throw InputError({root_.origin.place,
                      fmt::format("more than {} values or {} bytes", kMostNodes, kMostText),
                      "a configuration",
                      {},
                      "interpolations expand too far"});
}

Node Lookup::build(const Node& node, Building& building) {
  charge(node.text.size());
  Node out;
  out.kind = node.kind;
  out.boolean = node.boolean;
  out.integer = node.integer;
  out.real = node.real;
  out.text = node.text;
  out.origin = node.origin;
  out.via = node.via;
  if (!node.is_container()) return out;
  const auto& open = building.open;
  if (std::find(open.begin(), open.end(), &node) != open.end())
    return fail(node, Kind::broken, fmt::format("'{}' contains itself through interpolations", path_of(node)), true);
  constexpr int kDeepestOfAll = 4 * kDeepest;
  if (building.levels >= kDeepest) return fail(node, Kind::broken, fmt::format("more than {} levels", kDeepest), true);
  if (levels_ >= kDeepestOfAll) return fail(node, Kind::broken, fmt::format("more than {} levels", kDeepestOfAll), true);
  ++building.levels;
  ++levels_;
  building.open.push_back(&node);
  out.items.reserve(node.items.size());
  out.entries.reserve(node.entries.size());
  for (const auto& item : node.items) out.items.push_back(child(item, building));
  for (const auto& entry : node.entries)
    out.entries.push_back({entry.key, entry.key_kind, entry.place, child(entry.value, building)});
  building.open.pop_back();
  --building.levels;
  --levels_;
  return out;
}

Node Lookup::child(const Node& node, Building& building) {
  Found found = follow(node);
  switch (found.kind) {
    case Found::Kind::value:
      break;
    case Found::Kind::missing:
      return fail(node, Kind::missing, {}, false);
    case Found::Kind::unknown:
      return fail(node, Kind::unknown, found.why, false);
    default:
      return fail(node, Kind::broken, found.why, node.kind == Kind::interpolation, found.nearest);
  }
  Node out = build(*found.node, building);
  for (auto& link : found.via)
    if (link.place.line == 0 && link.place.file.empty()) link.place = node.origin.place;
  out.via.insert(out.via.begin(), found.via.begin(), found.via.end());
  return out;
}

namespace {

/// An interpolation that only leads to a broken one is not told again; of a circle one link is left.
std::vector<Problem> without_followers(std::vector<Problem> all) {
  std::map<std::string, std::size_t> at;
  for (std::size_t i = 0; i < all.size(); ++i) at.emplace(fmt::format("'${{{}}}'", all[i].place.path), i);
  std::vector<bool> dropped(all.size());
  std::vector<Problem> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto to = at.find(all[i].found);
    dropped[i] = to != at.end() && to->second != i && !dropped[to->second] && all[to->second].why == all[i].why;
    if (!dropped[i]) out.push_back(all[i]);
  }
  return out;
}

}  // namespace

Resolved resolve(const Node& root, const Environment& environment) {
  Resolved out;
  Lookup lookup(root, environment);
  try {
    out.root = lookup.build(lookup.follow(root));
  } catch (const InputError& e) {
    lookup.problems().insert(lookup.problems().end(), e.problems.begin(), e.problems.end());
    out.root = root;
    out.root.entries.clear();
  }
  out.problems = without_followers(std::move(lookup.problems()));
  return out;
}

}  // namespace oomplan::compose
