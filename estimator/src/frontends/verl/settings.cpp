#include "frontends/verl/settings.hpp"

#include <fmt/format.h>

namespace oomplan::verl {

Place VerlSettings::place(std::string_view fact) const {
  const ToldFact* f = m_.find(fact);
  return f != nullptr ? f->origin.place : Place{};
}

void VerlSettings::set(std::string key, std::string value, std::string_view fact) {
  if (value.empty()) return;
  const ToldFact* f = m_.find(fact);
  out_.settings.push_back(
      {std::move(key), std::move(value), f != nullptr ? f->origin : Origin{Origin::Kind::derived, {}, "verl's code", {}}});
}

void VerlSettings::put(std::string key, std::string value, Origin origin) {
  out_.settings.push_back({std::move(key), std::move(value), std::move(origin)});
}

void VerlSettings::set_at(std::string key, std::string value, std::string_view path) {
  const auto* n = text_.root.at(path);
  out_.settings.push_back(
      {std::move(key), std::move(value), n != nullptr ? n->origin : Origin{Origin::Kind::derived, {}, "verl's code", {}}});
}

void VerlSettings::copy(std::string key, std::string_view fact) {
  const ToldFact* f = m_.find(fact);
  if (f != nullptr && !f->value.is_null()) set(std::move(key), f->value.plain(), fact);
}

void VerlSettings::refuse(std::string_view fact, std::string what) {
  const ToldFact* f = m_.find(fact);
  Place place = f != nullptr ? f->origin.place : Place{};
  out_.problems.push_back({std::move(place),
                           f != nullptr && !f->value.is_null() ? fmt::format("'{}'", f->value.plain()) : "",
                           {},
                           {},
                           fmt::format("not supported yet: {}", what),
                           ProblemKind::not_supported});
}

void VerlSettings::refuse_key(std::string_view path, std::string what) {
  const auto* n = text_.root.at(path);
  Place place = n != nullptr ? n->origin.place : Place{};
  place.path = path;
  out_.problems.push_back({std::move(place),
                           n != nullptr ? compose::describe(*n) : "",
                           {},
                           {},
                           fmt::format("not supported yet: {}", what),
                           ProblemKind::not_supported});
}

void VerlSettings::fails(std::string_view path, std::string expected, std::string why) {
  const auto* n = text_.root.at(path);
  Place place = n != nullptr ? n->origin.place : Place{};
  place.path = path;
  out_.problems.push_back({std::move(place),
                           n != nullptr ? compose::describe(*n) : "",
                           std::move(expected),
                           {},
                           std::move(why),
                           ProblemKind::refused_by_framework});
}

void VerlSettings::lacking(std::string_view fact, std::string expected) {
  out_.problems.push_back(
      {place(fact), "nothing", std::move(expected), {}, "verl itself asks for it", ProblemKind::refused_by_framework});
}

std::string format_named(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  return std::string(name == "bfloat16"                     ? "bf16"
                     : name == "float16" || name == "half"  ? "fp16"
                     : name == "float32" || name == "float" ? "fp32"
                                                            : name);
}

std::string offloaded(bool parameters, bool optimizer) {
  return parameters && optimizer ? "[parameters, optimizer]" : parameters ? "[parameters]" : optimizer ? "[optimizer]" : "[]";
}

}  // namespace oomplan::verl
