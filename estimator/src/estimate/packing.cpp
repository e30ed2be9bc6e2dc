#include "estimate/packing.hpp"

#include <fmt/format.h>

#include "training/megatron_areal.hpp"

namespace oomplan {

std::string packing_assumption(const Role& role, std::int64_t sequence) {
  const Trainer& t = role.trainer;
  if (role.engine != EngineKind::megatron || !t.loop.loss_by_sequence || role.kind == RoleKind::critic) return {};
  if (t.layout.context > 1) return {};  // nothing is copied
  const ArealCut cut = areal_cut(t, {.sequence = sequence});
  const std::string_view alone = t.layout.tensor == 1 ? "3.25" : cut.chunks > 0 ? "2.75" : "2";
  return fmt::format(
      "{}: {} sequences are taken to share a micro-batch, three at least; AReaL's loss copies each out of the padding, and its "
      "backward pass then holds {:.2f} times the fp32 logits: 3.5 with two sequences, {} with one",
      role.name, cut.sequences, 3 + 2.0 / static_cast<double>(cut.sequences), alone);
}

}  // namespace oomplan
