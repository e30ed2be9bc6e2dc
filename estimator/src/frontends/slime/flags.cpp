#include "frontends/slime/flags.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"

namespace oomplan::slime {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<std::string_view, FlagValue>, 8> kValues{{{"int", FlagValue::whole},
                                                                         {"float", FlagValue::number},
                                                                         {"text", FlagValue::text},
                                                                         {"json", FlagValue::text},
                                                                         {"truth", FlagValue::text},
                                                                         {"on", FlagValue::on},
                                                                         {"off", FlagValue::off},
                                                                         {"toggle", FlagValue::toggle}}};

struct Table {
  std::vector<std::string> releases;
  std::vector<Flag> rows;
};

Flag flag_of(const Json& row, const std::vector<std::string>& releases) {
  const auto number = [&](const char* key) {
    return static_cast<Release>(std::find(releases.begin(), releases.end(), row.at(key).get<std::string>()) - releases.begin());
  };
  Flag f;
  f.spellings = row.at("flags").get<std::vector<std::string>>();
  f.name = row.at("dest").get<std::string>();
  const auto word = row.at("type").get<std::string>();
  const auto known = std::find_if(kValues.begin(), kValues.end(), [&](const auto& v) { return v.first == word; });
  if (known == kValues.end()) throw Defect("slime.json: type " + word);
  f.value = known->second;
  if (row.contains("nargs")) f.many = row["nargs"].is_number() ? row["nargs"].dump() : row["nargs"].get<std::string>();
  f.otherwise = std::make_shared<const Json>(row.value("default", Json()));
  f.choices = row.value("choices", std::vector<std::string>());
  f.first = number("first");
  f.last = number("last");
  return f;
}

const Table& table() {
  static const Table all = [] {
    Table t;
    const Json file = Json::parse(embedded_text("frameworks/slime.json"));
    t.releases = file.at("releases").get<std::vector<std::string>>();
    for (const auto& row : file.at("flags")) t.rows.push_back(flag_of(row, t.releases));
    return t;
  }();
  return all;
}

bool has_spelling(const Flag& f, std::string_view spelling) {
  return std::find(f.spellings.begin(), f.spellings.end(), spelling) != f.spellings.end();
}

template <class Is>
const Flag* first_of(Release release, Is&& is) {
  for (const Flag& f : table().rows)
    if (f.first <= release && release <= f.last && is(f)) return &f;
  return nullptr;
}

}  // namespace

const std::vector<std::string>& releases() { return table().releases; }
const std::string& name_of(Release release) { return table().releases.at(release); }
Release last_tagged() { return table().releases.size() - 2; }  // the last one is the development version

const Flag* find_flag(Release release, std::string_view spelling) {
  return first_of(release, [&](const Flag& f) { return has_spelling(f, spelling); });
}
const Flag* flag_named(Release release, std::string_view name) {
  return first_of(release, [&](const Flag& f) { return f.name == name; });
}
bool known_in_any(std::string_view spelling) {
  return std::any_of(table().rows.begin(), table().rows.end(), [&](const Flag& f) { return has_spelling(f, spelling); });
}
std::string releases_with(std::string_view spelling) {
  Release first = table().releases.size(), last = 0;
  for (const Flag& f : table().rows)
    if (has_spelling(f, spelling)) first = std::min(first, f.first), last = std::max(last, f.last);
  if (first == table().releases.size()) return {};
  return first == last ? name_of(first) : fmt::format("{} to {}", name_of(first), name_of(last));
}
std::vector<std::string> spellings(Release release) {
  std::vector<std::string> out;
  for (const Flag& f : table().rows)
    if (f.first <= release && release <= f.last) out.insert(out.end(), f.spellings.begin(), f.spellings.end());
  return out;
}
bool takes_value(const Flag& f) { return f.value != FlagValue::on && f.value != FlagValue::off && f.value != FlagValue::toggle; }

}  // namespace oomplan::slime
