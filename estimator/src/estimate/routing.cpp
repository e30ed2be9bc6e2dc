#include "estimate/routing.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "layers/experts.hpp"
#include "training/plan.hpp"

namespace oomplan {

std::string routing_assumption(const Role& role) {
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
