#include "estimate/routing.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "layers/experts.hpp"
#include "training/plan.hpp"

namespace oomplan {

namespace {

/// Megatron's dispatcher sends rows to the ranks that hold their experts: how many arrive is data.
std::string megatron_routing(const Role& role) {
  const Megatron& m = role.trainer.megatron;
  const auto& runs = role.architecture->runs;
  if (std::none_of(runs.begin(), runs.end(), [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; }))
    return {};
  if (m.expert_capacity > 0)
    return fmt::format("{}: every expert has the rows of its capacity factor {}, whatever the routing", role.name,
                       m.expert_capacity);
  if (role.trainer.layout.expert == 1) return {};
  if (m.expert_imbalance > 1)
    return fmt::format("{}: the rank that is described gets {} times the rows of even routing, as expert_imbalance states",
                       role.name, m.expert_imbalance);
  return fmt::format(
      "{}: tokens are taken to be spread evenly over the ranks with experts; expert_imbalance states the fullest rank's share",
      role.name);
}

}  // namespace

std::string routing_assumption(const Role& role) {
  if (role.engine == EngineKind::megatron) return megatron_routing(role);
  const Trainer& t = role.trainer;
  const Architecture& a = *role.architecture;
  const PassOptions pass = train_pass(t, role.engine, a, role.kind == RoleKind::critic, t.tokens_per_micro_batch, true);
  const std::int64_t tokens = pass.kernels.routed_tokens;
  if (tokens == 0) return {};
  const auto routed = std::find_if(a.runs.begin(), a.runs.end(),
                                   [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; });
  const FeedForward& ff = routed->layer.feed_forward;
  const Spread spread(ff, tokens);
  return fmt::format(
      "{}: tokens are taken to be spread evenly over the experts: {} of {} rows for each of {}. Whatever the routing, all have "
      "{} "
      "rows together, which is what they keep for backward; one of them, and what stands only while it runs, has up to {}",
      role.name, spread.of(0), spread.rows, spread.hit, spread.rows, tokens);
}

}  // namespace oomplan
