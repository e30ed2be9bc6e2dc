// One process of a GPU, played through its allocator turn by turn. A player can be copied where it stands, and the copy goes on
// by itself: replays on devices of different sizes share their beginning.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "program/allocator.hpp"
#include "program/flat_program.hpp"
#include "program/replay.hpp"

namespace oomplan {

class ProcessPlayer {
 public:
  /// Called where the player may be copied: between turns of the outermost loops.
  using Between = std::function<void()>;

  /// REQUIRES: the program outlives the player and its copies.
  ProcessPlayer(const FlatProgram&, const AllocatorSettings&);
  ProcessPlayer(const ProcessPlayer&);
  ProcessPlayer& operator=(const ProcessPlayer&) = delete;
  ~ProcessPlayer() = default;

  /// The next turn, on a device of which others hold `beside`.
  void begin_turn(Bytes device_limit, Bytes beside);
  /// The device is of this size from here on; what it granted and refused before, one of this size would have, too.
  void go_on_with(Bytes device_limit);
  /// Plays the turn that was begun to its end, or to the request for which there is no memory. What the turn shows.
  TurnReplay finish_turn(const Between&);

  bool ok() const { return out_.ok; }
  /// What the process holds of the device.
  Bytes held() const { return allocator_.counters().reserved + allocator_.outside(); }
  /// The highest level of the device in the turn that was begun, `beside` with it.
  Bytes granted() const;
  /// The lowest level that the device refused; 0: nothing was refused.
  Bytes refused() const;
  /// Events from the first one: equal for two players of a program who stand at one place.
  std::int64_t passed() const { return ordinal_; }
  /// Events that were played, turns that were booked not among them.
  std::int64_t played() const { return played_; }
  /// Blocks in the allocator's books: what a copy costs.
  std::size_t blocks() const { return allocator_.blocks(); }

  Replay take();

 private:
  using Op = FlatProgram::Op;
  /// A loop behind its first turn.
  struct Again {
    std::size_t number = 0;     ///< of the loop
    std::int64_t together = 0;  ///< turns between two looks at the state
    std::int64_t left = 0;
    std::int64_t tries = 0;
    // at the last look
    std::vector<Bytes> shape = {};
    std::vector<PhaseReplay> phases = {};
    std::int32_t phase = -1;
    Bytes outside = 0;
    std::int64_t ordinal = 0;
  };

  void say_where();
  std::size_t play_until(std::size_t at, std::size_t end);
  std::size_t play_loops(std::size_t at, std::size_t end, std::size_t& loop, std::size_t end_loop);
  std::size_t play_turns(std::size_t number, std::int64_t turns);
  Again again(std::size_t number) const;
  std::size_t play_again(Again&);
  bool repeats(Again&);
  bool play(const FlatProgram::Event&);
  void leave_phase();
  void book(std::vector<PhaseReplay>& phases, const std::string& label, std::int64_t retries) const;

  const FlatProgram& program_;
  CachingAllocator allocator_;
  std::vector<CachingAllocator::Block*> blocks_;
  Replay out_;
  TurnReplay turn_;
  std::size_t at_ = 0, loop_ = 0, turns_ = 0;  // where it stands: the next event, loop and turn
  std::optional<Again> outermost_;             // the loop that it is in
  std::int64_t ordinal_ = 0;                   // events so far, marks and trims not regarded
  std::int64_t played_ = 0;
  bool ages_;  // garbage collection looks at them, so a state is more than its shape
  std::int32_t phase_ = -1;
  std::int64_t own_retries_ = 0, booked_retries_ = 0;
  int depth_ = 0;                     // loops around the one that is played
  const Between* between_ = nullptr;  // while a turn is played
};

}  // namespace oomplan
