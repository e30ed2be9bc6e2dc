#include "frontends/trainers/settings.hpp"

#include <fmt/format.h>

namespace oomplan::trainers {

using compose::Node;

Origin TreeSettings::by_code(std::string source) const { return {Origin::Kind::derived, {}, code_, std::move(source)}; }

Origin TreeSettings::origin(std::string_view path) const {
  const Node* n = root_.at(path);
  Origin out = n == nullptr ? by_code(std::string(path)) : n->origin;
  out.place.path = path;
  return out;
}

void TreeSettings::put(std::string key, std::string value, Origin origin) {
  constexpr std::string_view kTrainer = "trainer.";
  if (key.starts_with(kTrainer)) key.replace(0, kTrainer.size() - 1, trainer_);
  if (!value.empty()) out_.settings.push_back({std::move(key), std::move(value), std::move(origin)});
}

void TreeSettings::refuse(std::string_view path, std::string what) {
  const Node* n = root_.at(path);
  out_.problems.push_back({place(path),
                           n != nullptr && n->kind != Node::Kind::null ? compose::describe(*n) : "",
                           {},
                           {},
                           fmt::format("not supported yet: {}", what),
                           ProblemKind::not_supported});
}

}  // namespace oomplan::trainers
