#include "catalog/class_defaults.hpp"

#include <utility>

#include "catalog/embedded.hpp"

namespace oomplan {
namespace {

using Table = std::map<std::string, ClassDefaults, std::less<>>;

Table read_table() {
  const Fields file = Fields::parse(embedded_text("class_defaults.json"), "models/class_defaults.json");
  const Fields classes = file.object("classes");
  Table out;
  for (const std::string& name : classes.keys()) {
    const Fields row = classes.object(name);
    ClassDefaults one{name,
                      file.text("transformers"),
                      row.object("fields"),
                      {},
                      {},
                      row.flag_or("whole_heads", false),
                      row.flag_or("tie_of_text", false),
                      row.flag_or("tied_inside", false),
                      row.flag_or("flat_text", false),
                      row.flag_or("may_be_another", false)};
    if (row.has("nullable"))
      for (std::string& field : row.texts("nullable")) one.nullable.insert(std::move(field));
    if (const auto aliases = row.object_if("aliases"))
      for (const std::string& alias : aliases->keys()) one.aliases[alias] = aliases->text(alias);
    out.emplace(name, std::move(one));
  }
  return out;
}

}  // namespace

const ClassDefaults* class_defaults(std::string_view name) {
  static const Table table = read_table();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

const ClassDefaults* part_defaults(std::string_view model_type, std::string_view key, std::string_view type) {
  const ClassDefaults* const fixed = class_defaults(std::string(model_type) + "." + std::string(key));
  if (fixed != nullptr && !fixed->may_be_another) return fixed;
  const ClassDefaults* const named = class_defaults(type);
  return named != nullptr ? named : fixed;
}

}  // namespace oomplan
