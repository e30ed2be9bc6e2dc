#include "estimate/beside.hpp"

#include <algorithm>

namespace oomplan {
namespace {

std::string roles_of(const GpuClass& cls, const Job& job, std::size_t process) {
  std::string out;
  for (const SeatOnGpu& seat : cls.seats)
    if (seat.process == process) out += (out.empty() ? "" : ", ") + job.roles[seat.role].name;
  return out;
}

/// The turn in which the phase takes most; the number of turns when it is in none.
std::size_t fullest_turn(const SharedReplay& replay, const ClassFold& fold, std::size_t phase, std::string_view label) {
  std::size_t at = replay.turns.size();
  Bytes most = -1;
  const auto offer = [&](std::size_t turn, Bytes device) {
    if (device > most) most = device, at = turn;
  };
  for (std::size_t t = 0; t < replay.turns.size(); ++t)
    for (const PhaseReplay& p : replay.turns[t].phases)
      if (p.phase == label) offer(t, p.device_peak + replay.turns[t].beside);
  for (const PhaseInTurn& p : fold.in_turns)
    if (p.phase == phase && p.turn < replay.turns.size() && replay.turns[p.turn].phases.empty())
      offer(p.turn, p.device + replay.turns[p.turn].beside);
  return at;
}

}  // namespace

void put_beside(GpuAnswer& answer, const Assembled& a, std::size_t c, const Job& job, GpuReading& reading,
                const SharedReplay& replay) {
  const GpuClass& cls = a.classes[c];
  std::vector<std::vector<std::vector<Bytes>>> levels(cls.processes);  // process -> turn of its own -> category
  for (std::size_t p = 0; p < cls.processes; ++p)
    if (const ProcessReading* process = reading.process(p)) levels[p] = process->at_turn_ends();
  for (std::size_t i = 0; i < answer.phases.size(); ++i) {
    Moment& moment = answer.phases[i];
    moment.beside.clear();
    const std::size_t turn = fullest_turn(replay, a.folds[c], i, moment.phase);
    if (turn == replay.turns.size()) continue;
    for (std::size_t p = 0; p < cls.processes; ++p) {
      if (p == replay.turns[turn].process) continue;
      std::size_t own = 0;  // turns that it has behind it
      ProcessShare share;
      for (std::size_t t = 0; t < turn; ++t)
        if (replay.turns[t].process == p) ++own, share.device = replay.turns[t].held;
      if (own == 0 || share.device <= 0) continue;
      share.roles = roles_of(cls, job, p);
      if (own <= levels[p].size()) share.by_category = levels[p][own - 1];
      moment.beside.push_back(std::move(share));
    }
  }
}

}  // namespace oomplan
