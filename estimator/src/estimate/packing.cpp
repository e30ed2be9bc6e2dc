#include "estimate/packing.hpp"

#include <fmt/format.h>

#include "training/megatron_areal.hpp"

namespace oomplan {

std::string packing_assumption(const Role& role, std::int64_t sequence) {
  const Trainer& t = role.trainer;
  if (role.engine != EngineKind::megatron || t.framework != Framework::areal || role.kind == RoleKind::critic) return {};
  if (t.layout.context > 1) return {};  // nothing is copied
  const std::int64_t n = areal_cut(t, {.sequence = sequence}).sequences;
  return fmt::format(
      "{}: {} sequences are taken to share a micro-batch, three at least; AReaL's loss copies each out of the padding, and its "
      "backward pass then holds {:.2f} times the fp32 logits: 3.5 with two sequences, {} with one",
      role.name, n, 3 + 2.0 / static_cast<double>(n), t.layout.tensor > 1 ? "2.75" : "3.25");
}

}  // namespace oomplan
