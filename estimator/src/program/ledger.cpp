#include "program/ledger.hpp"

#include <algorithm>

#include "program/flat_program.hpp"

namespace oomplan {
namespace {

/// `each`: hands every event of the program to a function, until it says false.
template <class Each>
std::vector<PhaseLedger> ledger(const Program& program, const Each& each) {
  std::vector<PhaseLedger> out;
  std::vector<Bytes> level(kCategories, 0);
  Bytes sum = 0;
  std::size_t at = 0;
  const auto enter = [&](const std::string& label) {
    const auto known = std::find_if(out.begin(), out.end(), [&](const PhaseLedger& l) { return l.phase == label; });
    at = static_cast<std::size_t>(known - out.begin());
    if (known == out.end()) out.push_back({label, -1, std::vector<Bytes>(kCategories, 0)});
  };
  const auto note = [&] {
    if (out.empty()) enter("");
    if (sum <= out[at].peak) return;
    out[at].peak = sum;
    out[at].by_category = level;
  };
  each([&](const Event& e) {
    if (e.kind == Program::Kind::mark) {
      enter(program.labels[e.site]);
      note();
      return true;
    }
    if (e.kind != Program::Kind::alloc && e.kind != Program::Kind::free) return true;
    if (!on_device(e.pool)) return true;
    const Bytes bytes = e.kind == Program::Kind::alloc ? e.bytes : -e.bytes;
    level[static_cast<std::size_t>(program.sites[e.site].category)] += bytes;
    sum += bytes;
    if (bytes > 0) note();
    return true;
  });
  std::erase_if(out, [](const PhaseLedger& l) { return l.peak <= 0; });
  return out;
}

}  // namespace

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

std::vector<PhaseLedger> ledger_by_phase(const Program& program) {
  return ledger(program, [&](const auto& see) { expand(program, see); });
}
std::vector<PhaseLedger> ledger_by_phase(const Program& program, const Events& events) {
  return ledger(program, [&](const auto& see) { seen_again(events, see); });
}

}  // namespace oomplan
