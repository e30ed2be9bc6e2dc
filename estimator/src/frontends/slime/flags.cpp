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

Flag flag_of(const Json& row, const std::vector<std::string>& releases) {
  const auto number = [&](const char* key) {
    return static_cast<std::size_t>(std::find(releases.begin(), releases.end(), row.at(key).get<std::string>()) -
                                    releases.begin());
  };
  Flag f;
  f.spellings = row.at("flags").get<std::vector<std::string>>();
  f.name = row.at("dest").get<std::string>();
  const auto word = row.at("type").get<std::string>();
  const auto known = std::find_if(kValues.begin(), kValues.end(), [&](const auto& v) { return v.first == word; });
  if (known == kValues.end()) throw Defect("flag table: type " + word);
  f.value = known->second;
  if (row.contains("nargs")) f.many = row["nargs"].is_number() ? row["nargs"].dump() : row["nargs"].get<std::string>();
  f.otherwise = std::make_shared<const Json>(row.value("default", Json()));
  f.choices = row.value("choices", std::vector<std::string>());
  f.first = number("first");
  f.last = number("last");
  return f;
}

bool has_spelling(const Flag& f, std::string_view spelling) {
  return std::find(f.spellings.begin(), f.spellings.end(), spelling) != f.spellings.end();
}

template <class Is>
const Flag* first_of(Release release, Is&& is) {
  for (const Flag& f : release.of->rows())
    if (f.first <= release.number && release.number <= f.last && is(f)) return &f;
  return nullptr;
}

}  // namespace

FlagTable::FlagTable(const char* file) {
  const Json all = Json::parse(embedded_text(file));
  releases_ = all.at("releases").get<std::vector<std::string>>();
  for (const auto& row : all.at("flags")) rows_.push_back(flag_of(row, releases_));
  const auto usual = std::find(releases_.begin(), releases_.end(), all.at("usual").get<std::string>());
  if (usual == releases_.end()) throw Defect("flag table: no usual release");
  usual_ = static_cast<std::size_t>(usual - releases_.begin());
}

bool Release::since(std::string_view name) const {
  const auto& all = of->releases();
  return number >= static_cast<std::size_t>(std::find(all.begin(), all.end(), name) - all.begin());
}
const std::string& name_of(Release release) { return release.of->releases().at(release.number); }

const Flag* find_flag(Release release, std::string_view spelling) {
  return first_of(release, [&](const Flag& f) { return has_spelling(f, spelling); });
}
const Flag* flag_named(Release release, std::string_view name) {
  return first_of(release, [&](const Flag& f) { return f.name == name; });
}
bool known_in_any(const FlagTable& table, std::string_view spelling) {
  return std::any_of(table.rows().begin(), table.rows().end(), [&](const Flag& f) { return has_spelling(f, spelling); });
}
std::string releases_with(const FlagTable& table, std::string_view spelling) {
  std::size_t first = table.releases().size(), last = 0;
  for (const Flag& f : table.rows())
    if (has_spelling(f, spelling)) first = std::min(first, f.first), last = std::max(last, f.last);
  if (first == table.releases().size()) return {};
  const std::string &from = table.releases()[first], &to = table.releases()[last];
  return first == last ? from : fmt::format("{} to {}", from, to);
}
std::vector<std::string> spellings(Release release) {
  std::vector<std::string> out;
  for (const Flag& f : release.of->rows())
    if (f.first <= release.number && release.number <= f.last) out.insert(out.end(), f.spellings.begin(), f.spellings.end());
  return out;
}
bool takes_value(const Flag& f) { return f.value != FlagValue::on && f.value != FlagValue::off && f.value != FlagValue::toggle; }

}  // namespace oomplan::slime
