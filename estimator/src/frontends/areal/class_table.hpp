// The classes of one release with the defaults of their fields as nodes, made when first asked for and kept: a file is read many
// times with other arguments behind it, and what only the release says stays.
#pragma once
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "frontends/areal/schema.hpp"
#include "frontends/compose/node.hpp"

namespace oomplan::areal {

class ClassTable {
 public:
  explicit ClassTable(const Schema& schema) : schema_(schema) {}

  struct Class {
    std::vector<const Field*> fields;  ///< as Schema::fields
    std::set<std::string_view> keys;   ///< of `fields`
  };
  const Schema& schema() const { return schema_; }
  /// The reference stays good.
  const Class& of(const std::string& name);
  /// missing where the field is required, unknown where its default is computed. The reference stays good.
  const compose::Node& by_default(const Field&);

 private:
  Origin origin_of(const Field&) const;
  compose::Node from_json(const nlohmann::ordered_json&, const Origin&);
  compose::Node made(const std::string& name, const nlohmann::ordered_json& set);

  Schema schema_;
  std::map<std::string, Class> classes_;
  std::map<const Field*, compose::Node> defaults_;
};

}  // namespace oomplan::areal
