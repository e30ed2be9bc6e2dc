#include "frontends/areal/schema_data.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"

namespace oomplan::areal {
namespace {

using Json = nlohmann::ordered_json;

std::size_t position(const std::string& release) { return release_named(release).index; }

SchemaData read() {
  const Json json = Json::parse(embedded_text("frameworks/areal.json"));
  SchemaData out;
  out.first = release_named(json.at("releases").at(0).get<std::string>());
  const std::size_t newest = newest_release().index;
  out.classes = structured::read_classes(json.at("classes"), position, newest);
  for (const auto& [path, rows] : json.at("scripts").items())
    for (const Json& row : rows)
      out.scripts[path].push_back({structured::span_of(row, position, newest), row.at("class").get<std::string>()});
  for (const Json& row : json.at("renames"))
    out.renames.push_back({row.at("class").get<std::string>(), row.at("field").get<std::string>(),
                           release_named(row.at("until").get<std::string>()), row.at("now").get<std::string>()});
  return out;
}

}  // namespace

const SchemaData& schema_data() {
  static const SchemaData data = [] {
    try {
      return read();
    } catch (const Json::exception& error) {
      throw Defect(fmt::format("models/frameworks/areal.json: {}", error.what()));
    }
  }();
  return data;
}

}  // namespace oomplan::areal
