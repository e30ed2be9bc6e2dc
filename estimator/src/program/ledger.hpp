// The ledger of a program: device bytes per category at the highest moment of each phase.
#pragma once
#include <string>
#include <vector>

#include <oomplan/program.hpp>

namespace oomplan {

struct PhaseLedger {
  std::string phase;               ///< equal labels are one phase
  Bytes peak = 0;                  ///< device level
  std::vector<Bytes> by_category;  ///< kCategories entries, adding up to `peak`
};
/// In the order of first appearance; "" before the first mark.
std::vector<PhaseLedger> ledger_by_phase(const Program&);

/// Device bytes per category behind every end of a turn (kTurnEnd), in order.
std::vector<std::vector<Bytes>> levels_at_turn_ends(const Program&);

}  // namespace oomplan
