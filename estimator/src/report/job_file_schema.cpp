#include "report/job_file_schema.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "job/knobs.hpp"
#include "job/names.hpp"
#include "job/role_names.hpp"
#include "units/json_text.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::ordered_json;

/// Numbers may be written with a unit: "16k", "1.5GiB".
Json with_units(Json number, const char* example) {
  return Json{
      {"anyOf", Json::array({std::move(number), Json{{"type", "string"}, {"pattern", "^[0-9]"}, {"examples", {example}}}})}};
}

/// To YAML a choice that looks like a number is one (2.11), and words are flags (no).
Json choices_of(const Knob& k) {
  Json out = Json::array();
  for (const auto& choice : k.choices) {
    out.push_back(std::string(choice));
    if (const auto number = read_number(choice)) out.push_back(*number.value);
    if (const auto flag = read_flag(choice)) out.push_back(*flag.value);
  }
  return Json{{"enum", std::move(out)}};
}

Json type_of(const Knob& k) {
  switch (k.type) {
    case KnobType::count:
      return with_units(Json{{"type", "integer"}, {"minimum", k.limits.least}, {"maximum", k.limits.most}}, "16k");
    case KnobType::bytes:
      return with_units(Json{{"type", "integer"}, {"minimum", 0}}, "1.5GiB");
    case KnobType::number:
      return k.most > k.least ? Json{{"type", "number"}, {"minimum", k.least}, {"maximum", k.most}} : Json{{"type", "number"}};
    case KnobType::flag:
      return Json{{"type", "boolean"}};
    case KnobType::choice:
      return choices_of(k);
    case KnobType::items:
      return Json{
          {"anyOf", Json::array({Json{{"type", "array"}, {"items", Json{{"type", "string"}}}}, Json{{"type", "string"}}})}};
    case KnobType::layout:
      return Json{{"type", "string"}, {"examples", {"d4", "d2t2"}}};
    case KnobType::text:
      return Json{{"type", {"string", "number"}}};
  }
  return Json::object();
}

Json schema_of(const Knob& k) {
  Json out = type_of(k);
  if (!k.zero.empty()) out = Json{{"anyOf", Json::array({std::move(out), Json{{"const", std::string(k.zero)}}})}};
  std::string text(k.help);
  if (!k.unit.empty()) text += " (" + std::string(k.unit) + ")";
  out["description"] = text + "; changes " + std::string(spelling(k.effect));
  return out;
}

/// "precision.storage" stands in a map of its own.
void put(Json& properties, std::string_view key, Json schema) {
  const auto dot = key.find('.');
  if (dot == std::string_view::npos) {
    properties[std::string(key)] = std::move(schema);
    return;
  }
  Json& map = properties[std::string(key.substr(0, dot))];
  if (map.is_null()) map = Json{{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
  put(map["properties"], key.substr(dot + 1), std::move(schema));
}

bool of_role(const Knob& k, RoleKind kind) {
  const bool serves = kind == RoleKind::rollout || kind == RoleKind::server;
  const bool learns = kind == RoleKind::actor || kind == RoleKind::critic || kind == RoleKind::trainer;
  if (k.of == KnobOf::job) return false;
  if (does_as_its_engine(kind) && (k.of == KnobOf::serves || k.of == KnobOf::trains)) return true;
  if (k.of == KnobOf::rewards) return kind == RoleKind::reward;
  if (k.of == KnobOf::serves) return serves;
  if (k.of == KnobOf::trains) return !serves;
  return k.of == KnobOf::role || learns;
}

}  // namespace

std::string job_file_schema() {
  Json properties = Json::object();
  properties["oomplan"] = Json{{"const", 1}, {"description", "version of the format"}};
  for (const Knob& k : knobs())
    if (k.of == KnobOf::job) put(properties, k.key, schema_of(k));
  Json more = Json::object();
  for (const auto& word : spellings<RoleKind>()) {
    Json role = Json::object();
    for (const Knob& k : knobs())
      if (of_role(k, *parse<RoleKind>(word))) put(role, k.key, schema_of(k));
    Json settings{{"type", "object"}, {"properties", std::move(role)}, {"additionalProperties", false}};
    if (word == spelling(RoleKind::teacher))
      more[fmt::format("^{}_[2-{}]$", word, kMostTeachers)] = Json{{"$ref", "#/properties/" + word}};
    properties[word] = std::move(settings);
    if (word == spelling(RoleKind::reference)) properties[std::string(kActorForward)] = Json{{"$ref", "#/properties/" + word}};
  }
  const Json schema{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                    {"title", "a job file of oomplan"},
                    {"type", "object"},
                    {"properties", std::move(properties)},
                    {"patternProperties", std::move(more)},
                    {"required", {"oomplan"}},
                    {"additionalProperties", false}};
  return json_text(schema) + "\n";
}

}  // namespace oomplan
