#include "frontends/areal/batches.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "units/sizes.hpp"

namespace oomplan::areal {
namespace {

std::int64_t whole(const Meaning& m, std::string_view key, std::int64_t otherwise) {
  const Fact* f = m.find(key);
  return f != nullptr && f->value.is_integer() ? f->value.integer() : otherwise;
}
std::int64_t whole(const compose::Node& root, const std::string& path, std::int64_t otherwise) {
  const auto* n = root.at(path);
  return n != nullptr && n->kind == compose::Node::Kind::integer ? n->integer : otherwise;
}
/// Prompts times the answers to each.
std::int64_t samples_of_batch(const Meaning& m) {
  const std::int64_t prompts = whole(m, "job.train_batch_prompts", 0), samples = whole(m, "job.samples_per_prompt", 1);
  if (prompts <= 0 || samples <= 0 || prompts > (1 << 30) || samples > (1 << 20)) return 0;
  return prompts * samples;
}

}  // namespace

std::int64_t sequences_together(const Meaning& m) { return m.kind == "dpo" || m.kind == "reward_model" ? 2 : 1; }

std::int64_t step_sequences(const Meaning& m, const compose::Node& root) {
  const std::int64_t parts = m.kind == "rl" ? whole(root, "actor.ppo_n_minibatches", 1) : 1;
  return parts <= 0 ? 0 : ceil_div(samples_of_batch(m), parts) * sequences_together(m);
}

std::int64_t rank_batch(const Meaning& m, const BuiltRole& r) {
  return ceil_div(samples_of_batch(m), std::max<std::int64_t>(1, r.part.layout.data)) * sequences_together(m);
}

std::int64_t rank_sequences(const Meaning& m, const compose::Node& root, const BuiltRole& r) {
  const std::int64_t together = sequences_together(m), ranks = std::max<std::int64_t>(1, r.part.layout.data);
  return ceil_div(step_sequences(m, root) / together, ranks) * together;
}

std::int64_t least_micro_batches(const Meaning& m, const compose::Node& root, const BuiltRole& r) {
  constexpr std::int64_t kMost = 1 << 30;  // more is refused later; products must not overflow
  std::int64_t least =
      std::clamp<std::int64_t>(whole(m, fmt::format("roles.{}.micro_batch.min_micro_batches", r.name), 1), 1, kMost);
  std::int64_t divisor = std::clamp<std::int64_t>(whole(root, r.path + ".mb_spec.n_mbs_divisor", 1), 1, kMost);
  const std::int64_t stages = r.part.layout.pipeline;
  if (r.part.backend == Backend::megatron && stages > 1) least = std::max(least, 2 * stages), divisor = stages;
  return round_up(least, divisor);
}

std::int64_t sequences_without_budget(const Meaning& m, const compose::Node& root, const BuiltRole& r) {
  const std::int64_t together = sequences_together(m);
  return ceil_div(rank_sequences(m, root, r) / together, least_micro_batches(m, root, r)) * together;
}

}  // namespace oomplan::areal
