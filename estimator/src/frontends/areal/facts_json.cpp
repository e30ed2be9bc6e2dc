#include "frontends/areal/facts_json.hpp"

#include <nlohmann/json.hpp>

#include "units/json_text.hpp"

namespace oomplan::areal {

std::string facts_json(const ArealText& text) {
  nlohmann::ordered_json out = facts_object(text.meaning.facts);
  for (const auto& role : text.meaning.absent)
    out["absent_roles"][role.role] = {{"v", role.why}, {"o", "code"}, {"w", role.where}};
  out["framework_version"] = name_of(text.release);
  out["config_class"] = text.root_class;
  out["refusals"] = nlohmann::ordered_json::array();
  for (const auto& p : text.native.problems) out["refusals"].push_back(to_text(p));
  out["notes"] = nlohmann::ordered_json::array();
  for (const auto& n : text.notes) out["notes"].push_back(n.text);
  return json_text(out);
}

}  // namespace oomplan::areal
