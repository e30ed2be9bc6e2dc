#include "program/replay.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace oomplan {

namespace {

constexpr std::size_t kLongTurn = 500;  // events; a state costs about as much as that many to look at
constexpr std::int64_t kManyTurns = 4;

/// Events that ops[begin, end) expand to.
std::int64_t expanded(const Program& program, const std::vector<Program::Op>& ops, std::size_t begin, std::size_t end) {
  std::int64_t count = 0, times = 1;
  std::vector<std::int64_t> around;
  for (std::size_t i = begin; i < end; ++i) {
    const auto& op = ops[i];
    if (op.kind == Program::Kind::loop) {
      around.push_back(times);
      times *= std::max<std::int64_t>(0, op.count);
    } else if (op.kind == Program::Kind::end) {
      times = around.back();
      around.pop_back();
    } else if (op.kind == Program::Kind::call) {
      const auto& body = program.definitions[op.site];
      count += times * expanded(program, body, 0, body.size());
    } else {
      count += times;
    }
  }
  return count;
}

std::vector<FlatProgram::Loop> outermost_loops(const Program& program) {
  std::vector<FlatProgram::Loop> loops;
  std::size_t at = 0;
  for (std::size_t i = 0; i < program.ops.size();) {
    const bool loop = program.ops[i].kind == Program::Kind::loop;
    std::size_t end = i + 1;
    for (int depth = loop; depth > 0; ++end)
      depth += program.ops[end].kind == Program::Kind::loop ? 1 : program.ops[end].kind == Program::Kind::end ? -1 : 0;
    const auto count = static_cast<std::size_t>(expanded(program, program.ops, i, end));
    const std::int64_t turns = program.ops[i].count;
    if (loop && turns >= kManyTurns && count / static_cast<std::size_t>(turns) >= kLongTurn)
      loops.push_back({at, count / static_cast<std::size_t>(turns), turns, turns - 1});
    at += count;
    i = end;
  }
  return loops;
}

/// Numbers that are handed out and come back, one bit each; the lowest goes first.
class Slots {
 public:
  std::int32_t take() {
    while (lowest_ < words_.size() && words_[lowest_] == 0) ++lowest_;
    if (lowest_ == words_.size()) words_.push_back(~std::uint64_t{0});
    const int bit = std::countr_zero(words_[lowest_]);
    words_[lowest_] &= words_[lowest_] - 1;
    const auto slot = static_cast<std::int32_t>(lowest_ * 64) + bit;
    count_ = std::max(count_, slot + 1);
    return slot;
  }
  void give_back(std::int32_t slot) {
    const auto word = static_cast<std::size_t>(slot) / 64;
    words_[word] |= std::uint64_t{1} << (slot % 64);
    lowest_ = std::min(lowest_, word);
  }
  /// How many were ever in use at once.
  std::int32_t count() const { return count_; }

 private:
  std::vector<std::uint64_t> words_;  // set bits: not in use
  std::size_t lowest_ = 0;            // no word before it has a set bit
  std::int32_t count_ = 0;
};

}  // namespace

/// `each`: hands every event of the program to a function, until it says false.
template <class Each>
void FlatProgram::flatten(const Program& program, const Each& each) {
  std::vector<std::int32_t> slot_of;  // by tensor number
  const auto count = static_cast<std::size_t>(expanded(program, program.ops, 0, program.ops.size()));
  events.reserve(count);
  slot_of.reserve(count / 2 + 1);
  // The lowest unused slot is taken: it depends on what lives alone, so turns that leave nothing new behind take equal slots.
  Slots unused;
  Bytes level = 0;
  const auto rounded = [](Bytes bytes) { return bytes == 0 ? 0 : round_up(bytes, 512); };
  each([&](const oomplan::Event& e) {
    Event flat;
    flat.bytes = e.bytes;
    switch (e.kind) {
      case Program::Kind::alloc:
        slot_of.push_back(-1);
        if (!on_device(e.pool) || e.bytes == 0) break;
        if (e.pool != Pool::torch) {
          flat.op = e.pool == Pool::driver ? Op::driver_alloc : Op::pausable_alloc;
          level += e.bytes;
          break;
        }
        flat.op = Op::torch_alloc;
        flat.slot = slot_of.back() = unused.take();
        flat.stream = program.sites[e.site].stream;
        level += rounded(e.bytes);
        break;
      case Program::Kind::free:
        if (!on_device(e.pool) || e.bytes == 0) break;
        flat.op = Op::device_free;
        if (e.pool == Pool::torch) {
          flat.op = Op::torch_free;
          flat.slot = slot_of[static_cast<std::size_t>(e.tensor)];
          unused.give_back(flat.slot);
          level -= rounded(e.bytes);
        } else {
          level -= e.bytes;
        }
        break;
      case Program::Kind::pause:
        flat.op = Op::device_free;
        level -= e.bytes;
        break;
      case Program::Kind::resume:
        flat.op = Op::resume;
        level += e.bytes;
        break;
      case Program::Kind::trim:
        flat.op = Op::trim;
        break;
      case Program::Kind::mark:
        flat.op = Op::mark;
        flat.slot = static_cast<std::int32_t>(e.site);
        break;
      default:
        return true;
    }
    peak = std::max(peak, level);
    events.push_back(flat);
    return true;
  });
  slots = unused.count();
}

void FlatProgram::find_steady_turns() {
  for (auto& loop : loops) {
    const auto turn = [&](std::int64_t n) {
      return events.begin() + static_cast<std::ptrdiff_t>(loop.first + loop.period * static_cast<std::size_t>(n));
    };
    while (loop.steady > 0 && std::equal(turn(loop.steady - 1), turn(loop.steady), turn(loop.steady))) --loop.steady;
  }
}

FlatProgram::FlatProgram(const Program& program) : loops(outermost_loops(program)), labels(program.labels) {
  flatten(program, [&](const auto& see) { expand(program, see); });
  find_steady_turns();
}
FlatProgram::FlatProgram(const Program& program, const Events& expanded_already)
    : loops(outermost_loops(program)), labels(program.labels) {
  flatten(program, [&](const auto& see) { seen_again(expanded_already, see); });
  find_steady_turns();
}

namespace {

class Player {
 public:
  Player(const FlatProgram& program, const AllocatorSettings& settings)
      : program_(program),
        allocator_(settings),
        blocks_(static_cast<std::size_t>(program.slots)),
        ages_(settings.garbage_collection_threshold > 0) {}

  Replay run() {
    const auto& events = program_.events;
    std::size_t at = 0;
    for (const auto& loop : program_.loops) {
      at = play_until(at, loop.first);
      if (out_.ok && !ages_) at = play_loop(loop);
      if (!out_.ok) break;
    }
    if (out_.ok) at = play_until(at, events.size());
    if (!out_.ok) {
      out_.failed_event = std::count_if(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(at),
                                        [](const auto& e) { return e.op != Op::mark && e.op != Op::trim; });
      out_.failed_phase = phase_ < 0 ? "" : program_.labels[static_cast<std::size_t>(phase_)];
      out_.failed_bytes = events[at].bytes;
    }
    leave_phase();
    const auto& c = allocator_.counters();
    out_.reserved_end = c.reserved;
    out_.outside_end = allocator_.outside();
    out_.refused = c.refused == std::numeric_limits<Bytes>::max() ? 0 : c.refused;
    return std::move(out_);
  }

 private:
  using Op = FlatProgram::Op;

  /// Plays events [at, end). Stops at the one for which there is no memory; returns where it stopped.
  std::size_t play_until(std::size_t at, std::size_t end) {
    for (; at < end; ++at) {
      if (!play(program_.events[at])) {
        out_.ok = false;
        break;
      }
    }
    return at;
  }

  /// Plays a loop until a turn leaves everything as it found it, and books the turns left. Slots and events of the steady turns
  /// are equal, so an equal state means equal turns from there on.
  std::size_t play_loop(const FlatProgram::Loop& loop) {
    constexpr std::int64_t kTries = 12;  // a loop whose state keeps changing is played without looking
    const auto start = [&](std::int64_t turn) { return loop.first + loop.period * static_cast<std::size_t>(turn); };
    std::vector<Bytes> before;
    std::vector<PhaseReplay> phases_before;
    std::int32_t phase_before = -1;
    Bytes outside_before = 0;
    std::size_t at = play_until(loop.first, start(loop.steady));
    for (std::int64_t turn = loop.steady; out_.ok && turn < loop.turns; ++turn) {
      if (turn - loop.steady > kTries) return play_until(at, start(loop.turns));
      leave_phase();
      auto shape = allocator_.shape(blocks_);
      // The same phase too: retries before the first mark of a turn are booked to the one in force.
      if (turn > loop.steady && phase_ == phase_before && allocator_.outside() == outside_before && shape == before) {
        for (std::size_t i = 0; i < out_.phases.size(); ++i) {
          const std::int64_t earlier = i < phases_before.size() ? phases_before[i].retries : 0;
          const std::int64_t more = (out_.phases[i].retries - earlier) * (loop.turns - turn);
          out_.phases[i].retries += more;
          out_.retries += more;
        }
        return start(loop.turns);
      }
      before = std::move(shape);
      phases_before = out_.phases;
      phase_before = phase_;
      outside_before = allocator_.outside();
      at = play_until(at, start(turn + 1));
    }
    return at;
  }

  bool play(const FlatProgram::Event& e) {
    switch (e.op) {
      case Op::torch_alloc: {
        auto& block = blocks_[static_cast<std::size_t>(e.slot)];
        block = allocator_.allocate(e.bytes, e.stream);
        return block != nullptr;
      }
      case Op::torch_free:
        allocator_.free(std::exchange(blocks_[static_cast<std::size_t>(e.slot)], nullptr));
        return true;
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
      case Op::mark:
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
      auto row = std::find_if(out_.phases.begin(), out_.phases.end(), [&](const PhaseReplay& p) { return p.phase == label; });
      if (row == out_.phases.end()) row = out_.phases.insert(row, PhaseReplay{label, 0, 0, 0, 0});
      row->allocated_peak = std::max(row->allocated_peak, c.allocated_peak);
      row->reserved_peak = std::max(row->reserved_peak, c.reserved_peak);
      row->device_peak = std::max(row->device_peak, c.device_peak);
      row->retries += retries;
    }
    allocator_.reset_peaks();
  }

  inline static const std::string kBefore;
  const FlatProgram& program_;
  CachingAllocator allocator_;
  std::vector<CachingAllocator::Block*> blocks_;
  Replay out_;
  bool ages_;  // garbage collection looks at them, so a state is more than its shape
  std::int32_t phase_ = -1;
  std::int64_t own_retries_ = 0, booked_retries_ = 0;
};

}  // namespace

Replay replay(const FlatProgram& program, const AllocatorSettings& settings) { return Player(program, settings).run(); }
Replay replay(const Program& program, const AllocatorSettings& settings) { return replay(FlatProgram(program), settings); }

// A run says more than what happens at its own limit. The device granted levels up to `device_peak` and refused those from
// `refused` on, so the run goes the same way at every limit from the one up to below the other: what was granted still is, what
// was refused still is. This holds for runs that failed as well.
const Replay& Replays::at(Bytes limit) {
  for (const Replay& r : known_)
    if (r.device_peak <= limit && (r.refused == 0 || limit < r.refused)) return r;
  settings_.device_limit = limit;
  return known_.emplace_back(replay(program_, settings_));
}

// Both ends of the search move to levels that occur. What is found lies above `low` at every moment: `low` fails.
std::optional<Bytes> Replays::needed_capacity(Bytes most) {
  constexpr Bytes kPage = 2 * kMiB;
  const Replay& roomy = this->roomy();
  if (!roomy.ok) return -1;
  Bytes low = program_.peak - 1;  // does not do
  while (true) {
    Bytes high = roomy.device_peak;  // does
    while (high - low > kPage) {
      const Bytes middle = low + (high - low) / 2;
      const Replay& r = at(middle);
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
