// The expansion of a Program into events, and the matching of every free with its allocation.
#include <algorithm>
#include <array>

#include <oomplan/program.hpp>

#include "program/events.hpp"
#include "program/index_value.hpp"
#include "program/live_table.hpp"
#include "units/interruption.hpp"

namespace oomplan {

namespace {

class Expander {
 public:
  Expander(const Program& program, const std::function<bool(const Event&)>& see) : program_(program), see_(see) {}

  bool run(const std::vector<Program::Op>& ops, const std::array<std::int64_t, 2>& formal) {
    std::vector<std::int64_t> loops;
    struct Frame {
      std::size_t body;
      std::int64_t left;
    };
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < ops.size(); ++at) {
      const auto& op = ops[at];
      switch (op.kind) {
        case Program::Kind::loop:
          if (op.count <= 0) {
            at = end_of(ops, at);
            break;
          }
          frames.push_back({at, op.count});
          loops.push_back(0);
          break;
        case Program::Kind::end:
          if (--frames.back().left > 0) {
            ++loops.back();
            at = frames.back().body;
          } else {
            frames.pop_back();
            loops.pop_back();
          }
          break;
        case Program::Kind::call:
          if (!run(program_.definitions[op.site],
                   {ProgramReader::value(op.a, loops, formal), ProgramReader::value(op.b, loops, formal)}))
            return false;
          break;
        default:
          if (!emit(op, {ProgramReader::value(op.a, loops, formal), ProgramReader::value(op.b, loops, formal), op.site}))
            return false;
      }
    }
    return true;
  }

 private:
  /// The `end` that belongs to the loop at `at`.
  static std::size_t end_of(const std::vector<Program::Op>& ops, std::size_t at) {
    for (int depth = 0; at < ops.size(); ++at) {
      depth += ops[at].kind == Program::Kind::loop ? 1 : ops[at].kind == Program::Kind::end ? -1 : 0;
      if (depth == 0) break;
    }
    return at;
  }
  bool emit(const Program::Op& op, const Identity& key) {
    Event event{op.kind, op.pool, op.site, -1, op.count, key.a, key.b};
    if (op.kind == Program::Kind::alloc || op.kind == Program::Kind::free) {
      const auto& site = program_.sites[op.site];
      const auto pool = static_cast<std::size_t>(site.pool);
      event.pool = site.pool;
      event.bytes = site.bytes;
      if (paused_[pool]) throw Defect(describe_event(program_, "in a paused pool", key));
      if (op.kind == Program::Kind::alloc) {
        interruption_point_at(next_);
        event.tensor = next_++;
        if (!live_.insert(key, event.tensor)) throw Defect(describe_event(program_, "allocated twice", key));
        level_[pool] += site.bytes;
      } else {
        event.tensor = live_.take(key);
        if (event.tensor < 0) throw Defect(describe_event(program_, "freed without allocation", key));
        level_[pool] -= site.bytes;
      }
    } else if (op.kind == Program::Kind::pause || op.kind == Program::Kind::resume) {
      const auto pool = static_cast<std::size_t>(op.pool);
      const bool pauses = op.kind == Program::Kind::pause;
      if (op.pool == Pool::torch || !on_device(op.pool)) throw Defect("a pause of a pool that cannot be paused");
      if (paused_[pool] == pauses) throw Defect(pauses ? "a pause of a paused pool" : "a resume of a pool that is not paused");
      if (level_[pool] != op.count) throw Defect("a pause or resume of other bytes than the pool holds");
      paused_[pool] = pauses;
    }
    return see_(event);
  }

  const Program& program_;
  const std::function<bool(const Event&)>& see_;
  LiveTable live_;
  std::array<Bytes, kPools> level_{};
  std::array<bool, kPools> paused_{};
  std::int64_t next_ = 0;
};

}  // namespace

std::int64_t count_events(const Program& program, std::int64_t most) {
  const auto times = [most](std::int64_t n, std::int64_t each) { return each > 0 && n > most / each ? most : n * each; };
  const auto count = [&](const auto& self, const std::vector<Program::Op>& ops) -> std::int64_t {
    std::vector<std::int64_t> factor{1};
    std::int64_t sum = 0;
    for (const auto& op : ops) {
      if (op.kind == Program::Kind::loop)
        factor.push_back(times(factor.back(), std::max<std::int64_t>(0, op.count)));
      else if (op.kind == Program::Kind::end)
        factor.pop_back();
      else
        sum += times(factor.back(), op.kind == Program::Kind::call ? self(self, program.definitions[op.site]) : 1);
      if (sum >= most) return most;
    }
    return sum;
  };
  return count(count, program.ops);
}

void expand(const Program& program, const std::function<bool(const Event&)>& see) {
  Expander(program, see).run(program.ops, {0, 0});
}

}  // namespace oomplan
