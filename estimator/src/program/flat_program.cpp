#include "program/flat_program.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <utility>

#include "program/index_value.hpp"
#include "program/ledger_writer.hpp"
#include "program/live_table.hpp"
#include "program/repeated_stretches.hpp"
#include "units/interruption.hpp"

namespace oomplan {

namespace {

/// Turns that a loop has at least, for its turns to be compared.
constexpr std::int64_t kManyTurns = 4;
/// Slots of what lives through several turns go round: turns are compared with those up to so many before.
constexpr std::size_t kMostPeriod = 16;
/// Events that are written down rather than looked for.
constexpr std::size_t kFewEvents = 64;

/// Numbers that are handed out and come back, to each site its own: the one that a tensor of the same first index had last, else
/// the one that has been unused for longest. So turns that leave nothing new behind take equal numbers, and where tensors of
/// several micro-batches live at once the numbers go round with them.
class Slots {
 public:
  explicit Slots(std::size_t sites) : unused_(sites) {}
  std::int32_t take(std::uint32_t site, std::int64_t index) {
    auto& unused = unused_[site];
    if (unused.empty()) return count_++;
    const auto end = unused.rbegin() + static_cast<std::ptrdiff_t>(std::min(unused.size(), kMostLookedAt));
    const auto own = std::find_if(unused.rbegin(), end, [&](const Unused& u) { return u.index == index; });
    const auto at = own != end ? std::prev(own.base()) : unused.begin();
    const std::int32_t slot = at->slot;
    unused.erase(at);
    return slot;
  }
  void give_back(std::uint32_t site, std::int64_t index, std::int32_t slot) { unused_[site].push_back({index, slot}); }
  /// How many were handed out.
  std::int32_t count() const { return count_; }

 private:
  static constexpr std::size_t kMostLookedAt = 256;
  struct Unused {
    std::int64_t index;
    std::int32_t slot;
  };
  std::vector<std::vector<Unused>> unused_;
  std::int32_t count_ = 0;
};

/// Expands a program, matches every free with its allocation, and writes down what the replay needs.
class Flattener {
 public:
  using Op = Program::Op;
  using Kind = Program::Kind;

  Flattener(const Program& program, FlatProgram& out, LedgerWriter& ledger, bool every_turn)
      : program_(program), out_(out), ledger_(ledger), every_turn_(every_turn), unused_(program.sites.size()) {}

  void run() {
    run(program_.ops, 0, program_.ops.size(), {0, 0});
    if (out_.turn_ends.empty() || out_.turn_ends.back() != out_.events.size()) out_.turn_ends.push_back(out_.events.size());
    out_.slots = unused_.count();
    if (!every_turn_) fold_repeats(out_, marks_);
  }

 private:
  using Formal = std::array<std::int64_t, 2>;
  using Ops = std::vector<Op>;

  void run(const Ops& ops, std::size_t begin, std::size_t end, const Formal& formal) {
    for (std::size_t at = begin; at < end; ++at) {
      const Op& op = ops[at];
      if (op.kind == Kind::loop) {
        const std::size_t behind = end_of(ops, at);
        run_loop(ops, at + 1, behind, formal);
        at = behind;
      } else if (op.kind == Kind::call) {
        call(op, formal);
      } else {
        emit(op, formal);
      }
    }
  }
  /// Loops of a definition are its own; identities in it depend on the loops around the call in a way that is not followed.
  void call(const Op& op, const Formal& formal) {
    ++calls_;
    const Formal given{ProgramReader::value(op.a, loops_, formal), ProgramReader::value(op.b, loops_, formal)};
    const std::vector<std::int64_t> outer = std::exchange(loops_, {});
    const Ops& body = program_.definitions[op.site];
    run(body, 0, body.size(), given);
    loops_ = outer;
  }
  static std::size_t end_of(const Ops& ops, std::size_t at) {
    for (int depth = 0; at < ops.size(); ++at) {
      depth += ops[at].kind == Kind::loop ? 1 : ops[at].kind == Kind::end ? -1 : 0;
      if (depth == 0) break;
    }
    return at;
  }

  /// A turn as it was written down.
  struct Turn {
    std::size_t first = 0, end = 0;            ///< events
    std::size_t first_loop = 0, end_loop = 0;  ///< of the loops inside it
    std::int64_t live = 0;                     ///< behind it
    std::int64_t oldest_freed = 0;
    std::size_t events() const { return end - first; }
  };
  /// Of the loop that is being expanded: its last turns.
  struct Turns {
    std::vector<Turn> all;
    std::array<std::int64_t, kMostPeriod + 1> equal{};  ///< [p]: so many last ones equal those p before
  };

  void run_loop(const Ops& ops, std::size_t begin, std::size_t end, const Formal& formal) {
    const std::int64_t count = ops[begin - 1].count, first_tensor = next_, calls = calls_;
    const bool compares = count >= kManyTurns && !every_turn_;
    if (depth_++ == 0) {
      young_.clear();
      next_look_ = 0;
    }
    const std::size_t depth = loops_.size();
    loops_.push_back(0);
    Turns turns;
    bool skipped = false;
    for (std::int64_t turn = 0; turn < count; ++turn) {
      loops_.back() = turn;
      Turn now{out_.events.size(), 0, out_.loops.size(), 0, 0, 0};
      const std::int64_t outer_oldest = std::exchange(oldest_freed_, std::numeric_limits<std::int64_t>::max());
      run(ops, begin, end, formal);
      now.end = out_.events.size();
      now.end_loop = out_.loops.size();
      now.live = live_count_;
      now.oldest_freed = oldest_freed_;
      oldest_freed_ = std::min(oldest_freed_, outer_oldest);
      forget_the_dead();
      if (!compares || skipped || calls_ != calls) continue;
      const std::int64_t more = skip(turns, now, count - 1 - turn, first_tensor);
      if (more == 0) continue;
      shift_young(first_tensor, depth, more);
      turn += more;
      skipped = true;
    }
    loops_.pop_back();
    --depth_;
  }

  bool same(const Turn& x, const Turn& y) const {
    if (x.events() != y.events() || x.end_loop - x.first_loop != y.end_loop - y.first_loop) return false;
    const auto event = [&](std::size_t i) { return out_.events.begin() + static_cast<std::ptrdiff_t>(i); };
    for (std::size_t i = 0; i < x.end_loop - x.first_loop; ++i) {
      const FlatProgram::Loop &a = out_.loops[x.first_loop + i], &b = out_.loops[y.first_loop + i];
      if (a.first - x.first != b.first - y.first || a.end - x.first != b.end - y.first || a.more != b.more) return false;
    }
    return std::equal(event(x.first), event(x.end), event(y.first));
  }
  /// Turns that need not be expanded, of the `left` ones. Equal turns that leave as many tensors as they found and free none
  /// that was there before the loop are followed by equal ones: every free names what the turn, or one before it, has made, and
  /// the names move on with the index.
  std::int64_t skip(Turns& turns, const Turn& now, std::int64_t left, std::int64_t first_tensor) {
    const auto n = turns.all.size();
    std::int64_t found = 0;
    for (std::size_t p = 1; p <= std::min(n, kMostPeriod); ++p) {
      std::int64_t& equal = turns.equal[p];
      const Turn& before = turns.all[n - p];
      equal = now.live == before.live && now.oldest_freed >= first_tensor && same(before, now) ? equal + 1 : 0;
      const auto period = static_cast<std::int64_t>(p);
      if (found == 0 && equal >= period && left >= period) found = period;
    }
    turns.all.push_back(now);
    if (found == 0) return 0;
    const Turn& first = turns.all[turns.all.size() - static_cast<std::size_t>(found)];
    const std::int64_t more = left / found;
    if (static_cast<std::size_t>(more) * (now.end - first.first) < kFewEvents) return 0;
    out_.loops.push_back({first.first, now.end, more, first.first_loop});
    return more * found;
  }

  /// A tensor that was made inside a loop, by the operation that names it.
  struct Young {
    std::int64_t tensor = 0;
    Identity key;
    const Op* op = nullptr;
  };
  /// What is alive behind skipped turns is what the last of them made.
  void shift_young(std::int64_t first_tensor, std::size_t depth, std::int64_t turns) {
    std::vector<Young*> moved;
    for (auto y = young_.rbegin(); y != young_.rend() && y->tensor >= first_tensor; ++y)
      if (lives(y->tensor)) moved.push_back(&*y);
    for (const Young* y : moved) live_.take(y->key);
    for (Young* y : moved) {
      y->key.a += turns * ProgramReader::step(y->op->a, depth);
      y->key.b += turns * ProgramReader::step(y->op->b, depth);
      live_.insert(y->key, y->tensor);
    }
  }
  bool lives(std::int64_t tensor) const { return slot_of_[static_cast<std::size_t>(tensor)] != kDead; }
  void forget_the_dead() {
    if (young_.size() < std::max<std::size_t>(kFewEvents, next_look_)) return;
    std::erase_if(young_, [&](const Young& y) { return !lives(y.tensor); });
    next_look_ = 2 * young_.size();
  }

  void emit(const Op& op, const Formal& formal) {
    switch (op.kind) {
      case Kind::alloc:
        return alloc(op, identity(op, formal));
      case Kind::free:
        return free(op, identity(op, formal));
      case Kind::pause:
      case Kind::resume:
        return pause(op);
      case Kind::trim:
        out_.uncounted.push_back(out_.events.size());
        return put({0, -1, FlatProgram::Op::trim, 0, 0});
      case Kind::segments:
        out_.uncounted.push_back(out_.events.size());
        return put({op.count, -1, FlatProgram::Op::segments, 0, 0});
      case Kind::mark:
        ledger_.enter(program_.labels[op.site]);
        if (depth_ == 0) marks_.push_back(out_.events.size());
        out_.uncounted.push_back(out_.events.size());
        if (program_.labels[op.site] == kTurnEnd) out_.turn_ends.push_back(out_.events.size() + 1);
        return put({0, static_cast<std::int32_t>(op.site), FlatProgram::Op::mark, 0, 0});
      default:
        return;
    }
  }
  Identity identity(const Op& op, const Formal& formal) const {
    return {ProgramReader::value(op.a, loops_, formal), ProgramReader::value(op.b, loops_, formal), op.site};
  }
  void put(const FlatProgram::Event& e) {
    interruption_point_at(out_.events.size());
    out_.peak = std::max(out_.peak, level_);
    out_.events.push_back(e);
  }

  void alloc(const Op& op, const Identity& key) {
    const Site& site = program_.sites[op.site];
    if (paused_[static_cast<std::size_t>(site.pool)]) throw Defect(describe("in a paused pool", key));
    const std::int64_t tensor = next_++;
    if (!live_.insert(key, tensor)) throw Defect(describe("allocated twice", key));
    ++live_count_;
    slot_of_.push_back(-1);
    if (depth_ > 0) young_.push_back({tensor, key, &op});
    in_pool_[static_cast<std::size_t>(site.pool)] += site.bytes;
    if (on_device(site.pool)) ledger_.add(site.category, site.bytes);
    FlatProgram::Event e{site.bytes, -1, FlatProgram::Op::host, 0, 0};
    if (on_device(site.pool) && site.bytes != 0) {
      if (site.pool == Pool::torch) {
        e.op = FlatProgram::Op::torch_alloc;
        e.slot = slot_of_.back() = unused_.take(op.site, key.a);
        e.stream = site.stream;
        e.in_flight = site.in_flight;
        level_ += round_up(site.bytes, 512);
      } else {
        e.op = site.pool == Pool::driver ? FlatProgram::Op::driver_alloc : FlatProgram::Op::pausable_alloc;
        level_ += site.bytes;
      }
    }
    put(e);
  }
  void free(const Op& op, const Identity& key) {
    const Site& site = program_.sites[op.site];
    if (paused_[static_cast<std::size_t>(site.pool)]) throw Defect(describe("in a paused pool", key));
    const std::int64_t tensor = live_.take(key);
    if (tensor < 0) throw Defect(describe("freed without allocation", key));
    --live_count_;
    oldest_freed_ = std::min(oldest_freed_, tensor);
    in_pool_[static_cast<std::size_t>(site.pool)] -= site.bytes;
    if (on_device(site.pool)) ledger_.add(site.category, -site.bytes);
    const std::int32_t slot = std::exchange(slot_of_[static_cast<std::size_t>(tensor)], kDead);
    FlatProgram::Event e{site.bytes, -1, FlatProgram::Op::host, 0, 0};
    if (on_device(site.pool) && site.bytes != 0) {
      e.op = FlatProgram::Op::device_free;
      if (site.pool == Pool::torch) {
        e.op = FlatProgram::Op::torch_free;
        e.in_flight = site.in_flight;
        e.slot = slot;
        unused_.give_back(op.site, key.a, slot);
        level_ -= round_up(site.bytes, 512);
      } else {
        level_ -= site.bytes;
      }
    }
    put(e);
  }
  void pause(const Op& op) {
    const auto pool = static_cast<std::size_t>(op.pool);
    const bool pauses = op.kind == Kind::pause;
    if (op.pool == Pool::torch || !on_device(op.pool)) throw Defect("a pause of a pool that cannot be paused");
    if (paused_[pool] == pauses) throw Defect(pauses ? "a pause of a paused pool" : "a resume of a pool that is not paused");
    if (in_pool_[pool] != op.count) throw Defect("a pause or resume of other bytes than the pool holds");
    paused_[pool] = pauses;
    level_ += pauses ? -op.count : op.count;
    put({op.count, -1, pauses ? FlatProgram::Op::device_free : FlatProgram::Op::resume, 0, 0});
  }
  std::string describe(const char* what, const Identity& k) const { return describe_event(program_, what, k); }

  static constexpr std::int32_t kDead = -2;
  const Program& program_;
  FlatProgram& out_;
  LedgerWriter& ledger_;
  const bool every_turn_;
  std::vector<std::int64_t> loops_;  // indices of those around
  std::size_t depth_ = 0;            // of loops, calls not regarded
  std::int64_t calls_ = 0;
  LiveTable live_;
  std::int64_t live_count_ = 0, next_ = 0;
  std::int64_t oldest_freed_ = std::numeric_limits<std::int64_t>::max();  // in the turn that is being expanded
  std::vector<std::int32_t> slot_of_;                                     // by tensor number
  std::vector<std::size_t> marks_;                                        // numbers of those outside of loops
  std::vector<Young> young_;                                              // made in the loops around, in order
  std::size_t next_look_ = 0;
  Slots unused_;
  Bytes level_ = 0;
  std::array<Bytes, kPools> in_pool_{};
  std::array<bool, kPools> paused_{};
};

}  // namespace

FlatProgram::FlatProgram(const Program& program, std::vector<PhaseLedger>* ledgers, bool every_turn) : labels(program.labels) {
  LedgerWriter ledger;
  Flattener(program, *this, ledger, every_turn).run();
  if (ledgers != nullptr) *ledgers = ledger.take();
}

}  // namespace oomplan
