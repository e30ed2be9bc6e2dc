#include "program/replay.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "units/interruption.hpp"

namespace oomplan {

namespace {

class Player {
 public:
  Player(const FlatProgram& program, const AllocatorSettings& settings)
      : program_(program),
        allocator_(settings),
        blocks_(static_cast<std::size_t>(program.slots)),
        ages_(settings.garbage_collection_threshold > 0) {}

  /// Plays to the next end of a turn, on a device of which others hold `beside`. What the turn shows: `phases` of its own.
  TurnReplay turn(Bytes device_limit, Bytes beside) {
    turn_ = {};
    turn_.beside = beside;
    allocator_.set_device_limit(device_limit - beside);
    const std::size_t end = program_.turn_ends[turns_++];
    at_ = play_loops(at_, end, loop_, program_.loops.size());
    if (!out_.ok) say_where();
    leave_phase();
    phase_ = -1;
    if (const Bytes refused = allocator_.counters().refused; refused != std::numeric_limits<Bytes>::max())
      out_.refused = out_.refused == 0 ? refused + beside : std::min(out_.refused, refused + beside);
    return std::move(turn_);
  }
  bool ok() const { return out_.ok; }
  /// What the process holds of the device.
  Bytes held() const { return allocator_.counters().reserved + allocator_.outside(); }

  Replay take() {
    out_.reserved_end = allocator_.counters().reserved;
    out_.outside_end = allocator_.outside();
    return std::move(out_);
  }

 private:
  using Op = FlatProgram::Op;

  void say_where() {
    out_.failed_event = ordinal_;
    out_.failed_phase = phase_ < 0 ? "" : program_.labels[static_cast<std::size_t>(phase_)];
    out_.failed_bytes = program_.events[at_].bytes;
  }

  /// Plays events [at, end). Stops at the one for which there is no memory; returns where it stopped.
  std::size_t play_until(std::size_t at, std::size_t end) {
    const std::size_t from = at;
    for (; at < end; ++at) {
      interruption_point_at(at);
      if (!play(program_.events[at])) {
        out_.ok = false;
        break;
      }
    }
    const auto& uncounted = program_.uncounted;
    const auto before = [&](std::size_t event) { return std::lower_bound(uncounted.begin(), uncounted.end(), event); };
    ordinal_ += static_cast<std::int64_t>(at - from) - (before(at) - before(from));
    return at;
  }
  /// The same with the loops in it: those from number `loop` on, before number `end_loop`.
  std::size_t play_loops(std::size_t at, std::size_t end, std::size_t& loop, std::size_t end_loop) {
    for (; out_.ok && loop < end_loop && program_.loops[loop].end <= end; ++loop) {
      at = play_until(at, program_.loops[loop].end);
      if (out_.ok) at = play_again(loop);
    }
    return out_.ok ? play_until(at, end) : at;
  }
  std::size_t play_turns(std::size_t number, std::int64_t turns) {
    const FlatProgram::Loop& loop = program_.loops[number];
    std::size_t at = loop.end;
    for (std::int64_t turn = 0; out_.ok && turn < turns; ++turn) {
      std::size_t inside = loop.inside;
      at = play_loops(loop.first, loop.end, inside, number);
    }
    return at;
  }

  /// Plays a loop until some turns leave everything as they found it, and books the turns left. Slots and events of the turns are
  /// equal, so an equal state means equal turns from there on.
  std::size_t play_again(std::size_t number) {
    constexpr std::int64_t kLook = 500;  // events; a state costs about as much as that many to look at
    constexpr std::int64_t kTries = 12;  // a loop whose state keeps changing is played without looking
    const FlatProgram::Loop& loop = program_.loops[number];
    const std::int64_t together = std::max<std::int64_t>(1, kLook / static_cast<std::int64_t>(loop.end - loop.first));
    std::int64_t left = loop.more;
    if (ages_ || left < 3 * together) return play_turns(number, left);
    std::vector<Bytes> before;
    std::vector<PhaseReplay> phases_before;
    std::int32_t phase_before = -1;
    Bytes outside_before = 0;
    std::int64_t ordinal_before = 0;
    for (std::int64_t tries = 0; out_.ok && left >= together && tries <= kTries; ++tries) {
      leave_phase();
      auto shape = allocator_.shape(blocks_);
      // The same phase too: retries before the first mark of a turn are booked to the one in force.
      if (tries > 0 && phase_ == phase_before && allocator_.outside() == outside_before && shape == before) {
        const std::int64_t skipped = left / together;
        for (std::size_t i = 0; i < out_.phases.size(); ++i) {
          const std::int64_t earlier = i < phases_before.size() ? phases_before[i].retries : 0;
          const std::int64_t more = (out_.phases[i].retries - earlier) * skipped;
          out_.phases[i].retries += more;
          out_.retries += more;
        }
        ordinal_ += (ordinal_ - ordinal_before) * skipped;
        left -= skipped * together;
        break;
      }
      before = std::move(shape);
      phases_before = out_.phases;
      phase_before = phase_;
      outside_before = allocator_.outside();
      ordinal_before = ordinal_;
      left -= together;
      if (const std::size_t at = play_turns(number, together); !out_.ok) return at;
    }
    return play_turns(number, left);
  }

  bool play(const FlatProgram::Event& e) {
    switch (e.op) {
      case Op::torch_alloc: {
        if (e.in_flight > 0) allocator_.complete_but(e.in_flight);
        auto& block = blocks_[static_cast<std::size_t>(e.slot)];
        block = allocator_.allocate(e.bytes, e.stream);
        return block != nullptr;
      }
      case Op::torch_free: {
        auto* block = std::exchange(blocks_[static_cast<std::size_t>(e.slot)], nullptr);
        e.in_flight > 0 ? allocator_.free_later(block) : allocator_.free(block);
        return true;
      }
      case Op::driver_alloc:
      case Op::resume:
        return allocator_.set_outside(allocator_.outside() + e.bytes);
      case Op::pausable_alloc:
        if (allocator_.set_outside(allocator_.outside() + e.bytes)) return true;
        allocator_.empty_cache();
        ++own_retries_;
        return allocator_.set_outside(allocator_.outside() + e.bytes);
      case Op::device_free:
        return allocator_.set_outside(allocator_.outside() - e.bytes);
      case Op::trim:
        allocator_.empty_cache();
        return true;
      case Op::segments:
        allocator_.set_expandable_segments(e.bytes != 0);
        return true;
      case Op::mark:
        if (program_.labels[static_cast<std::size_t>(e.slot)] == kTurnEnd) return true;
        allocator_.complete_all();
        leave_phase();
        phase_ = e.slot;
        return true;
      case Op::host:
        return true;
    }
    return true;
  }

  /// Books what happened since the last mark.
  void leave_phase() {
    const auto& c = allocator_.counters();
    const std::int64_t retries = c.retries + own_retries_ - booked_retries_;
    booked_retries_ += retries;
    out_.retries += retries;
    out_.allocated_peak = std::max(out_.allocated_peak, c.allocated_peak);
    out_.requested_peak = std::max(out_.requested_peak, c.requested_peak);
    out_.reserved_peak = std::max(out_.reserved_peak, c.reserved_peak);
    out_.device_peak = std::max(out_.device_peak, c.device_peak);
    if (phase_ >= 0 || c.device_peak > 0) {
      const std::string& label = phase_ < 0 ? kBefore : program_.labels[static_cast<std::size_t>(phase_)];
      book(out_.phases, label, retries);
      book(turn_.phases, label, retries);
    }
    allocator_.reset_peaks();
  }

  void book(std::vector<PhaseReplay>& phases, const std::string& label, std::int64_t retries) const {
    const auto& c = allocator_.counters();
    auto row = std::find_if(phases.begin(), phases.end(), [&](const PhaseReplay& p) { return p.phase == label; });
    if (row == phases.end()) row = phases.insert(row, PhaseReplay{label, 0, 0, 0, 0});
    row->allocated_peak = std::max(row->allocated_peak, c.allocated_peak);
    row->reserved_peak = std::max(row->reserved_peak, c.reserved_peak);
    row->device_peak = std::max(row->device_peak, c.device_peak);
    row->retries += retries;
  }

  inline static const std::string kBefore;
  const FlatProgram& program_;
  CachingAllocator allocator_;
  std::vector<CachingAllocator::Block*> blocks_;
  Replay out_;
  TurnReplay turn_;
  std::size_t at_ = 0, loop_ = 0, turns_ = 0;  // where it stands: the next event, loop and turn
  std::int64_t ordinal_ = 0;                   // events so far, marks and trims not regarded
  bool ages_;                                  // garbage collection looks at them, so a state is more than its shape
  std::int32_t phase_ = -1;
  std::int64_t own_retries_ = 0, booked_retries_ = 0;
};

}  // namespace

Replay replay(const FlatProgram& program, const AllocatorSettings& settings) {
  return std::move(replay(SharedGpu{{{&program}}, {0}}, settings).processes.front());
}
Replay replay(const Program& program, const AllocatorSettings& settings) { return replay(FlatProgram(program), settings); }

SharedReplay replay(const SharedGpu& gpu, const AllocatorSettings& settings) {
  const std::size_t processes = gpu.processes.size();
  std::vector<std::unique_ptr<Player>> players(processes);
  for (std::size_t p = 0; p < processes; ++p)
    if (gpu.processes[p].program != nullptr) players[p] = std::make_unique<Player>(*gpu.processes[p].program, settings);
  SharedReplay out;
  std::vector<std::size_t> next(processes);
  std::vector<Bytes> held(processes);
  const auto refuse = [&out](Bytes level) { out.refused = out.refused == 0 ? level : std::min(out.refused, level); };
  for (const std::size_t p : gpu.turns) {
    const Bytes beside = std::accumulate(held.begin(), held.end(), Bytes{0}) - held[p];
    if (Player* player = players[p].get()) {
      out.turns.push_back(player->turn(settings.device_limit, beside));
      out.ok = player->ok();
      held[p] = player->held();
    } else {
      out.turns.push_back({p, beside, {}, 0});
      const Bytes behind = gpu.processes[p].held[next[p]++];
      out.ok = beside + behind <= settings.device_limit;
      if (out.ok)
        held[p] = behind;
      else
        refuse(beside + behind);
    }
    TurnReplay& turn = out.turns.back();
    turn.process = p;
    turn.held = held[p];
    out.device_peak = std::max(out.device_peak, beside + held[p]);
    for (const PhaseReplay& phase : turn.phases) out.device_peak = std::max(out.device_peak, beside + phase.device_peak);
    if (out.ok) continue;
    out.failed_process = p;
    break;
  }
  for (const auto& player : players) {
    out.processes.push_back(player ? player->take() : Replay{});
    if (const Bytes refused = out.processes.back().refused; refused > 0) refuse(refused);
  }
  return out;
}

// A run says more than what happens at its own limit. The device granted levels up to `device_peak` and refused those from
// `refused` on, so the run goes the same way at every limit from the one up to below the other: what was granted still is, what
// was refused still is. This holds for runs that failed as well.
const SharedReplay& Replays::at(Bytes limit) {
  for (const SharedReplay& r : known_)
    if (r.device_peak <= limit && (r.refused == 0 || limit < r.refused)) return r;
  settings_.device_limit = limit;
  return known_.emplace_back(replay(gpu_, settings_));
}

// Both ends of the search move to levels that occur. What is found lies above `low` at every moment: `low` fails.
std::optional<Bytes> Replays::needed_capacity(Bytes most, Bytes fails) {
  constexpr Bytes kPage = 2 * kMiB;
  const SharedReplay& roomy = this->roomy();
  if (!roomy.ok) return -1;
  Bytes low = fails;  // does not do
  for (const auto& process : gpu_.processes)
    if (process.program != nullptr) low = std::max(low, process.program->peak - 1);
  while (true) {
    Bytes high = roomy.device_peak;  // does
    while (high - low > kPage) {
      const Bytes middle = low + (high - low) / 2;
      const SharedReplay& r = at(middle);
      (r.ok ? high : low) = r.ok ? r.device_peak : r.refused - 1;
      if (low >= most) return std::nullopt;
    }
    if (high == roomy.device_peak || at(high + kPage).ok) return high;
    low = high + kPage;
  }
}
Bytes needed_capacity(const FlatProgram& program, const AllocatorSettings& settings) {
  return *Replays(program, settings).needed_capacity();
}
Bytes needed_capacity(const Program& program, const AllocatorSettings& settings) {
  return needed_capacity(FlatProgram(program), settings);
}

}  // namespace oomplan
