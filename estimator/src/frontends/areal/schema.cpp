#include "frontends/areal/schema.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/schema_data.hpp"
#include "units/enums.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kRoot = "BaseExperimentConfig";

bool is_index(std::string_view part) {
  return !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
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

std::string folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string() : std::string(path.substr(0, slash));
}

bool same_folder(std::string_view folder, std::string_view known) {
  return folder == known || (folder.ends_with(known) && folder[folder.size() - known.size() - 1] == '/');
}
/// A recipe has its configurations in a folder below its scripts.
std::string_view without_configs(std::string_view folder) {
  constexpr std::string_view kBelow = "/configs";
  return folder.ends_with(kBelow) ? folder.substr(0, folder.size() - kBelow.size()) : folder;
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

}  // namespace

std::optional<std::int64_t> Field::integer() const {
  const auto* found = std::get_if<std::int64_t>(&value);
  return found ? std::optional(*found) : std::nullopt;
}
std::optional<double> Field::number() const {
  if (const auto whole = integer()) return static_cast<double>(*whole);
  const auto* found = std::get_if<double>(&value);
  return found ? std::optional(*found) : std::nullopt;
}
std::optional<bool> Field::flag() const {
  const auto* found = std::get_if<bool>(&value);
  return found ? std::optional(*found) : std::nullopt;
}
std::optional<std::string> Field::text() const {
  const auto* found = std::get_if<std::string>(&value);
  return found ? std::optional(*found) : std::nullopt;
}

std::optional<Schema> Schema::of(Release release) {
  const SchemaData& data = schema_data();
  if (release < data.first) return std::nullopt;
  return Schema(data, release);
}

bool Schema::has_class(std::string_view name) const {
  const auto found = data_->classes.find(name);
  return found != data_->classes.end() && row_of(found->second.bases, release_) != nullptr;
}

/// The class and its bases, nearest first. Python's order for the hierarchies there are: depth first, each at its last mention.
std::vector<std::string> Schema::order(std::string_view name) const {
  std::vector<std::string> all, left{std::string(name)};
  while (!left.empty()) {
    const std::string one = std::move(left.back());
    left.pop_back();
    const auto found = data_->classes.find(one);
    const auto* bases = found == data_->classes.end() ? nullptr : row_of(found->second.bases, release_);
    if (bases == nullptr) continue;
    all.push_back(one);
    left.insert(left.end(), bases->rbegin(), bases->rend());
  }
  std::vector<std::string> out;
  for (auto one = all.begin(); one != all.end(); ++one)
    if (std::find(one + 1, all.end(), *one) == all.end()) out.push_back(*one);
  return out;
}

bool Schema::derives(std::string_view name, std::string_view base) const {
  const auto all = order(name);
  return std::find(all.begin(), all.end(), base) != all.end();
}

std::vector<const Field*> Schema::fields(std::string_view name) const {
  const auto all = order(name);
  std::vector<const Field*> out;
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    const SchemaClass& declared = data_->classes.find(*one)->second;
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

const Field* Schema::field(std::string_view name, std::string_view key) const {
  for (const std::string& one : order(name)) {
    const SchemaClass& declared = data_->classes.find(one)->second;
    const auto found = declared.fields.find(key);
    const Field* field = found == declared.fields.end() ? nullptr : row_of(found->second, release_);
    if (field != nullptr) return field;
  }
  return nullptr;
}

/// Follows the parts as far as they are known.
PathRead Schema::walk(std::string_view root, std::string_view path) const {
  PathRead out;
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

bool Schema::knows(std::string_view root, std::string_view path) const { return static_cast<bool>(walk(root, path)); }

PathRead Schema::find(std::string_view root, std::string_view path) const {
  PathRead out = walk(root, path);
  if (out) return out;
  const auto parts = parts_of(path);
  const std::string key(parts[out.known]);
  std::vector<std::string> keys;
  for (const Field* one : out.owner.empty() ? std::vector<const Field*>{} : fields(out.owner)) keys.push_back(one->key);
  std::string near = oomplan::nearest(key, keys);
  if (near.empty()) near = longer_or_shorter(key, keys);
  if (!near.empty()) out.nearest = replaced_part(parts, out.known, near);
  for (std::uint8_t i = data_->first.index; i < kReleaseCount; ++i) {
    const Release other{i};
    if (!Schema(*data_, other).knows(root, path)) continue;
    if (!out.others.empty() && out.others.back().last.index + 1 == i)
      out.others.back().last = other;
    else
      out.others.push_back({other, other});
  }
  if (!out.owner.empty()) out.now = replaced(out.owner, key);
  if (out.nearest.empty() && out.now.empty() && out.known + 1 == parts.size()) out.nearest = elsewhere(root, parts[0], key);
  if (!out.others.empty()) out.nearest.clear();  // the key is meant, and of another release
  if (out.known == 0)
    for (const std::string& other : roots())
      if (other != root && field(other, key) != nullptr) out.roots.push_back(other);
  return out;
}

/// Where else below a root the key stands: under the same first part if it does there, anywhere if that is one place alone.
std::string Schema::elsewhere(std::string_view root, std::string_view first, std::string_view key) const {
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

std::string Schema::replaced(std::string_view name, std::string_view key) const {
  for (const Renamed& one : data_->renames) {
    if (one.key != key || release_ <= one.until) continue;
    // a class of the past names no place of today: its keys are known by name alone
    if (!has_class(one.owner) || derives(name, one.owner)) return one.now;
  }
  return {};
}

std::vector<std::string> Schema::roots() const {
  std::vector<std::string> own, examples;
  for (const auto& [name, value] : data_->classes)
    if (name != kRoot && derives(name, kRoot)) (name.find(':') == std::string::npos ? own : examples).push_back(name);
  own.insert(own.end(), examples.begin(), examples.end());
  return own;
}

std::vector<std::string> Schema::roots_beside(std::string_view file) const {
  const std::string at = folder_of(file);
  const std::string_view folder = without_configs(at);
  std::vector<std::string> out;
  for (const auto& [script, rows] : data_->scripts) {
    const std::string* root = row_of(rows, release_);
    if (root != nullptr && same_folder(folder, folder_of(script)) && std::find(out.begin(), out.end(), *root) == out.end())
      out.push_back(*root);
  }
  return out;
}

std::string Schema::root_of_script(std::string_view script) const {
  const auto found = data_->scripts.find(script);
  const std::string* root = found == data_->scripts.end() ? nullptr : row_of(found->second, release_);
  return root == nullptr ? std::string() : *root;
}

std::string unknown_text(const PathRead& read, Release release, std::string_view path) {
  std::string out = fmt::format("AReaL {} has no {}", name_of(release), path);
  std::vector<std::string> known, roots;
  for (const ReleaseRange& span : read.others) known.push_back(range_text(span.first, span.last));
  if (!known.empty()) out += ": known in " + list_of(known);
  if (!read.now.empty()) out += (known.empty() ? ": now " : "; now ") + read.now;
  if (!read.roots.empty()) out += (known.empty() && read.now.empty() ? ": it is of " : "; it is of ") + list_of(read.roots);
  return out;
}

}  // namespace oomplan::areal
