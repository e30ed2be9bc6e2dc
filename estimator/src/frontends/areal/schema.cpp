#include "frontends/areal/schema.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/schema_data.hpp"
#include "units/enums.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kRoot = "BaseExperimentConfig";

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

/// Names of AReaL's documentation that are arguments in its code and keys of no file.
std::string_view argument_of_code(std::string_view key) {
  if (key == "weight_chunked_mem_mb")
    return "it is an argument of WeightUpdateMeta.from_fsdp_xccl in AReaL's code (1024 MiB), which no key of a file sets";
  return {};
}

}  // namespace

std::optional<Schema> Schema::of(Release release) {
  const SchemaData& data = schema_data();
  if (release < data.first) return std::nullopt;
  return Schema(data, release);
}

PathRead Schema::find(std::string_view root, std::string_view path) const {
  PathRead out{view().walk(root, path), {}, {}, {}, {}};
  if (out) return out;
  const auto parts = structured::parts_of(path);
  const std::string key(parts[out.known]);
  out.nearest = view().nearest(path, out);
  for (std::uint8_t i = data_->first.index; i < kReleaseCount; ++i) {
    const Release other{i};
    if (Schema(*data_, other).view().walk(root, path).field == nullptr) continue;
    if (!out.others.empty() && out.others.back().last.index + 1 == i)
      out.others.back().last = other;
    else
      out.others.push_back({other, other});
  }
  if (!out.owner.empty()) out.now = replaced(out.owner, key);
  if (out.nearest.empty() && out.now.empty() && out.known + 1 == parts.size())
    out.nearest = view().elsewhere(root, parts[0], key);
  if (!out.others.empty()) out.nearest.clear();  // the key is meant, and of another release
  if (out.known == 0)
    for (const std::string& other : roots())
      if (other != root && field(other, key) != nullptr) out.roots.push_back(other);
  return out;
}

std::string Schema::replaced(std::string_view name, std::string_view key) const {
  for (const Renamed& one : data_->renames) {
    if (one.key != key || release_ <= one.until) continue;
    // a class of the past names no place of today: its keys are known by name alone
    if (!has_class(one.owner) || derives(name, one.owner)) return one.now;
  }
  return {};
}

bool Schema::has_class(std::string_view name) const { return view().has_class(name); }
bool Schema::derives(std::string_view name, std::string_view base) const { return view().derives(name, base); }
std::vector<const Field*> Schema::fields(std::string_view name) const { return view().fields(name); }
const Field* Schema::field(std::string_view name, std::string_view key) const { return view().field(name, key); }
structured::View Schema::view() const { return {data_->classes, release_.index}; }

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
    const std::string* root = structured::row_of(rows, release_.index);
    if (root != nullptr && same_folder(folder, folder_of(script)) && std::find(out.begin(), out.end(), *root) == out.end())
      out.push_back(*root);
  }
  return out;
}

std::string Schema::root_of_script(std::string_view script) const {
  const auto found = data_->scripts.find(script);
  const std::string* root = found == data_->scripts.end() ? nullptr : structured::row_of(found->second, release_.index);
  return root == nullptr ? std::string() : *root;
}

Origin Schema::origin_of(const Field& field) const {
  const bool example = field.owner.find(':') != std::string::npos;
  return {Origin::Kind::default_,
          {},
          reader() + " default",
          example ? field.owner : fmt::format("areal/api/cli_args.py:{}", field.owner)};
}

std::string Schema::reader() const { return fmt::format("AReaL {}", name_of(release_)); }

/// From 1.0.2 on a kernel of the hub is taken, too ("org/repo"); before, nothing looked at the name
/// (areal/engine/fsdp_utils/attn_impl.py).
bool Schema::takes(const Field& field, std::string_view value) const {
  return field.key == "attn_impl" && (release_ < release_named("1.0.2") || value.find('/') != std::string_view::npos);
}

structured::Unknown Schema::unknown(std::string_view root, std::string_view path) const {
  const PathRead read = find(root, path);
  if (const std::string_view why = argument_of_code(structured::parts_of(path).back()); !why.empty())
    return {read.nearest, std::string(why), false};
  const bool elsewhere = !read.others.empty() || !read.now.empty();
  return {read.nearest, unknown_text(read, release_, path), !elsewhere || !read.roots.empty()};
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
