#include "program/replay.hpp"

#include <algorithm>

namespace oomplan {

FlatProgram::FlatProgram(const Program& program) : labels(program.labels) {
  std::vector<std::int32_t> slot_of;  // by tensor number
  std::vector<std::int32_t> unused;
  Bytes level = 0;
  const auto rounded = [](Bytes bytes) { return bytes == 0 ? 0 : round_up(bytes, 512); };
  expand(program, [&](const oomplan::Event& e) {
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
        if (unused.empty()) unused.push_back(slots++);
        flat.op = Op::torch_alloc;
        flat.slot = slot_of.back() = unused.back();
        flat.stream = program.sites[e.site].stream;
        unused.pop_back();
        level += rounded(e.bytes);
        break;
      case Program::Kind::free:
        if (!on_device(e.pool) || e.bytes == 0) break;
        flat.op = Op::device_free;
        if (e.pool == Pool::torch) {
          flat.op = Op::torch_free;
          flat.slot = slot_of[static_cast<std::size_t>(e.tensor)];
          unused.push_back(flat.slot);
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
}

namespace {

class Player {
 public:
  Player(const FlatProgram& program, const AllocatorSettings& settings)
      : program_(program), allocator_(settings), blocks_(static_cast<std::size_t>(program.slots)) {}

  Replay run() {
    std::int64_t ordinal = 0;
    for (const auto& e : program_.events) {
      if (!play(e)) {
        out_.ok = false;
        out_.failed_event = ordinal;
        out_.failed_phase = phase_ < 0 ? "" : program_.labels[static_cast<std::size_t>(phase_)];
        out_.failed_bytes = e.bytes;
        break;
      }
      ordinal += e.op != Op::mark && e.op != Op::trim;
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

  bool play(const FlatProgram::Event& e) {
    switch (e.op) {
      case Op::torch_alloc: {
        auto& block = blocks_[static_cast<std::size_t>(e.slot)];
        block = allocator_.allocate(e.bytes, e.stream);
        return block != nullptr;
      }
      case Op::torch_free:
        allocator_.free(blocks_[static_cast<std::size_t>(e.slot)]);
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
  std::int32_t phase_ = -1;
  std::int64_t own_retries_ = 0, booked_retries_ = 0;
};

}  // namespace

Replay replay(const FlatProgram& program, const AllocatorSettings& settings) { return Player(program, settings).run(); }
Replay replay(const Program& program, const AllocatorSettings& settings) { return replay(FlatProgram(program), settings); }

// A run says more than yes or no. One that went well, and never held more than `device_peak`, goes the same way at that very
// limit: what was granted still is, what was refused would have passed the higher one. One that failed goes the same way at every
// higher limit below the lowest level that was refused. So both ends of the search move to levels that occur.
Bytes needed_capacity(const FlatProgram& program, AllocatorSettings settings) {
  constexpr Bytes kPage = 2 * kMiB;
  const auto run_at = [&](Bytes limit) {
    settings.device_limit = limit;
    return replay(program, settings);
  };
  const Replay roomy = run_at(AllocatorSettings{}.device_limit);
  if (!roomy.ok) return -1;
  Bytes low = program.peak - 1;  // does not do
  while (true) {
    Bytes high = roomy.device_peak;  // does
    while (high - low > kPage) {
      const Bytes middle = low + (high - low) / 2;
      const Replay r = run_at(middle);
      (r.ok ? high : low) = r.ok ? r.device_peak : r.refused - 1;
    }
    if (high == roomy.device_peak || run_at(high + kPage).ok) return high;
    low = high + kPage;
  }
}
Bytes needed_capacity(const Program& program, AllocatorSettings settings) {
  return needed_capacity(FlatProgram(program), settings);
}

}  // namespace oomplan
