#include "frontends/oumi/settings.hpp"

#include <fmt/format.h>

namespace oomplan::oumi {

using compose::Node;

Origin OumiSettings::by_code(std::string source) { return {Origin::Kind::derived, {}, "Oumi's code", std::move(source)}; }

Origin OumiSettings::origin(std::string_view path) const {
  const Node* n = text_.root.at(path);
  if (n == nullptr) return by_code(std::string(path));
  Origin out = n->origin;
  out.place.path = path;
  return out;
}

void OumiSettings::put(std::string key, std::string value, Origin origin) {
  constexpr std::string_view kTrainer = "trainer.";
  if (key.starts_with(kTrainer)) key.replace(0, kTrainer.size() - 1, trainer_);
  if (!value.empty()) out_.settings.push_back({std::move(key), std::move(value), std::move(origin)});
}

void OumiSettings::copy(std::string key, std::string_view path) {
  const Node* n = text_.root.at(path);
  if (n != nullptr && n->kind != Node::Kind::null) put(std::move(key), compose::python_text(*n), origin(path));
}

void OumiSettings::flag(std::string key, std::string_view path) {
  const Node* n = text_.root.at(path);
  put(std::move(key), n != nullptr && n->kind == Node::Kind::boolean && n->boolean ? "true" : "false", origin(path));
}

void OumiSettings::elsewhere(std::string_view path, std::string why) {
  const Node* n = text_.root.at(path);
  out_.problems.push_back({place(path),
                           n != nullptr ? compose::describe(*n) : "",
                           "an engine on GPUs of this job: VLLM or NATIVE",
                           {},
                           std::move(why)});
}

void OumiSettings::refuse(std::string_view path, std::string what) {
  const Node* n = text_.root.at(path);
  out_.problems.push_back({place(path),
                           n != nullptr ? compose::describe(*n) : "",
                           {},
                           {},
                           fmt::format("not supported yet: {}", what),
                           ProblemKind::not_supported});
}

}  // namespace oomplan::oumi
