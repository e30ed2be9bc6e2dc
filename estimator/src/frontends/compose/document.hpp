// One YAML file as OmegaConf loads it: typed values with places, anchors and merge keys written out, keys once.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "frontends/compose/node.hpp"
#include "frontends/yaml.hpp"

namespace oomplan::compose {

struct Document {
  Node root;                           ///< a map; empty for an empty file
  std::optional<std::string> package;  ///< of a header "# @package NAME"
  std::vector<Problem> problems;       ///< the value in question is broken
};
/// Throws InputError when the text is no YAML, no map, or a header is malformed.
Document read_document(const std::string& text, const std::string& file);
/// A value typed as YAML behind "key=", as OmegaConf's dot lists have it. Problems are added.
Node read_value(const std::string& text, const std::string& key, std::vector<Problem>& problems);

/// A text that may hold "???" or interpolations; those are checked, and a broken one is told.
Node checked_text(Node text, std::vector<Problem>& problems);

}  // namespace oomplan::compose
