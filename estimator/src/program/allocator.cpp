// Rule numbers are those of docs/allocator.md.
#include "program/allocator.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "program/allocator_blocks.hpp"

namespace oomplan {
namespace {

constexpr Bytes kMinBlock = 512;
constexpr Bytes kSmallSize = kMiB;
constexpr Bytes kSmallSegment = 2 * kMiB;
constexpr Bytes kMinLarge = 10 * kMiB;
constexpr Bytes kRoundLarge = 2 * kMiB;
constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();
constexpr Bytes kFirstAddress = Bytes{1} << 46;
constexpr Bytes kUnknownRange = Bytes{1} << 40;

/// Rule 1: the next of `divisions` equal steps between the powers of two around n.
Bytes next_division(Bytes n, int divisions) {
  const auto bits = static_cast<std::uint64_t>(n);
  if (std::has_single_bit(bits)) return n;
  const std::uint64_t floor = std::bit_floor(bits);
  const std::uint64_t step = floor >> (std::bit_width(static_cast<unsigned>(divisions)) - 1);
  if (step == 0) return static_cast<Bytes>(floor << 1);
  return static_cast<Bytes>((bits + step - 1) & ~(step - 1));
}

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorSettings& settings)
    : settings_(settings),
      split_limit_(settings.max_split_size < 0 ? kUnlimited : settings.max_split_size),
      fraction_limit_(settings.memory_fraction > 0 && settings.device_total > 0
                          ? static_cast<Bytes>(settings.memory_fraction * static_cast<double>(settings.device_total))
                          : kUnlimited),
      collects_(settings.garbage_collection_threshold > 0 && fraction_limit_ != kUnlimited),
      divides_(std::any_of(settings.roundup_power2_divisions.begin(), settings.roundup_power2_divisions.end(),
                           [](int d) { return d > 1; })),
      next_address_(kFirstAddress) {}

CachingAllocator::~CachingAllocator() = default;

void CachingAllocator::reset_peaks() {
  counters_.allocated_peak = counters_.allocated;
  counters_.reserved_peak = counters_.reserved;
  counters_.active_peak = counters_.active;
  counters_.requested_peak = counters_.requested;
  counters_.device_peak = counters_.reserved + outside_;
}

Bytes CachingAllocator::address(const Block* block) { return block->address; }
Bytes CachingAllocator::size(const Block* block) { return block->size; }

// ---- Sizes: rules 1, 4, 6 -------------------------------------------------------------------------------------------------

Bytes CachingAllocator::rounded(Bytes bytes) const {
  if (bytes < kMinBlock) return kMinBlock;
  if (divides_) {
    const int interval = std::clamp(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 21, 0, 15);
    const int divisions = settings_.roundup_power2_divisions[static_cast<std::size_t>(interval)];
    if (divisions > 1 && bytes > kMinBlock * divisions) return next_division(bytes, divisions);
  }
  return (bytes + kMinBlock - 1) & ~(kMinBlock - 1);
}

Bytes CachingAllocator::segment_size(Bytes rounded) const {
  if (rounded <= kSmallSize) return kSmallSegment;
  if (rounded < kMinLarge) return settings_.large_segment_size;
  return round_up(rounded, kRoundLarge);
}

bool CachingAllocator::splits(const Lane& lane, Bytes block, Bytes rounded) const {
  const Bytes rest = block - rounded;
  if (lane.small || settings_.expandable_segments) return rest >= kMinBlock;
  return rounded < split_limit_ && rest > kSmallSize;
}

// ---- Requests and frees: rules 2, 3, 5, 7 ---------------------------------------------------------------------------------

CachingAllocator::Lane& CachingAllocator::lane(int pool, bool small, int stream) {
  const auto p = static_cast<std::size_t>(pool), s = static_cast<std::size_t>(stream);
  if (p < arenas_.size() && arenas_[p] && s < arenas_[p]->lanes[small].size() && arenas_[p]->lanes[small][s]) [[likely]]
    return *arenas_[p]->lanes[small][s];
  if (p >= arenas_.size()) arenas_.resize(p + 1);
  if (!arenas_[p]) arenas_[p] = std::make_unique<Arena>();
  auto& lanes = arenas_[p]->lanes[small];
  if (s >= lanes.size()) lanes.resize(s + 1);
  if (!lanes[s]) {
    lanes[s] = std::make_unique<Lane>();
    lanes[s]->pool = pool;
    lanes[s]->small = small;
    lanes[s]->stream = stream;
  }
  return *lanes[s];
}

CachingAllocator::Block* CachingAllocator::new_block(Lane& lane, Bytes address, Bytes size) {
  Block* block = spare_;
  if (block != nullptr) {
    spare_ = block->next;
    const std::uint32_t number = block->number;
    *block = Block{};
    block->number = number;
  } else {
    block = &blocks_.emplace_back();
    block->number = static_cast<std::uint32_t>(blocks_.size() - 1);
  }
  block->lane = &lane;
  block->address = address;
  block->size = size;
  return block;
}

void CachingAllocator::drop(Block* block) {
  block->lane = nullptr;
  block->next = spare_;
  spare_ = block;
}

CachingAllocator::Block* CachingAllocator::allocate(Bytes bytes, int stream, int pool) {
  const Bytes size = rounded(bytes);
  Lane& from = lane(pool, size <= kSmallSize, stream);
  Block* block = take_free(from, size);
  if (block == nullptr) {
    const Bytes segment = segment_size(size);
    if (collects_) collect_garbage();
    block = take_from_driver(from, size, segment);
    if (block == nullptr && release_oversize(from, size)) block = take_from_driver(from, size, segment);
    if (block == nullptr) {
      empty_cache();
      ++counters_.retries;
      block = take_from_driver(from, size, segment);
    }
    if (block == nullptr) {
      ++counters_.ooms;
      return nullptr;
    }
  }
  if (splits(from, block->size, size)) {
    Block* front = new_block(from, block->address, size);
    front->expandable = block->expandable;
    front->range = block->range;
    front->prev = block->prev;
    if (front->prev != nullptr) front->prev->next = front;
    front->next = block;
    block->prev = front;
    block->address += size;
    block->size -= size;
    block->freed_at = searches_;
    from.free.insert(block);
    block = front;
  }
  block->allocated = true;
  block->requested = bytes;
  counters_.allocated += block->size;
  counters_.active += block->size;
  counters_.requested += bytes;
  counters_.allocated_peak = std::max(counters_.allocated_peak, counters_.allocated);
  counters_.active_peak = std::max(counters_.active_peak, counters_.active);
  counters_.requested_peak = std::max(counters_.requested_peak, counters_.requested);
  return block;
}

CachingAllocator::Block* CachingAllocator::take_free(Lane& from, Bytes size) {
  if (collects_ && !from.small && from.pool == 0) ++searches_;
  auto at = from.free.at_least(size);
  if (from.free.end(at)) return nullptr;
  Block* block = from.free[at];
  if (block->expandable) {
    if (settings_.expandable_segments) {
      // A block at the growing end counts as large as it can become.
      const auto reach = [](const Block* b) { return b->size + (b->next != nullptr && !b->next->mapped ? b->next->size : 0); };
      for (auto next = from.free.next(at); block->expandable && !from.free.end(next); next = from.free.next(next)) {
        if (reach(from.free[next]) >= reach(block)) break;
        at = next;
        block = from.free[at];
      }
    } else {
      while (block->expandable) {
        at = from.free.next(at);
        if (from.free.end(at)) return nullptr;
        block = from.free[at];
      }
    }
  }
  if (size < split_limit_ && block->size >= split_limit_) return nullptr;
  if (size >= split_limit_ && block->size >= size + settings_.max_non_split_rounding) return nullptr;
  from.free.erase(at);
  return block;
}

void CachingAllocator::free(Block* block) {
  counters_.allocated -= block->size;
  counters_.active -= block->size;
  counters_.requested -= block->requested;
  block->allocated = false;
  to_free(block);
}

void CachingAllocator::free_later(Block* block) {
  counters_.allocated -= block->size;
  counters_.requested -= block->requested;
  block->allocated = false;
  block->pending = true;
  pending_.push_back(block);
}

void CachingAllocator::complete(Block* block) {
  const auto found = std::find(pending_.begin(), pending_.end(), block);
  if (found == pending_.end()) throw Defect("allocator: completes a free that is not pending");
  pending_.erase(found);
  block->pending = false;
  counters_.active -= block->size;
  to_free(block);
}

void CachingAllocator::complete_all() { complete_but(0); }

void CachingAllocator::complete_but(std::size_t keep) {
  while (pending_.size() > keep) complete(pending_.front());
}

/// Merges a free block with its neighbours and puts it into its lane.
void CachingAllocator::to_free(Block* block) {
  absorb(block, block->prev);
  absorb(block, block->next);
  block->freed_at = searches_;
  block->lane->free.insert(block);
}

/// Joins `from`, a neighbour of `into`, to it if it is free and mapped or unmapped alike.
bool CachingAllocator::absorb(Block* into, Block* from) {
  if (from == nullptr || from->allocated || from->pending || from->mapped != into->mapped) return false;
  Lane& owner = *from->lane;
  if (from->mapped) {
    owner.free.erase(from);
  } else {
    owner.unmapped.erase(std::find(owner.unmapped.begin(), owner.unmapped.end(), from));
  }
  if (into->prev == from) {
    into->address = from->address;
    into->prev = from->prev;
    if (into->prev != nullptr) into->prev->next = into;
  } else {
    into->next = from->next;
    if (into->next != nullptr) into->next->prev = into;
  }
  into->size += from->size;
  drop(from);
  return true;
}

// ---- The driver: rules 5, 6, 10 -------------------------------------------------------------------------------------------

bool CachingAllocator::driver_gives(Bytes bytes) {
  const Bytes level = counters_.reserved + outside_ + bytes;
  if (level > settings_.device_limit) {
    counters_.refused = std::min(counters_.refused, level);
    return false;
  }
  counters_.reserved += bytes;
  counters_.reserved_peak = std::max(counters_.reserved_peak, counters_.reserved);
  counters_.device_peak = std::max(counters_.device_peak, level);
  return true;
}

bool CachingAllocator::set_outside(Bytes bytes) {
  const Bytes level = counters_.reserved + bytes;
  if (level > settings_.device_limit && bytes > outside_) {
    counters_.refused = std::min(counters_.refused, level);
    return false;
  }
  outside_ = bytes;
  counters_.device_peak = std::max(counters_.device_peak, level);
  return true;
}

void CachingAllocator::set_device_limit(Bytes limit) {
  settings_.device_limit = limit;
  counters_.refused = std::numeric_limits<Bytes>::max();
}

Bytes CachingAllocator::place(Bytes bytes) {
  if (where_) return where_(bytes);
  if (settings_.rising_addresses) return std::exchange(next_address_, next_address_ + bytes);
  return next_address_ -= bytes;
}

void CachingAllocator::note(SegmentAction action, const Block* block, Bytes address, Bytes bytes) {
  if (log_ != nullptr) log_->push_back({action, address, bytes, block->lane->stream, block->lane->pool});
}

CachingAllocator::Block* CachingAllocator::take_from_driver(Lane& to, Bytes size, Bytes segment) {
  if (counters_.reserved + segment > fraction_limit_) return nullptr;
  if (settings_.expandable_segments) return take_expandable(to, size);
  if (!driver_gives(segment)) return nullptr;
  Block* block = new_block(to, place(segment), segment);
  note(SegmentAction::alloc, block, block->address, segment);
  return block;
}

CachingAllocator::Block* CachingAllocator::find_expandable(Lane& in, Bytes size) {
  const auto usable = [](const Block* b) { return b != nullptr && !b->allocated && !b->pending; };
  for (Block* gap : in.unmapped) {
    Block* start = usable(gap->prev) ? gap->prev : gap;
    Bytes room = 0;
    for (const Block* b = start; room < size && usable(b); b = b->next) room += b->size;
    if (room >= size) return start;
  }
  const Bytes page = in.small ? kSmallSegment : settings_.large_segment_size;
  const Bytes range =
      round_up(settings_.device_total > 0 ? settings_.device_total + settings_.device_total / 8 : kUnknownRange, page);
  if (range < size) return nullptr;
  Block* gap = new_block(in, place(range), range);
  gap->mapped = false;
  gap->expandable = true;
  gap->range = gap->address;
  const auto less = [](const Block* x, const Block* y) { return x->address < y->address; };
  in.unmapped.insert(std::upper_bound(in.unmapped.begin(), in.unmapped.end(), gap, less), gap);
  return gap;
}

CachingAllocator::Block* CachingAllocator::take_expandable(Lane& to, Bytes size) {
  Block* block = find_expandable(to, size);
  if (block == nullptr) return nullptr;
  if (!block->mapped && !map(block, std::min(block->size, size))) return nullptr;
  while (block->size < size) {  // what follows is unmapped; mapping it joins it with the block
    Block* gap = block->next;
    if (!map(gap, std::min(size - block->size, gap->size))) return nullptr;
    block = gap;
  }
  to.free.erase(block);
  return block;
}

/// Maps whole pages from the start of a gap until `wanted` bytes are there; the rest stays a gap. The pages join a free block
/// before and after them and go to the lane.
bool CachingAllocator::map(Block* gap, Bytes wanted) {
  Lane& owner = *gap->lane;
  const Bytes bytes = round_up(wanted, owner.small ? kSmallSegment : settings_.large_segment_size);
  if (!driver_gives(bytes)) return false;
  const Bytes at = gap->address;
  const auto place_in_list = std::find(owner.unmapped.begin(), owner.unmapped.end(), gap);
  if (bytes < gap->size) {
    Block* rest = new_block(owner, gap->address + bytes, gap->size - bytes);
    rest->mapped = false;
    rest->expandable = true;
    rest->range = gap->range;
    rest->prev = gap;
    rest->next = gap->next;
    if (rest->next != nullptr) rest->next->prev = rest;
    gap->next = rest;
    gap->size = bytes;
    *place_in_list = rest;
  } else {
    owner.unmapped.erase(place_in_list);
  }
  gap->mapped = true;
  to_free(gap);
  note(SegmentAction::map, gap, at, bytes);
  return true;
}

// ---- Giving back: rules 8, 9 ----------------------------------------------------------------------------------------------

void CachingAllocator::release(Block* block) {
  note(SegmentAction::free, block, block->address, block->size);
  counters_.reserved -= block->size;
  block->lane->free.erase(block);
  drop(block);
}

/// Gives back the whole pages inside a free block of an expandable range.
void CachingAllocator::unmap(Block* block) {
  Lane& owner = *block->lane;
  const Bytes page = owner.small ? kSmallSegment : settings_.large_segment_size;
  const Bytes begin = block->range + round_up(block->address - block->range, page);
  const Bytes end = block->range + round_down(block->address + block->size - block->range, page);
  if (begin >= end) return;
  owner.free.erase(block);
  if (begin > block->address) {
    Block* left = new_block(owner, block->address, begin - block->address);
    left->expandable = true;
    left->range = block->range;
    left->requested = block->requested;
    left->prev = block->prev;
    if (left->prev != nullptr) left->prev->next = left;
    left->next = block;
    block->prev = left;
    left->freed_at = searches_;
    owner.free.insert(left);
  }
  if (end < block->address + block->size) {
    Block* right = new_block(owner, end, block->address + block->size - end);
    right->expandable = true;
    right->range = block->range;
    right->requested = block->requested;
    right->next = block->next;
    if (right->next != nullptr) right->next->prev = right;
    right->prev = block;
    block->next = right;
    right->freed_at = searches_;
    owner.free.insert(right);
  }
  block->address = begin;
  block->size = end - begin;
  block->mapped = false;
  absorb(block, block->prev);
  absorb(block, block->next);
  counters_.reserved -= end - begin;
  note(SegmentAction::unmap, block, begin, end - begin);
  if (block->whole()) {
    drop(block);
    return;
  }
  const auto less = [](const Block* x, const Block* y) { return x->address < y->address; };
  owner.unmapped.insert(std::upper_bound(owner.unmapped.begin(), owner.unmapped.end(), block, less), block);
}

void CachingAllocator::release_lane(Lane& from) {
  std::vector<Block*> stretches;
  for (Block* block : from.free.all()) {
    if (block->expandable) {
      stretches.push_back(block);
    } else if (block->whole()) {
      release(block);
    }
  }
  for (Block* block : stretches) unmap(block);
}

void CachingAllocator::empty_cache() {
  complete_all();
  const auto release_all = [this](Arena& arena, bool small) {
    for (const auto& each : arena.lanes[small])
      if (each) release_lane(*each);
  };
  if (!arenas_.empty() && arenas_[0]) {
    release_all(*arenas_[0], false);
    release_all(*arenas_[0], true);
  }
  for (std::size_t p = 1; p < arenas_.size(); ++p) {
    if (!arenas_[p] || !arenas_[p]->retired) continue;
    release_all(*arenas_[p], true);
    release_all(*arenas_[p], false);
  }
}

void CachingAllocator::retire_pool(int pool) {
  const auto p = static_cast<std::size_t>(pool);
  if (p > 0 && p < arenas_.size() && arenas_[p]) arenas_[p]->retired = true;
}

bool CachingAllocator::release_oversize(Lane& from, Bytes size) {
  if (split_limit_ == kUnlimited) return false;
  const Bytes wanted = std::max(size, split_limit_);
  auto at = from.free.at_least(wanted);
  while (!from.free.end(at) && from.free[at]->expandable) at = from.free.next(at);
  if (!from.free.end(at)) {
    release(from.free[at]);
    return true;
  }
  Bytes given = 0;
  std::vector<Block*> all = from.free.all();
  for (auto it = all.rbegin(); it != all.rend() && given < wanted && (*it)->size >= split_limit_; ++it) {
    if ((*it)->expandable) continue;
    given += (*it)->size;
    release(*it);
  }
  return given >= wanted;
}

void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(fraction_limit_));
  if (counters_.reserved <= threshold || arenas_.empty() || !arenas_[0]) return;
  const Bytes target = counters_.reserved - threshold;
  std::vector<Block*> candidates;
  std::int64_t total_age = 0;
  for (const auto& each : arenas_[0]->lanes[0]) {
    if (!each) continue;
    for (Block* block : each->free.all())
      if (block->whole() && !block->expandable) {
        candidates.push_back(block);
        total_age += searches_ - block->freed_at;
      }
  }
  Bytes given = 0;
  for (bool any = true; any && given < target && !candidates.empty();) {
    any = false;
    const double average = static_cast<double>(total_age) / static_cast<double>(candidates.size());
    std::vector<Block*> kept;
    for (Block* block : candidates) {
      const std::int64_t age = searches_ - block->freed_at;
      if (static_cast<double>(age) < average) {
        kept.push_back(block);
        continue;
      }
      any = true;
      given += block->size;
      total_age -= age;
      release(block);
    }
    candidates = std::move(kept);
  }
}

}  // namespace oomplan
