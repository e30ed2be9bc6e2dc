#include "frontends/verl/tree.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "catalog/embedded.hpp"
#include "catalog/facts.hpp"
#include "job/knob_table.hpp"

namespace oomplan::verl {
namespace {

using Json = nlohmann::ordered_json;

/// A value that holds from one release to another.
template <class Value>
struct Span {
  int first = 0, last = 0;
  Value value;
};
template <class Value>
using Rows = std::map<std::string, std::vector<Span<Value>>, std::less<>>;

struct VerlData {
  std::vector<std::string> releases;
  Rows<EntryRow> entries;
  Rows<std::string> files;

  VerlData() {
    const Json json = Json::parse(embedded_text("frameworks/verl.json"));
    for (const auto& name : json.at("releases")) releases.push_back(name);
    for (const auto& [module, rows] : json.at("entry_points").items())
      for (const auto& row : rows) add(entries, module, row, EntryRow{module, row.at("folder"), row.at("config")});
    for (const auto& [path, rows] : json.at("files").items())
      for (const auto& row : rows) {
        std::string text = row.contains("package") ? fmt::format("# @package {}\n", row.at("package").get<std::string>()) : "";
        add(files, path, row, text + row.at("content").dump());
      }
  }
  template <class Value>
  void add(Rows<Value>& to, const std::string& key, const Json& row, Value value) {
    to[key].push_back({number_of(row.at("first")), number_of(row.at("last")), std::move(value)});
  }
  int number_of(const std::string& name) const {
    return static_cast<int>(std::find(releases.begin(), releases.end(), name) - releases.begin());
  }
};

const VerlData& data() {
  static const VerlData all;
  return all;
}

template <class Value>
const Value* value_in(const Rows<Value>& rows, std::string_view key, Release release) {
  const auto found = rows.find(key);
  if (found == rows.end()) return nullptr;
  for (const auto& span : found->second)
    if (span.first <= release.number && release.number <= span.last) return &span.value;
  return nullptr;
}

}  // namespace

namespace {

/// Without what stands around the numbers.
std::string plain_name(std::string_view text) {
  std::string name(text);
  if (name.starts_with('v')) name.erase(0, 1);
  if (name == "head" || name == "HEAD" || name == "main") return data().releases.back();
  for (const std::string_view end : {".dev", ".dev0", ".post1", ".post2", "rc0"})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  return name;
}

}  // namespace

bool names(std::string_view text, Release release) {
  const std::string name = plain_name(text);
  return knob::is_version(name) && compare_versions(name_of(release), name) == 0;
}

std::optional<Release> find_release(std::string_view text) {
  const std::string name = plain_name(text);
  if (!knob::is_version(name)) return std::nullopt;
  const auto& all = data().releases;
  std::optional<Release> found;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (compare_versions(all[i], name) <= 0) found = Release{static_cast<int>(i)};
  return found;
}

Release release_named(std::string_view name) { return {data().number_of(std::string(name))}; }
std::string name_of(Release r) { return data().releases.at(static_cast<std::size_t>(r.number)); }
Release newest_release() { return {static_cast<int>(data().releases.size()) - 1}; }
std::string known_releases() { return fmt::format("{} to {}", data().releases.front(), data().releases.back()); }

std::optional<EntryRow> entry_row(std::string_view module, Release release) {
  const EntryRow* row = value_in(data().entries, module, release);
  return row == nullptr ? std::nullopt : std::optional(*row);
}

std::vector<std::string> releases_with(std::string_view module) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < data().releases.size(); ++i)
    if (entry_row(module, {static_cast<int>(i)})) out.push_back(data().releases[i]);
  return out;
}

std::optional<std::string> config_file(std::string_view path, Release release) {
  const std::string* text = value_in(data().files, path, release);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

std::optional<std::vector<std::string>> config_folder(std::string_view folder, Release release) {
  std::vector<std::string> out;
  const std::string start = std::string(folder) + "/";
  for (const auto& [path, spans] : data().files)
    if (path.starts_with(start) && path.find('/', start.size()) == std::string::npos &&
        value_in(data().files, path, release) != nullptr)
      out.push_back(path.substr(start.size()));
  if (out.empty()) return std::nullopt;
  return out;
}

}  // namespace oomplan::verl
