// A field of a framework's configuration class: its type, its default, its choices (models/frameworks/*.json).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace oomplan::structured {

/// any: a union of several types; nothing is known of what stands in it.
enum class FieldKind : std::uint8_t { integer, number, text, flag, list, dict, object, any };

struct FieldType {
  std::string text;  ///< "int?", "list[SchedulingSpec]", "FSDPEngineConfig"; '?': null is allowed
  FieldKind kind = FieldKind::any;
  bool optional = false;
  std::string of;  ///< object: its class; list: the type of an entry, "" unknown
};

/// null, or a value of one of the plain types. A default that is an object, a list or a dict is in Field::default_json alone.
using Scalar = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

struct Field {
  std::string owner;  ///< the class that declares it
  std::string key;
  FieldType type;
  bool required = false;             ///< there is no default
  bool computed = false;             ///< the default depends on the machine (a user's folder, an environment variable)
  Scalar value;                      ///< the default where it is plain; null otherwise
  std::string default_json;          ///< the default as JSON; {"class": C, "set": {...}} makes a C; "" when required or computed
  std::vector<std::string> choices;  ///< that the framework names, without null; empty: anything
  std::optional<std::int64_t> integer() const;  ///< the default
  std::optional<double> number() const;         ///< the default, of an integer too
  std::optional<bool> flag() const;
  std::optional<std::string> text() const;
};

/// A row of the JSON: {"type", "default" or "required" or "computed", "choices"}. Throws what the JSON library throws.
Field field_of(const std::string& owner, const std::string& key, const nlohmann::ordered_json& row);

}  // namespace oomplan::structured
