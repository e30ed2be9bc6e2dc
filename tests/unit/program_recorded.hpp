// Recorded runs of PyTorch's allocator (tests/data/snapshots, made by make.py there) and their replay.
#pragma once
#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "program/allocator.hpp"

namespace oomplan::recorded {

enum class Op : std::uint8_t {
  alloc,
  free,
  free_later,
  complete,
  empty_cache,
  oom,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap
};

struct Event {
  Op op = Op::alloc;
  int stream = 0, pool = 0;
  Bytes size = 0;
  Bytes address = 0;
  std::int64_t tensor = 0;  ///< number of the allocation; blocks that were there before come first
};

struct Run {
  std::string name, source, settings;
  bool addresses = false;
  Bytes limit_low = 0, limit_high = 0;  ///< of the device; 0: not known
  Bytes fraction = 0;
  std::int64_t retries = 0, ooms = 0;
  Bytes reserved_peak = 0, allocated_peak = 0, final_reserved = 0, final_allocated = 0;
  std::vector<SegmentRecord> before, after;
  std::vector<Event> events;
  std::int64_t tensors = 0;
};

class Reader {
 public:
  explicit Reader(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot read " + path);
    data_.assign(std::istreambuf_iterator<char>(in), {});
    if (data_.compare(0, 8, "oomrun1\n") != 0) throw std::runtime_error("not a recorded run: " + path);
    at_ = 8;
  }
  bool more() const { return at_ < data_.size(); }
  Run run() {
    Run r;
    r.name = text();
    r.source = text();
    r.settings = text();
    r.addresses = n() == 1;
    for (Bytes* field : {&r.limit_low, &r.limit_high, &r.fraction, &r.retries, &r.ooms, &r.reserved_peak, &r.allocated_peak,
                         &r.final_reserved, &r.final_allocated})
      *field = n();
    Bytes last = 0;
    for (auto left = n(); left > 0; --left) {
      SegmentRecord s;
      s.address = (last += z()) * kUnit;
      s.bytes = n() * kUnit;
      const auto bits = n();
      s.small = (bits & 1) != 0;
      s.stream = static_cast<int>(bits / 2);
      s.pool = static_cast<int>(n());
      Bytes at = 0;
      for (auto blocks = n(); blocks > 0; --blocks) {
        if (const Bytes gap = n() * kUnit; gap > 0) s.blocks.push_back({gap, 0, BlockState::inactive});
        const Bytes size = n() * kUnit, requested = n();
        s.blocks.push_back({size, requested, BlockState::active});
        ++r.tensors;
      }
      for (const auto& b : s.blocks) at += b.size;
      if (at < s.bytes) s.blocks.push_back({s.bytes - at, 0, BlockState::inactive});
      r.before.push_back(std::move(s));
    }
    last = 0;
    for (auto left = n(); left > 0; --left) {
      Event e;
      const auto head = n();
      e.op = static_cast<Op>(head / 2);
      if (head % 2 != 0) {
        e.stream = static_cast<int>(n());
        e.pool = static_cast<int>(n());
      }
      if (e.op == Op::free || e.op == Op::free_later || e.op == Op::complete) {
        e.tensor = r.tensors - n();
      } else if (e.op != Op::empty_cache) {
        e.size = n();
        if (e.op != Op::oom && r.addresses) e.address = (last += z()) * kUnit;
        if (e.op == Op::alloc) e.tensor = r.tensors++;
      }
      r.events.push_back(e);
    }
    last = 0;
    for (auto left = n(); left > 0; --left) {
      SegmentRecord s;
      s.address = (last += z()) * kUnit;
      s.bytes = n() * kUnit;
      const auto bits = n();
      s.small = (bits & 1) != 0;
      s.expandable = (bits & 2) != 0;
      s.stream = static_cast<int>(bits / 4);
      s.pool = static_cast<int>(n());
      for (auto blocks = n(); blocks > 0; --blocks) {
        const auto word = n();
        BlockRecord b;
        b.state = word % 4 == 0 ? BlockState::inactive : word % 4 == 1 ? BlockState::active : BlockState::pending;
        b.size = word / 4 * kUnit;
        if (b.state != BlockState::inactive) b.requested = n();
        s.blocks.push_back(b);
      }
      r.after.push_back(std::move(s));
    }
    return r;
  }

 private:
  static constexpr Bytes kUnit = 512;
  std::int64_t n() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(data_.at(at_++));
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return static_cast<std::int64_t>(value);
    }
  }
  std::int64_t z() {
    const std::int64_t v = n();
    return v % 2 == 0 ? v / 2 : -(v + 1) / 2;
  }
  std::string text() {
    const auto size = static_cast<std::size_t>(n());
    at_ += size;
    return data_.substr(at_ - size, size);
  }
  std::string data_;
  std::size_t at_ = 0;
};

/// Where a replay leaves the record.
struct Differences {
  int blocks = 0;    ///< allocations at another address
  int segments = 0;  ///< requests that take or give other segments
  int level = 0;     ///< requests after which another number of bytes is reserved
  int refused = 0;   ///< requests that ran out, or did not and should
  int final_segments = 0;
  CachingAllocator::Counters counters;
  bool none() const { return blocks == 0 && segments == 0 && level == 0 && refused == 0 && final_segments == 0; }
};

inline AllocatorSettings settings_of(const Run& run, Bytes limit) {
  AllocatorSettings settings = parse_allocator_settings(run.settings);
  if (limit > 0) settings.device_limit = limit;
  if (run.fraction > 0) {
    settings.device_total = run.fraction;
    settings.memory_fraction = 1;
  }
  return settings;
}

/// Feeds the requests of a run to an allocator and compares what it answers. With `recorded`, new segments lie where the record
/// has them, and every address is compared; without, addresses are made up and only sizes are compared.
inline Differences replay(const Run& run, const AllocatorSettings& settings, bool recorded) {
  CachingAllocator allocator(settings);
  Differences out;
  std::vector<CachingAllocator::Block*> blocks = allocator.restore(run.before);
  blocks.resize(static_cast<std::size_t>(run.tensors));
  std::vector<SegmentEvent> log, expected;
  allocator.log_segments(&log);
  if (recorded) {
    allocator.place_segments([&](Bytes) {
      if (log.size() < expected.size()) return expected[log.size()].address;
      ++out.segments;
      return Bytes{-1} << 40;
    });
  }
  Bytes reserved = allocator.counters().reserved;
  for (std::size_t i = 0; i < run.events.size();) {
    const Event& e = run.events[i++];
    log.clear();
    expected.clear();
    for (; i < run.events.size() && run.events[i].op >= Op::segment_alloc; ++i) {
      const Event& s = run.events[i];
      const auto action = static_cast<SegmentAction>(static_cast<int>(s.op) - static_cast<int>(Op::segment_alloc));
      expected.push_back({action, s.address, s.size, s.stream, s.pool});
      reserved += action == SegmentAction::alloc || action == SegmentAction::map ? s.size : -s.size;
    }
    auto& block = blocks[static_cast<std::size_t>(e.tensor)];
    switch (e.op) {
      case Op::alloc:
        block = allocator.allocate(e.size, e.stream, e.pool);
        if (block == nullptr) {
          ++out.refused;
          return out;
        }
        out.blocks += recorded && CachingAllocator::address(block) != e.address;
        break;
      case Op::oom:
        out.refused += allocator.allocate(e.size, e.stream, e.pool) != nullptr;
        break;
      case Op::free:
        allocator.free(block);
        break;
      case Op::free_later:
        allocator.free_later(block);
        break;
      case Op::complete:
        allocator.complete(block);
        break;
      case Op::empty_cache:
        allocator.empty_cache();
        break;
      default:
        ++out.segments;
        break;
    }
    if (!recorded)
      for (auto* list : {&log, &expected})
        for (auto& s : *list) s.address = 0;
    out.segments += log != expected;
    out.level += allocator.counters().reserved != reserved;
  }
  if (recorded) {
    auto state = allocator.state();
    for (auto& s : state)
      for (auto& b : s.blocks)
        if (b.state == BlockState::inactive) b.requested = 0;
    out.final_segments = state != run.after;
  }
  out.counters = allocator.counters();
  return out;
}

}  // namespace oomplan::recorded
