#include "program/process_player.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "units/interruption.hpp"

namespace oomplan {

ProcessPlayer::ProcessPlayer(const FlatProgram& program, const AllocatorSettings& settings)
    : program_(program),
      allocator_(settings),
      blocks_(static_cast<std::size_t>(program.slots)),
      ages_(settings.garbage_collection_threshold > 0) {}

ProcessPlayer::ProcessPlayer(const ProcessPlayer& o)
    : program_(o.program_),
      allocator_(o.allocator_),
      blocks_(o.blocks_),
      out_(o.out_),
      turn_(o.turn_),
      at_(o.at_),
      loop_(o.loop_),
      turns_(o.turns_),
      outermost_(o.outermost_),
      ordinal_(o.ordinal_),
      played_(o.played_),
      ages_(o.ages_),
      phase_(o.phase_),
      own_retries_(o.own_retries_),
      booked_retries_(o.booked_retries_) {
  for (auto& block : blocks_)
    if (block != nullptr) block = allocator_.twin(*block);
}

void ProcessPlayer::begin_turn(Bytes device_limit, Bytes beside) {
  turn_ = {};
  turn_.beside = beside;
  allocator_.set_device_limit(device_limit - beside);
  ++turns_;
}

void ProcessPlayer::go_on_with(Bytes device_limit) {
  out_.refused = refused();
  allocator_.set_device_limit(device_limit - turn_.beside);
}

TurnReplay ProcessPlayer::finish_turn(const Between& between) {
  between_ = between ? &between : nullptr;
  const std::size_t end = program_.turn_ends[turns_ - 1];
  if (outermost_) {  // a copy goes on in the loop where it was made
    at_ = play_again(*outermost_);
    outermost_.reset();
    ++loop_;
  }
  at_ = play_loops(at_, end, loop_, program_.loops.size());
  between_ = nullptr;
  if (!out_.ok) say_where();
  leave_phase();
  phase_ = -1;
  out_.refused = refused();
  return std::move(turn_);
}

Bytes ProcessPlayer::granted() const {
  Bytes most = allocator_.counters().device_peak;
  for (const PhaseReplay& phase : turn_.phases) most = std::max(most, phase.device_peak);
  return most + turn_.beside;
}

Bytes ProcessPlayer::refused() const {
  const Bytes refused = allocator_.counters().refused;
  if (refused == std::numeric_limits<Bytes>::max()) return out_.refused;
  return out_.refused == 0 ? refused + turn_.beside : std::min(out_.refused, refused + turn_.beside);
}

Replay ProcessPlayer::take() {
  out_.reserved_end = allocator_.counters().reserved;
  out_.outside_end = allocator_.outside();
  return std::move(out_);
}

void ProcessPlayer::say_where() {
  out_.failed_event = ordinal_;
  out_.failed_phase = phase_ < 0 ? "" : program_.labels[static_cast<std::size_t>(phase_)];
  out_.failed_bytes = program_.events[at_].bytes;
}

/// Plays events [at, end). Stops at the one for which there is no memory; returns where it stopped.
std::size_t ProcessPlayer::play_until(std::size_t at, std::size_t end) {
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
  played_ += static_cast<std::int64_t>(at - from);
  return at;
}

/// The same with the loops in it: those from number `loop` on, before number `end_loop`.
std::size_t ProcessPlayer::play_loops(std::size_t at, std::size_t end, std::size_t& loop, std::size_t end_loop) {
  for (; out_.ok && loop < end_loop && program_.loops[loop].end <= end; ++loop) {
    at = play_until(at, program_.loops[loop].end);
    if (!out_.ok) return at;
    if (depth_ > 0) {
      Again state = again(loop);
      at = play_again(state);
    } else {
      at = play_again(outermost_.emplace(again(loop)));
      outermost_.reset();
    }
  }
  return out_.ok ? play_until(at, end) : at;
}

std::size_t ProcessPlayer::play_turns(std::size_t number, std::int64_t turns) {
  const FlatProgram::Loop& loop = program_.loops[number];
  std::size_t at = loop.end;
  ++depth_;
  for (std::int64_t turn = 0; out_.ok && turn < turns; ++turn) {
    std::size_t inside = loop.inside;
    at = play_loops(loop.first, loop.end, inside, number);
  }
  --depth_;
  return at;
}

ProcessPlayer::Again ProcessPlayer::again(std::size_t number) const {
  constexpr std::int64_t kLook = 500;  // events; a state costs about as much as that many to look at
  const FlatProgram::Loop& loop = program_.loops[number];
  const std::int64_t together = std::max<std::int64_t>(1, kLook / static_cast<std::int64_t>(loop.end - loop.first));
  Again out{number, together, loop.more};
  if (ages_ || out.left < 3 * together) out.tries = std::numeric_limits<std::int64_t>::max();
  return out;
}

/// Plays a loop until some turns leave everything as they found it, and books the turns left. Slots and events of the turns are
/// equal, so an equal state means equal turns from there on.
std::size_t ProcessPlayer::play_again(Again& state) {
  constexpr std::int64_t kTries = 12;  // a loop whose state keeps changing is played without looking
  std::size_t at = program_.loops[state.number].end;
  while (out_.ok && state.left > 0) {
    std::int64_t turns = depth_ > 0 ? state.left : std::min(state.left, state.together);
    if (state.tries <= kTries && state.left >= state.together) {
      turns = state.together;
      if (repeats(state)) {
        state.tries = std::numeric_limits<std::int64_t>::max();
        continue;
      }
      ++state.tries;
    }
    state.left -= turns;
    at = play_turns(state.number, turns);
    if (depth_ == 0 && out_.ok && between_ != nullptr) (*between_)();
  }
  return at;
}

/// Looks at the state. Where it is that of the last look, the turns left are booked.
bool ProcessPlayer::repeats(Again& last) {
  leave_phase();
  auto shape = allocator_.shape(blocks_);
  // The same phase too: retries before the first mark of a turn are booked to the one in force.
  if (last.tries > 0 && phase_ == last.phase && allocator_.outside() == last.outside && shape == last.shape) {
    const std::int64_t skipped = last.left / last.together;
    for (std::size_t i = 0; i < out_.phases.size(); ++i) {
      const std::int64_t earlier = i < last.phases.size() ? last.phases[i].retries : 0;
      const std::int64_t more = (out_.phases[i].retries - earlier) * skipped;
      out_.phases[i].retries += more;
      out_.retries += more;
    }
    ordinal_ += (ordinal_ - last.ordinal) * skipped;
    last.left -= skipped * last.together;
    return true;
  }
  last.shape = std::move(shape);
  last.phases = out_.phases;
  last.phase = phase_;
  last.outside = allocator_.outside();
  last.ordinal = ordinal_;
  return false;
}

bool ProcessPlayer::play(const FlatProgram::Event& e) {
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
void ProcessPlayer::leave_phase() {
  static const std::string before;  // the first mark
  const auto& c = allocator_.counters();
  const std::int64_t retries = c.retries + own_retries_ - booked_retries_;
  booked_retries_ += retries;
  out_.retries += retries;
  out_.allocated_peak = std::max(out_.allocated_peak, c.allocated_peak);
  out_.requested_peak = std::max(out_.requested_peak, c.requested_peak);
  out_.reserved_peak = std::max(out_.reserved_peak, c.reserved_peak);
  out_.device_peak = std::max(out_.device_peak, c.device_peak);
  if (phase_ >= 0 || c.device_peak > 0) {
    const std::string& label = phase_ < 0 ? before : program_.labels[static_cast<std::size_t>(phase_)];
    book(out_.phases, label, retries);
    book(turn_.phases, label, retries);
  }
  allocator_.reset_peaks();
}

void ProcessPlayer::book(std::vector<PhaseReplay>& phases, const std::string& label, std::int64_t retries) const {
  const auto& c = allocator_.counters();
  auto row = std::find_if(phases.begin(), phases.end(), [&](const PhaseReplay& p) { return p.phase == label; });
  if (row == phases.end()) row = phases.insert(row, PhaseReplay{label, 0, 0, 0, 0});
  row->allocated_peak = std::max(row->allocated_peak, c.allocated_peak);
  row->reserved_peak = std::max(row->reserved_peak, c.reserved_peak);
  row->device_peak = std::max(row->device_peak, c.device_peak);
  row->retries += retries;
}

}  // namespace oomplan
