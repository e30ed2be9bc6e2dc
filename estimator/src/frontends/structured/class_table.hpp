// The classes of one release with the defaults of their fields as nodes, made when first asked for and kept: a file is read many
// times with other arguments behind it, and what only the release says stays.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/structured/classes.hpp"

namespace oomplan::structured {

class ClassTable {
 public:
  explicit ClassTable(std::unique_ptr<const Classes> classes) : source_(std::move(classes)) {}

  struct Class {
    std::vector<const Field*> fields;  ///< as Classes::fields
    std::set<std::string_view> keys;   ///< of `fields`
  };
  const Classes& source() const { return *source_; }
  /// The reference stays good.
  const Class& of(const std::string& name);
  /// missing where the field is required, unknown where its default is computed. The reference stays good.
  const compose::Node& by_default(const Field&);

 private:
  compose::Node from_json(const nlohmann::ordered_json&, const Origin&);
  compose::Node made(const std::string& name, const nlohmann::ordered_json& set);

  std::unique_ptr<const Classes> source_;
  std::map<std::string, Class> classes_;
  std::map<const Field*, compose::Node> defaults_;
};

}  // namespace oomplan::structured
