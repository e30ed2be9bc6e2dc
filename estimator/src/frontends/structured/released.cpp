#include "frontends/structured/released.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "units/enums.hpp"

namespace oomplan::structured {
namespace {

using Json = nlohmann::ordered_json;

bool is_index(std::string_view part) {
  return !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The part of `path` at `position` replaced.
std::string replaced_part(const std::vector<std::string_view>& parts, std::size_t position, const std::string& key) {
  std::vector<std::string> out(parts.begin(), parts.end());
  out[position] = key;
  return fmt::format("{}", fmt::join(out, "."));
}

/// The only one of the keys that begins with what was written, or that it begins with ("mem_fraction", mem_fraction_static).
std::string longer_or_shorter(std::string_view key, const std::vector<std::string>& keys) {
  constexpr std::size_t kShortest = 5;
  std::vector<std::string> found;
  for (const std::string& one : keys)
    if (std::min(one.size(), key.size()) >= kShortest && (one.starts_with(key) || key.starts_with(one))) found.push_back(one);
  return found.size() == 1 ? found.front() : std::string();
}

ReleasedClass class_of(const std::string& name, const Json& value, const Position& position, std::size_t newest) {
  ReleasedClass out;
  for (const Json& row : value.at("is"))
    out.bases.push_back({span_of(row, position, newest), row.at("bases").get<std::vector<std::string>>()});
  for (const auto& [key, rows] : value.at("fields").items()) {
    out.keys.push_back(key);
    for (const Json& row : rows) out.fields[key].push_back({span_of(row, position, newest), field_of(name, key, row)});
  }
  return out;
}

}  // namespace

Span span_of(const Json& row, const Position& position, std::size_t newest) {
  return {position(row.at("since").get<std::string>()),
          row.contains("until") ? position(row.at("until").get<std::string>()) : newest};
}

ReleasedClasses read_classes(const Json& classes, const Position& position, std::size_t newest) {
  ReleasedClasses out;
  for (const auto& [name, value] : classes.items()) out.emplace(name, class_of(name, value, position, newest));
  return out;
}

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> out;
  while (true) {
    const std::size_t dot = path.find('.');
    out.push_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return out;
    path.remove_prefix(dot + 1);
  }
}

bool View::has_class(std::string_view name) const {
  const auto found = classes_->find(name);
  return found != classes_->end() && row_of(found->second.bases, release_) != nullptr;
}

/// The class and its bases, nearest first. Python's order for the hierarchies there are: depth first, each at its last mention.
std::vector<std::string> View::order(std::string_view name) const {
  std::vector<std::string> all, left{std::string(name)};
  while (!left.empty()) {
    const std::string one = std::move(left.back());
    left.pop_back();
    const auto found = classes_->find(one);
    const auto* bases = found == classes_->end() ? nullptr : row_of(found->second.bases, release_);
    if (bases == nullptr) continue;
    all.push_back(one);
    left.insert(left.end(), bases->rbegin(), bases->rend());
  }
  std::vector<std::string> out;
  for (auto one = all.begin(); one != all.end(); ++one)
    if (std::find(one + 1, all.end(), *one) == all.end()) out.push_back(*one);
  return out;
}

bool View::derives(std::string_view name, std::string_view base) const {
  const auto all = order(name);
  return std::find(all.begin(), all.end(), base) != all.end();
}

std::vector<const Field*> View::fields(std::string_view name) const {
  const auto all = order(name);
  std::vector<const Field*> out;
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    const ReleasedClass& declared = classes_->find(*one)->second;
    for (const std::string& key : declared.keys) {
      const Field* field = row_of(declared.fields.find(key)->second, release_);
      if (field == nullptr) continue;
      const auto inherited = std::find_if(out.begin(), out.end(), [&](const Field* other) { return other->key == key; });
      if (inherited == out.end())
        out.push_back(field);
      else
        *inherited = field;  // an override keeps its place
    }
  }
  return out;
}

const Field* View::field(std::string_view name, std::string_view key) const {
  for (const std::string& one : order(name)) {
    const ReleasedClass& declared = classes_->find(one)->second;
    const auto found = declared.fields.find(key);
    const Field* field = found == declared.fields.end() ? nullptr : row_of(found->second, release_);
    if (field != nullptr) return field;
  }
  return nullptr;
}

/// Follows the parts as far as they are known.
Walked View::walk(std::string_view root, std::string_view path) const {
  Walked out;
  out.owner = root;
  const auto parts = parts_of(path);
  const Field* at = nullptr;
  while (out.known < parts.size()) {
    const Field* next = out.owner.empty() ? nullptr : field(out.owner, parts[out.known]);
    if (next == nullptr) return out;
    at = next;
    ++out.known;
    std::string inside = at->type.kind == FieldKind::object ? at->type.of : "";
    if (at->type.kind == FieldKind::list && out.known < parts.size() && is_index(parts[out.known])) {
      ++out.known;
      if (has_class(at->type.of)) inside = at->type.of;
    }
    if (out.known < parts.size() && (at->type.kind == FieldKind::dict || at->type.kind == FieldKind::any)) {
      out.inside = true;
      out.known = parts.size();
    }
    out.owner = inside;
  }
  out.field = at;
  return out;
}

std::string View::nearest(std::string_view path, const Walked& read) const {
  const auto parts = parts_of(path);
  const std::string key(parts[read.known]);
  std::vector<std::string> keys;
  for (const Field* one : read.owner.empty() ? std::vector<const Field*>{} : fields(read.owner)) keys.push_back(one->key);
  std::string near = oomplan::nearest(key, keys);
  if (near.empty()) near = longer_or_shorter(key, keys);
  return near.empty() ? near : replaced_part(parts, read.known, near);
}

/// Where else below a root the key stands: under the same first part if it does there, anywhere if that is one place alone.
std::string View::elsewhere(std::string_view root, std::string_view first, std::string_view key) const {
  constexpr std::size_t kDeepest = 4;
  std::vector<std::string> all, near;
  const auto look = [&](const auto& self, const std::string& name, const std::string& path, std::size_t depth) -> void {
    for (const Field* one : fields(name)) {
      const std::string here = path.empty() ? one->key : path + '.' + one->key;
      if (one->key == key) (here.starts_with(std::string(first) + '.') ? near : all).push_back(here);
      if (one->type.kind == FieldKind::object && depth < kDeepest) self(self, one->type.of, here, depth + 1);
    }
  };
  look(look, std::string(root), "", 1);
  if (near.size() == 1) return near.front();
  return near.empty() && all.size() == 1 ? all.front() : std::string();
}

}  // namespace oomplan::structured
