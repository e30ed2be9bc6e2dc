#include "program/ledger.hpp"

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

}  // namespace oomplan
