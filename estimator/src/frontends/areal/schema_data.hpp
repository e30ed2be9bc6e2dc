// models/frameworks/areal.json in memory. Positions of releases are their indices.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "frontends/areal/schema.hpp"

namespace oomplan::areal {

struct Renamed {
  std::string owner, key;
  Release until;  ///< the last release that means it
  std::string now;
};

struct SchemaData {
  Release first;
  structured::ReleasedClasses classes;
  std::map<std::string, std::vector<structured::Ranged<std::string>>, std::less<>> scripts;  ///< path: root
  std::vector<Renamed> renames;
};

/// Read once, at the first call. Throws Defect when the file is not what the writer writes.
const SchemaData& schema_data();

}  // namespace oomplan::areal
