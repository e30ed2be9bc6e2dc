// OmegaConf.merge(OmegaConf.structured(Class), composed): the file's tree over the defaults of a release's classes, with every
// value checked against its field.
#pragma once
#include <string_view>
#include <vector>

#include "frontends/compose/node.hpp"
#include "frontends/structured/class_table.hpp"

namespace oomplan::structured {

struct OverDefaults {
  compose::Node root;             ///< interpolations are not resolved yet
  std::vector<Problem> problems;  ///< for which the framework stops
  std::vector<Problem> unknown;   ///< top-level keys that only the entry script's own class can have
};
/// `root_class`: "PPOConfig". `certain`: the entry script is known to use just this class, so that every unknown key is refused.
OverDefaults over_defaults(ClassTable&, std::string_view root_class, const compose::Node& composed, bool certain);

/// What a resolved interpolation may not have changed: values of a wrong type in the resolved tree.
std::vector<Problem> type_problems(ClassTable&, std::string_view root_class, const compose::Node& resolved);

}  // namespace oomplan::structured
