#include "frontends/structured/class_table.hpp"

#include <nlohmann/json.hpp>

namespace oomplan::structured {

using compose::Node;
using Json = nlohmann::ordered_json;

const ClassTable::Class& ClassTable::of(const std::string& name) {
  const auto [it, fresh] = classes_.try_emplace(name);
  if (!fresh) return it->second;
  it->second.fields = source_->fields(name);
  for (const Field* field : it->second.fields) it->second.keys.insert(field->key);
  return it->second;
}

const Node& ClassTable::by_default(const Field& field) {
  if (const auto known = defaults_.find(&field); known != defaults_.end()) return known->second;
  Node n;
  if (field.required)
    n.kind = Node::Kind::missing;
  else if (field.computed)
    n.kind = Node::Kind::unknown, n.text = "the default depends on the machine";
  else
    n = from_json(Json::parse(field.default_json), source_->origin_of(field));
  n.origin = source_->origin_of(field);
  return defaults_.emplace(&field, std::move(n)).first->second;
}

Node ClassTable::from_json(const Json& j, const Origin& origin) {
  Node n;
  n.origin = origin;
  if (j.is_boolean()) {
    n.kind = Node::Kind::boolean;
    n.boolean = j.get<bool>();
  } else if (j.is_number_integer()) {
    n.kind = Node::Kind::integer;
    n.integer = j.get<std::int64_t>();
  } else if (j.is_number()) {
    n.kind = Node::Kind::real;
    n.real = j.get<double>();
  } else if (j.is_string()) {
    n.kind = Node::Kind::text;
    n.text = j.get<std::string>();
  } else if (j.is_array()) {
    n.kind = Node::Kind::list;
    for (const auto& item : j) n.items.push_back(from_json(item, origin));
  } else if (j.is_object() && j.contains("class")) {
    n = made(j.at("class").get<std::string>(), j.value("set", Json::object()));
  } else if (j.is_object()) {
    n.kind = Node::Kind::map;
    for (const auto& [key, value] : j.items()) n.entries.push_back({key, Node::Kind::text, {}, from_json(value, origin)});
  }
  return n;
}

/// An object of a class, with arguments.
Node ClassTable::made(const std::string& name, const Json& set) {
  Node n;
  n.kind = Node::Kind::map;
  for (const Field* field : of(name).fields) {
    const auto given = set.find(field->key);
    n.entries.push_back({field->key,
                         Node::Kind::text,
                         {},
                         given != set.end() ? from_json(*given, source_->origin_of(*field)) : by_default(*field)});
  }
  return n;
}

}  // namespace oomplan::structured
