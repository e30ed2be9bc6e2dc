#include "frontends/areal/schema_data.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"

namespace oomplan::areal {
namespace {

using Json = nlohmann::ordered_json;

ReleaseRange span_of(const Json& row) {
  return {release_named(row.at("since").get<std::string>()),
          row.contains("until") ? release_named(row.at("until").get<std::string>()) : newest_release()};
}

/// "int?", "list[str]?", "dict", "float|str", "FSDPEngineConfig?".
FieldType type_of(const std::string& text) {
  FieldType out;
  out.text = text;
  out.optional = text.ends_with('?');
  const std::string plain = out.optional ? text.substr(0, text.size() - 1) : text;
  const auto inside = [&plain](std::size_t from) { return plain.substr(from, plain.size() - from - 1); };
  if (plain == "int") {
    out.kind = FieldKind::integer;
  } else if (plain == "float") {
    out.kind = FieldKind::number;
  } else if (plain == "str") {
    out.kind = FieldKind::text;
  } else if (plain == "bool") {
    out.kind = FieldKind::flag;
  } else if (plain == "any" || plain.find('|') != std::string::npos) {
    out.kind = FieldKind::any;
  } else if (plain == "list" || plain.starts_with("list[")) {
    out.kind = FieldKind::list;
    if (plain != "list") out.of = inside(5);
  } else if (plain == "dict" || plain.starts_with("dict[")) {
    out.kind = FieldKind::dict;
  } else {
    out.kind = FieldKind::object;
    out.of = plain;
  }
  return out;
}

Scalar scalar_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  return {};
}

Field field_of(const std::string& owner, const std::string& key, const Json& row) {
  Field out;
  out.owner = owner;
  out.key = key;
  out.type = type_of(row.at("type").get<std::string>());
  out.required = row.contains("required");
  out.computed = row.contains("computed");
  if (!out.required && !out.computed) {
    out.value = scalar_of(row.at("default"));
    out.default_json = row.at("default").dump();
  }
  if (row.contains("choices"))
    for (const Json& choice : row.at("choices"))
      if (choice.is_string()) out.choices.push_back(choice.get<std::string>());
  return out;
}

SchemaClass class_of(const std::string& name, const Json& value) {
  SchemaClass out;
  for (const Json& row : value.at("is")) out.bases.push_back({span_of(row), row.at("bases").get<std::vector<std::string>>()});
  for (const auto& [key, rows] : value.at("fields").items()) {
    out.keys.push_back(key);
    for (const Json& row : rows) out.fields[key].push_back({span_of(row), field_of(name, key, row)});
  }
  return out;
}

SchemaData read() {
  const Json json = Json::parse(embedded_text("frameworks/areal.json"));
  SchemaData out;
  out.first = release_named(json.at("releases").at(0).get<std::string>());
  for (const auto& [name, value] : json.at("classes").items()) out.classes.emplace(name, class_of(name, value));
  for (const auto& [path, rows] : json.at("scripts").items())
    for (const Json& row : rows) out.scripts[path].push_back({span_of(row), row.at("class").get<std::string>()});
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
