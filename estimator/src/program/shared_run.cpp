#include "program/shared_run.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace oomplan {

SharedRun::SharedRun(const SharedGpu& gpu, const AllocatorSettings& settings)
    : gpu_(gpu), held_(gpu.processes.size()), next_held_(gpu.processes.size()) {
  for (const auto& p : gpu.processes)
    players_.push_back(p.program ? std::make_unique<ProcessPlayer>(*p.program, settings) : nullptr);
}

SharedRun::SharedRun(const SharedRun& o)
    : gpu_(o.gpu_), held_(o.held_), next_held_(o.next_held_), turn_(o.turn_), in_turn_(o.in_turn_), out_(o.out_) {
  for (const auto& player : o.players_) players_.push_back(player ? std::make_unique<ProcessPlayer>(*player) : nullptr);
}

SharedReplay SharedRun::finish(Bytes device_limit, const ProcessPlayer::Between& between) {
  for (; out_.ok && turn_ < gpu_.turns.size(); ++turn_) {
    const std::size_t p = gpu_.turns[turn_];
    const Bytes beside = std::accumulate(held_.begin(), held_.end(), Bytes{0}) - held_[p];
    if (players_[p])
      play(*players_[p], device_limit, beside, between);
    else
      pass(p, device_limit, beside);
    TurnReplay& turn = out_.turns.back();
    turn.process = p;
    turn.held = held_[p];
    out_.device_peak = std::max(out_.device_peak, beside + held_[p]);
    for (const PhaseReplay& phase : turn.phases) out_.device_peak = std::max(out_.device_peak, beside + phase.device_peak);
    if (!out_.ok) out_.failed_process = p;
  }
  for (const auto& player : players_) {
    out_.processes.push_back(player ? player->take() : Replay{});
    refuse(out_.processes.back().refused);
  }
  return std::move(out_);
}

Bytes SharedRun::granted() const {
  return in_turn_ ? std::max(out_.device_peak, players_[gpu_.turns[turn_]]->granted()) : out_.device_peak;
}

Bytes SharedRun::refused() const {
  Bytes lowest = out_.refused > 0 ? out_.refused : std::numeric_limits<Bytes>::max();
  for (const auto& player : players_)
    if (player && player->refused() > 0) lowest = std::min(lowest, player->refused());
  return lowest;
}

void SharedRun::refuse(Bytes level) {
  if (level > 0) out_.refused = out_.refused == 0 ? level : std::min(out_.refused, level);
}

void SharedRun::play(ProcessPlayer& player, Bytes device_limit, Bytes beside, const ProcessPlayer::Between& between) {
  if (in_turn_)
    player.go_on_with(device_limit);
  else
    player.begin_turn(device_limit, beside);
  in_turn_ = true;
  out_.turns.push_back(player.finish_turn(between));
  in_turn_ = false;
  out_.ok = player.ok();
  held_[gpu_.turns[turn_]] = player.held();
}

/// The turn of a process that is not replayed.
void SharedRun::pass(std::size_t process, Bytes device_limit, Bytes beside) {
  out_.turns.push_back({process, beside, {}, 0});
  const Bytes behind = gpu_.processes[process].held[next_held_[process]++];
  out_.ok = beside + behind <= device_limit;
  if (out_.ok)
    held_[process] = behind;
  else
    refuse(beside + behind);
}

}  // namespace oomplan
