#include "frontends/areal/facts_json.hpp"

#include <nlohmann/json.hpp>

#include "units/json_text.hpp"

namespace oomplan::areal {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const FactValue& v) {
  switch (v.kind()) {
    case FactValue::Kind::null:
      return nullptr;
    case FactValue::Kind::boolean:
      return v.boolean();
    case FactValue::Kind::integer:
      return v.integer();
    case FactValue::Kind::real:
      return v.real();
    case FactValue::Kind::text:
      return v.text();
    case FactValue::Kind::list: {
      Json out = Json::array();
      for (const auto& item : v.items()) out.push_back(json_of(item));
      return out;
    }
    case FactValue::Kind::map: {
      Json out = Json::object();
      for (std::size_t i = 0; i < v.keys().size(); ++i) out[v.keys()[i]] = json_of(v.items()[i]);
      return out;
    }
  }
  return nullptr;
}

Json nested(const Meaning& m) {
  Json out = Json::object();
  for (const auto& fact : m.facts) {
    Json* node = &out;
    std::size_t begin = 0;
    for (std::size_t dot = fact.key.find('.'); dot != std::string::npos; dot = fact.key.find('.', begin)) {
      node = &(*node)[fact.key.substr(begin, dot - begin)];
      begin = dot + 1;
    }
    (*node)[fact.key.substr(begin)] = {{"v", json_of(fact.value)}, {"o", word(fact.by)}, {"w", fact.where}};
  }
  for (const auto& role : m.absent) out["absent_roles"][role.role] = {{"v", role.why}, {"o", "code"}, {"w", role.where}};
  return out;
}

}  // namespace

std::string facts_json(const ArealText& text) {
  Json out = nested(text.meaning);
  out["framework_version"] = name_of(text.release);
  out["config_class"] = text.root_class;
  out["refusals"] = Json::array();
  for (const auto& p : text.native.problems) out["refusals"].push_back(to_text(p));
  out["notes"] = Json::array();
  for (const auto& n : text.notes) out["notes"].push_back(n.text);
  return json_text(out);
}

}  // namespace oomplan::areal
