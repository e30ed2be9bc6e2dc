#include "frontends/areal/turns.hpp"

#include <algorithm>
#include <array>

namespace oomplan::areal {
namespace {

using compose::Node;

std::optional<Turns> found_in(const Node& n, std::string_view key, const std::string& path) {
  for (const auto& entry : n.entries) {
    std::string here = path.empty() ? entry.key : path + "." + entry.key;
    if (entry.key == key && entry.value.kind == Node::Kind::integer && entry.value.integer > 1)
      return Turns{std::move(here), &entry.value, entry.value.integer};
    if (auto below = found_in(entry.value, key, here)) return below;
  }
  return std::nullopt;
}

std::int64_t limit(const Fact* fact) { return fact != nullptr && fact->value.is_integer() ? fact->value.integer() : 0; }

}  // namespace

std::optional<Turns> turns_of(const Node& root) {
  if (auto turns = found_in(root, "max_turns", "")) return turns;
  const Node* steps = root.at("econfig.max_steps");  // of the environment: a step is no answer of the model
  if (steps == nullptr || steps->kind != Node::Kind::integer || steps->integer <= 1) return std::nullopt;
  return Turns{"econfig.max_steps", steps, 0};
}

std::int64_t longest_conversation(const Meaning& m, const Node& root) {
  const std::int64_t prompt = limit(m.find("job.max_prompt_length")), response = limit(m.find("job.max_response_length"));
  const auto turns = turns_of(root);
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (!turns || prompt <= 0 || response <= 0 || prompt > kMost || response > kMost) return 0;
  std::int64_t longest = turns->number > 0 ? prompt + std::min(turns->number, kMost) * response : INT64_MAX;
  const Node* engine = root.at("rollout.agent.engine_max_tokens");
  const std::array<std::int64_t, 3> limits{limit(m.find("job.max_total_length")), limit(m.find("roles.rollout.max_model_len")),
                                           engine != nullptr && engine->kind == Node::Kind::integer ? engine->integer : 0};
  for (const std::int64_t n : limits)
    if (n > 0) longest = std::min(longest, n);
  return longest == INT64_MAX ? 0 : longest;
}

}  // namespace oomplan::areal
