#include "program/flat_program.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "units/interruption.hpp"

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
        flat.in_flight = program.sites[e.site].in_flight;
        level += rounded(e.bytes);
        break;
      case Program::Kind::free:
        if (!on_device(e.pool) || e.bytes == 0) break;
        flat.op = Op::device_free;
        if (e.pool == Pool::torch) {
          flat.op = Op::torch_free;
          flat.in_flight = program.sites[e.site].in_flight;
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
      case Program::Kind::segments:
        flat.op = Op::segments;
        break;
      case Program::Kind::mark:
        flat.op = Op::mark;
        flat.slot = static_cast<std::int32_t>(e.site);
        if (program.labels[e.site] == kTurnEnd) turn_ends.push_back(events.size() + 1);
        break;
      default:
        return true;
    }
    peak = std::max(peak, level);
    interruption_point_at(events.size());
    events.push_back(flat);
    return true;
  });
  if (turn_ends.empty() || turn_ends.back() != events.size()) turn_ends.push_back(events.size());
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

}  // namespace oomplan
