#include "snapshot/recorded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "snapshot/switches.hpp"
#include "units/sizes.hpp"

namespace oomplan::snapshot {
namespace {

constexpr Bytes kLimit = Bytes{1} << 55;  // a device of any size; what others hold makes it smaller where it ran out

/// Streams or pools of a file, numbered from 0 in their order: the allocator gives segments back by stream.
template <class Key>
class Numbers {
 public:
  explicit Numbers(std::set<Key> keys) {
    for (const Key& key : keys) numbers_.emplace(key, static_cast<int>(numbers_.size()));
  }
  int of(const Key& key) const { return numbers_.at(key); }
  std::size_t size() const { return numbers_.size(); }

 private:
  std::map<Key, int> numbers_;
};
using PoolId = std::pair<std::int64_t, std::int64_t>;

std::set<std::int64_t> streams_of(const Snapshot& snapshot, int device) {
  std::set<std::int64_t> out{0};
  for (const auto& s : snapshot.segments)
    if (s.device == device) out.insert(s.stream);
  for (const auto& e : snapshot.traces[static_cast<std::size_t>(device)]) out.insert(e.stream);
  return out;
}
std::set<PoolId> pools_of(const Snapshot& snapshot, int device) {
  std::set<PoolId> out{{0, 0}};
  for (const auto& s : snapshot.segments)
    if (s.device == device) out.insert(s.pool);
  return out;
}
constexpr std::size_t kMostStreams = 4096;

bool is_segment(Action a) { return a >= Action::segment_alloc && a <= Action::segment_unmap; }
bool gives_back(SegmentAction a) { return a == SegmentAction::free || a == SegmentAction::unmap; }

std::string text_of(const std::vector<SegmentEvent>& events) {
  std::string out;
  for (std::size_t i = 0; i < events.size() && i < 3; ++i) {
    const auto action = static_cast<Action>(static_cast<int>(events[i].action) + static_cast<int>(Action::segment_alloc));
    out += fmt::format("{}{} of {} at {:#x}", i > 0 ? ", " : "", name(action), bytes_text(events[i].bytes), events[i].address);
  }
  if (events.size() > 3) out += fmt::format(" and {} more", events.size() - 3);
  return out.empty() ? "no segment event" : out;
}

class Player {
 public:
  Player(const Snapshot& snapshot, int device, const Start& start)
      : trace_(snapshot.traces[static_cast<std::size_t>(device)]),
        allocator_(settings(snapshot)),
        expandable_(trace_, settings_of(snapshot).expandable_segments),
        streams_(streams_of(snapshot, device)),
        pools_(pools_of(snapshot, device)) {
    if (streams_.size() > kMostStreams || pools_.size() > kMostStreams) {
      out_.not_possible = "more than 4,096 streams or private pools";
      return;
    }
    for (const auto& s : snapshot.segments)
      if (s.device == device) bounds_[s.address] = {s.address + s.bytes, pools_.of(s.pool)};
    reserved_ = out_.recorded_reserved_peak = start.reserved;
    restore(start);
    allocator_.log_segments(&log_);
    allocator_.place_segments(
        [this](Bytes) { return log_.size() < expected_.size() ? expected_[log_.size()].address : Bytes{1} << 57; });
  }

  Comparison run() {
    out_.sizes.assign(trace_.size(), 0);
    if (!out_.not_possible.empty()) return std::move(out_);
    for (at_ = 0; at_ < trace_.size(); ++at_) {
      const Event& e = trace_[at_];
      if (is_segment(e.action))
        hold(e);
      else if (e.action != Action::other && e.action != Action::snapshot && !step(e))
        break;
    }
    if (out_.not_possible.empty() && at_ == trace_.size()) give_back();
    out_.reserved_peak = allocator_.counters().reserved_peak;
    out_.allocated_peak = allocator_.counters().allocated_peak;
    return std::move(out_);
  }

 private:
  static AllocatorSettings settings(const Snapshot& snapshot) {
    AllocatorSettings s = settings_of(snapshot);
    s.device_limit = kLimit;
    return s;
  }

  void restore(const Start& start) {
    std::vector<SegmentRecord> records;
    std::vector<Bytes> order;
    Bytes end_before = 0;
    for (const auto& [address, segment] : start.segments) {
      if (address < end_before || segment.bytes <= 0) {
        out_.not_possible = "segments that were there before the first event overlap";
        return;
      }
      end_before = address + segment.bytes;
      SegmentRecord r{address, segment.bytes, streams_.of(segment.stream), pool_at(address), segment.small, false, {}};
      Bytes at = address;
      for (auto b = start.blocks.lower_bound(address); b != start.blocks.end() && b->first < address + segment.bytes; ++b) {
        const auto& [begin, block] = *b;
        if (begin < at || begin + block.size > address + segment.bytes) {
          out_.not_possible = "blocks that lived before the first event overlap";
          return;
        }
        if (begin > at) r.blocks.push_back({begin - at, 0, BlockState::inactive});
        r.blocks.push_back({block.size, block.requested, BlockState::active});
        order.push_back(begin);
        at = begin + block.size;
      }
      if (at < address + segment.bytes) r.blocks.push_back({address + segment.bytes - at, 0, BlockState::inactive});
      records.push_back(std::move(r));
    }
    const auto blocks = allocator_.restore(records);
    for (std::size_t i = 0; i < order.size(); ++i) live_[order[i]] = {blocks[i], false};
  }

  int pool_at(Bytes address) const {
    auto found = bounds_.upper_bound(address);
    if (found == bounds_.begin()) return 0;
    --found;
    return address < found->second.first ? found->second.second : 0;
  }

  void hold(const Event& e) {
    const auto action = static_cast<SegmentAction>(static_cast<int>(e.action) - static_cast<int>(Action::segment_alloc));
    expected_.push_back({action, e.address, e.bytes, streams_.of(e.stream), pool_at(e.address)});
    reserved_ += gives_back(action) ? -e.bytes : e.bytes;
    out_.recorded_reserved_peak = std::max(out_.recorded_reserved_peak, reserved_);
    ++out_.recorded_segment_events;
  }

  void differs(std::string what) {
    if (out_.first_difference >= 0) return;
    out_.first_difference = static_cast<std::int64_t>(std::min(at_, trace_.size() - 1));
    out_.difference = std::move(what);
  }
  void compare() {
    out_.segment_events += static_cast<std::int64_t>(log_.size());
    if (log_ != expected_) differs(fmt::format("recorded {}; replayed {}", text_of(expected_), text_of(log_)));
    log_.clear();
    expected_.clear();
  }
  /// Plays what was given back before the present event as the program's empty_cache().
  void give_back() {
    const auto kept = std::find_if(expected_.begin(), expected_.end(), [](const auto& e) { return !gives_back(e.action); });
    if (kept == expected_.begin()) return;
    std::vector<SegmentEvent> later(kept, expected_.end());
    expected_.erase(kept, expected_.end());
    allocator_.empty_cache();
    compare();
    expected_ = std::move(later);
  }

  /// False when the replay cannot go on.
  bool step(const Event& e) {
    give_back();
    switch (e.action) {
      case Action::alloc:
        return allocate(e);
      case Action::oom:
        run_out(e);
        return true;
      case Action::free_requested: {
        // A free that is completed at once is one event here: PyTorch waits for nothing in between.
        const auto found = live_.find(e.address);
        if (found == live_.end() || found->second.pending) return stray();
        const bool at_once =
            at_ + 1 < trace_.size() && trace_[at_ + 1].action == Action::free_completed && trace_[at_ + 1].address == e.address;
        if (at_once) {
          allocator_.free(found->second.block);
          live_.erase(found);
          ++at_;
        } else {
          allocator_.free_later(found->second.block);
          found->second.pending = true;
        }
        break;
      }
      default: {
        const auto found = live_.find(e.address);
        if (found == live_.end()) return stray();
        if (found->second.pending)
          allocator_.complete(found->second.block);
        else
          allocator_.free(found->second.block);
        live_.erase(found);
        break;
      }
    }
    compare();
    return true;
  }

  bool stray() {
    out_.not_possible = fmt::format("event {} frees what was not allocated", at_);
    return false;
  }

  bool allocate(const Event& e) {
    if (e.bytes == 0 || live_.contains(e.address)) {
      out_.not_possible = fmt::format("event {} allocates {}", at_, e.bytes == 0 ? "nothing" : "what is allocated already");
      return false;
    }
    allocator_.set_expandable_segments(expandable_.at(at_));
    auto* block = allocator_.allocate(e.bytes, streams_.of(e.stream), pool_at(e.address));
    if (block == nullptr) {
      differs("recorded an allocation; replayed a refusal");
      out_.not_possible = fmt::format("event {} found no memory", at_);
      return false;
    }
    ++out_.allocations;
    const bool equal = CachingAllocator::address(block) == e.address;
    out_.placed_equal += equal;
    compare();
    if (!equal)
      differs(fmt::format("recorded a block at {:#x}; replayed one at {:#x}", e.address, CachingAllocator::address(block)));
    out_.sizes[at_] = CachingAllocator::size(block);
    live_[e.address] = {block, false};
    return true;
  }

  void run_out(const Event& e) {
    const Bytes outside = kLimit - allocator_.counters().reserved - e.address;  // the address of an oom: what was left
    if (outside < 0 || e.bytes == 0 || !allocator_.set_outside(outside)) return;
    const bool refused = allocator_.allocate(e.bytes, streams_.of(e.stream)) == nullptr;
    out_.ooms += refused;
    if (!refused) differs(fmt::format("recorded out of memory; replayed a block of {}", bytes_text(e.bytes)));
    allocator_.set_outside(0);
    compare();
  }

  struct Live {
    CachingAllocator::Block* block = nullptr;
    bool pending = false;
  };
  const std::vector<Event>& trace_;
  Comparison out_;
  CachingAllocator allocator_;
  SegmentSwitch expandable_;
  Numbers<std::int64_t> streams_;
  Numbers<PoolId> pools_;
  std::map<Bytes, std::pair<Bytes, int>> bounds_;  // final segments: end and pool
  std::unordered_map<Bytes, Live> live_;
  std::vector<SegmentEvent> log_, expected_;
  Bytes reserved_ = 0;
  std::size_t at_ = 0;
};

}  // namespace

AllocatorSettings settings_of(const Snapshot& snapshot, std::string* unread) {
  AllocatorSettings settings;
  for (const auto& [key, value] : snapshot.settings) {
    if (key != "PYTORCH_CUDA_ALLOC_CONF" && key != "PYTORCH_ALLOC_CONF") continue;
    try {
      settings = parse_allocator_settings(value, {}, settings);
    } catch (const InputError& error) {
      if (unread != nullptr) *unread = error.what();
    }
  }
  for (const auto& segment : snapshot.segments) settings.expandable_segments |= segment.expandable;
  for (const auto& trace : snapshot.traces)
    settings.expandable_segments |=
        std::any_of(trace.begin(), trace.end(), [](const Event& e) { return e.action == Action::segment_map; });
  return settings;
}

Comparison play_again(const Snapshot& snapshot, int device, const Start& start) {
  Comparison out;
  if (!snapshot.has_history(device))
    out.not_possible = "no history was recorded";
  else if (start.expandable && (!start.blocks.empty() || start.reserved > 0))
    out.not_possible = "recording began after expandable segments were in use";
  else if (!settings_of(snapshot).native)
    out.not_possible = "the backend is cudaMallocAsync";
  if (!out.not_possible.empty()) return out;
  Player player(snapshot, device, start);
  return player.run();
}

}  // namespace oomplan::snapshot
