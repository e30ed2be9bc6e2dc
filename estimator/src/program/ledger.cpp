#include "program/ledger.hpp"

#include "program/flat_program.hpp"
#include "program/ledger_writer.hpp"

namespace oomplan {

std::vector<PhaseLedger> ledger_by_phase(const Program& program) {
  LedgerWriter out;
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark)
      out.enter(program.labels[e.site]);
    else if ((e.kind == Program::Kind::alloc || e.kind == Program::Kind::free) && on_device(e.pool))
      out.add(program.sites[e.site].category, e.kind == Program::Kind::alloc ? e.bytes : -e.bytes);
    return true;
  });
  return out.take();
}

std::vector<std::vector<Bytes>> levels_at_turn_ends(const Program& program) {
  std::vector<std::vector<Bytes>> out;
  std::vector<Bytes> level(kCategories, 0);
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark && program.labels[e.site] == kTurnEnd) out.push_back(level);
    const bool moves = e.kind == Program::Kind::alloc || e.kind == Program::Kind::free;
    if (moves && on_device(e.pool))
      level[static_cast<std::size_t>(program.sites[e.site].category)] += e.kind == Program::Kind::alloc ? e.bytes : -e.bytes;
    return true;
  });
  return out;
}

}  // namespace oomplan
