#include "frontends/structured/field.hpp"

#include <nlohmann/json.hpp>

namespace oomplan::structured {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace

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

}  // namespace oomplan::structured
