// Resolves the interpolations of a tree: ${a.b}, ${..b}, ${oc.env:X}, ${oc.select:a,1}, ... Nothing is executed, and no
// environment is read but the given map.
//
// All problems are told at once. Where OmegaConf would stop, the value becomes broken and a problem says why; an environment
// variable that is not given (and has no default), ${now:...} and ${hydra:...} make a value unknown, which is no problem. What
// depends on a missing value (???) is missing.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "frontends/compose/node.hpp"

namespace oomplan::compose {

using Environment = std::map<std::string, std::string>;

struct Resolved {
  Node root;  ///< without interpolations; the origin of a value is its literal, `via` the links in between
  std::vector<Problem> problems;
};
Resolved resolve(const Node& root, const Environment& environment);

}  // namespace oomplan::compose
