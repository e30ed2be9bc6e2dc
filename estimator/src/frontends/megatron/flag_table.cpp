#include "frontends/megatron/flag_table.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"

namespace oomplan::megatron {
namespace {

constexpr std::array<std::pair<std::string_view, FlagValue>, 8> kValues{{{"int", FlagValue::whole},
                                                                         {"float", FlagValue::number},
                                                                         {"text", FlagValue::text},
                                                                         {"truth", FlagValue::truth},
                                                                         {"pattern", FlagValue::pattern},
                                                                         {"on", FlagValue::on},
                                                                         {"off", FlagValue::off},
                                                                         {"toggle", FlagValue::toggle}}};

Flag flag_of(const nlohmann::json& row) {
  Flag f;
  f.spellings = row.at("flags").get<std::vector<std::string>>();
  f.name = row.at("dest").get<std::string>();
  const auto word = row.at("type").get<std::string>();
  const auto known = std::find_if(kValues.begin(), kValues.end(), [&](const auto& v) { return v.first == word; });
  if (known == kValues.end()) throw Defect("megatron_flags.json: type " + word);
  f.value = known->second;
  if (row.contains("nargs")) f.many = row["nargs"].is_number() ? row["nargs"].dump() : row["nargs"].get<std::string>();
  f.otherwise = std::make_shared<const nlohmann::json>(row.value("default", nlohmann::json()));
  f.choices = row.value("choices", std::vector<std::string>());
  f.memory = row.value("memory", std::string());
  return f;
}

struct Table {
  std::vector<Flag> rows;
  std::map<std::string, std::size_t, std::less<>> by_spelling, by_name;
};

const Table& table() {
  static const Table all = [] {
    Table t;
    const auto file = nlohmann::json::parse(embedded_text("frameworks/megatron_flags.json"));
    for (const auto& row : file.at("flags")) t.rows.push_back(flag_of(row));
    for (std::size_t i = 0; i < t.rows.size(); ++i) {
      for (const auto& s : t.rows[i].spellings) t.by_spelling.emplace(s, i);
      t.by_name.emplace(t.rows[i].name, i);
    }
    return t;
  }();
  return all;
}

const Flag* at(const std::map<std::string, std::size_t, std::less<>>& index, std::string_view key) {
  const auto found = index.find(key);
  return found == index.end() ? nullptr : &table().rows[found->second];
}

}  // namespace

const std::vector<Flag>& flags() { return table().rows; }
const Flag* find_flag(std::string_view spelling) { return at(table().by_spelling, spelling); }
const Flag* flag_named(std::string_view name) { return at(table().by_name, name); }

std::string spelling_of(std::string_view name) {
  const Flag* const flag = flag_named(name);
  return flag == nullptr ? std::string(name) : flag->spellings.front();
}

bool takes_value(const Flag& flag) {
  return flag.value != FlagValue::on && flag.value != FlagValue::off && flag.value != FlagValue::toggle;
}

}  // namespace oomplan::megatron
