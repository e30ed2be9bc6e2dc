// Processes that take turns on one GPU, played to some place. A copy goes on from there by itself.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "program/process_player.hpp"
#include "program/replay.hpp"

namespace oomplan {

class SharedRun {
 public:
  /// REQUIRES: `gpu` outlives the run and its copies.
  SharedRun(const SharedGpu& gpu, const AllocatorSettings& settings);
  SharedRun(const SharedRun&);
  SharedRun& operator=(const SharedRun&) = delete;
  ~SharedRun() = default;

  /// Plays to the end, or to the request for which there is no memory.
  SharedReplay finish(Bytes device_limit, const ProcessPlayer::Between& between);

  /// On a device of any size from `granted` on and below `refused` it would have come here, too.
  Bytes granted() const;
  Bytes refused() const;
  /// As ProcessPlayer, of all processes.
  std::int64_t passed() const { return sum(&ProcessPlayer::passed); }
  std::int64_t played() const { return sum(&ProcessPlayer::played); }
  std::size_t blocks() const { return sum(&ProcessPlayer::blocks); }

 private:
  template <class Figure>
  Figure sum(Figure (ProcessPlayer::*of)() const) const {
    Figure total = 0;
    for (const auto& player : players_)
      if (player) total += (*player.*of)();
    return total;
  }
  void refuse(Bytes level);
  void play(ProcessPlayer&, Bytes device_limit, Bytes beside, const ProcessPlayer::Between&);
  void pass(std::size_t process, Bytes device_limit, Bytes beside);

  const SharedGpu& gpu_;
  std::vector<std::unique_ptr<ProcessPlayer>> players_;  ///< nullptr: not replayed
  std::vector<Bytes> held_;
  std::vector<std::size_t> next_held_;  ///< of the processes that are not replayed
  std::size_t turn_ = 0;
  bool in_turn_ = false;
  SharedReplay out_;
};

}  // namespace oomplan
