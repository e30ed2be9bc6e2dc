// What a field is where a config.json leaves it out: the default of the model_type's configuration class in transformers.
//
// models/class_defaults.json has them, written by benchmarks/oracle/class_defaults.py. Models whose code ships with their
// checkpoint have no row.
#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "catalog/fields.hpp"

namespace oomplan {

struct ClassDefaults {
  std::string name;     ///< the model_type, or "<model_type>.<key>" for a part of a config with a class of its own
  std::string version;  ///< of transformers
  Fields fields;
  std::set<std::string, std::less<>> nullable;  ///< fields whose default is not null that take null all the same
  std::map<std::string, std::string, std::less<>> aliases;
  bool whole_heads = false;     ///< refuses a hidden size that is no multiple of the heads, even where a head's size is stated
  bool tie_of_text = false;     ///< a text half that ties its embeddings ties the whole
  bool tied_inside = false;     ///< the text half alone says whether its embeddings are tied
  bool flat_text = false;       ///< a config without a text half has its fields beside the others
  bool may_be_another = false;  ///< a part of a config that may name another model_type
};

/// nullptr where transformers has no class of that name. Rows live as long as the program.
const ClassDefaults* class_defaults(std::string_view name);
/// Of the part of a config at `key`, whose own model_type is `type`.
const ClassDefaults* part_defaults(std::string_view model_type, std::string_view key, std::string_view type);

}  // namespace oomplan
