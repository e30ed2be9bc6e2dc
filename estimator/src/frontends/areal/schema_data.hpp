// models/frameworks/areal.json in memory: rows that hold for a range of releases.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "frontends/areal/schema.hpp"

namespace oomplan::areal {

template <class T>
struct Ranged {
  ReleaseRange span;
  T value;
};
/// The row that holds in a release, or null.
template <class T>
const T* row_of(const std::vector<Ranged<T>>& rows, Release release) {
  for (const auto& row : rows)
    if (row.span.first <= release && release <= row.span.last) return &row.value;
  return nullptr;
}

struct SchemaClass {
  std::vector<Ranged<std::vector<std::string>>> bases;
  std::vector<std::string> keys;  ///< in the order of declaration
  std::map<std::string, std::vector<Ranged<Field>>, std::less<>> fields;
};

struct Renamed {
  std::string owner, key;
  Release until;  ///< the last release that means it
  std::string now;
};

struct SchemaData {
  Release first;
  std::map<std::string, SchemaClass, std::less<>> classes;
  std::map<std::string, std::vector<Ranged<std::string>>, std::less<>> scripts;  ///< path: root
  std::vector<Renamed> renames;
};

/// Read once, at the first call. Throws Defect when the file is not what the writer writes.
const SchemaData& schema_data();

}  // namespace oomplan::areal
