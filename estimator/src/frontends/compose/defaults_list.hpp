// From a primary config and the overrides that choose groups to the list of files to merge, in order, each with its package.
// As hydra/_internal/defaults_list.py (Hydra 1.3.2).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "frontends/compose/files.hpp"
#include "frontends/compose/override.hpp"

namespace oomplan::compose {

/// A file to merge.
struct Part {
  std::string config;
  std::string package;
  bool primary = false;
  Place place;  ///< of the element that asks for it
};
struct DefaultsList {
  std::vector<Part> parts;
  std::vector<Override> values;                ///< overrides that choose no group
  std::map<std::string, std::string> choices;  ///< by group ("db", "db@store"), null as ""
  std::vector<Problem> problems;               ///< then `parts` is not complete
  std::vector<Problem> in_files;               ///< values of the files that are broken
};
DefaultsList defaults_list(Repository& files, const std::string& primary, const std::vector<Override>& overrides);

}  // namespace oomplan::compose
