// The allocator's state as it is written down, compared and taken up again.
#include <algorithm>

#include "program/allocator_blocks.hpp"

namespace oomplan {

CachingAllocator::CachingAllocator(const CachingAllocator& o)
    : settings_(o.settings_),
      split_limit_(o.split_limit_),
      fraction_limit_(o.fraction_limit_),
      collects_(o.collects_),
      divides_(o.divides_),
      counters_(o.counters_),
      outside_(o.outside_),
      next_address_(o.next_address_),
      searches_(o.searches_),
      blocks_(o.blocks_) {
  if (o.log_ != nullptr || o.where_) throw Defect("allocator: a copy would write to another's log");
  const auto twin_of = [&](const Block* block) { return block == nullptr ? nullptr : twin(*block); };
  for (std::size_t p = 0; p < o.arenas_.size(); ++p) {
    arenas_.push_back(o.arenas_[p] ? std::make_unique<Arena>() : nullptr);
    if (!o.arenas_[p]) continue;
    arenas_[p]->retired = o.arenas_[p]->retired;
    for (std::size_t small = 0; small < 2; ++small)
      for (const auto& lane : o.arenas_[p]->lanes[small])
        arenas_[p]->lanes[small].push_back(lane ? std::make_unique<Lane>(*lane) : nullptr);
    for (auto& lanes : arenas_[p]->lanes)
      for (auto& lane : lanes) {
        if (!lane) continue;
        lane->free.rename(twin_of);
        std::transform(lane->unmapped.begin(), lane->unmapped.end(), lane->unmapped.begin(), twin_of);
      }
  }
  for (Block& block : blocks_) {
    block.prev = twin_of(block.prev);
    block.next = twin_of(block.next);
    if (block.lane != nullptr) block.lane = &lane(block.lane->pool, block.lane->small, block.lane->stream);
  }
  spare_ = twin_of(o.spare_);
  for (const Block* block : o.pending_) pending_.push_back(twin_of(block));
}

CachingAllocator::Block* CachingAllocator::twin(const Block& of_the_other) { return &blocks_[of_the_other.number]; }
std::size_t CachingAllocator::blocks() const { return blocks_.size(); }

std::vector<SegmentRecord> CachingAllocator::state() const {
  std::vector<const Block*> heads;
  for (const Block& block : blocks_)
    if (block.lane != nullptr && block.mapped && (block.prev == nullptr || !block.prev->mapped)) heads.push_back(&block);
  std::sort(heads.begin(), heads.end(), [](const Block* x, const Block* y) { return x->address < y->address; });
  std::vector<SegmentRecord> out;
  out.reserve(heads.size());
  for (const Block* head : heads) {
    SegmentRecord& row = out.emplace_back();
    row.address = head->address;
    row.stream = head->lane->stream;
    row.pool = head->lane->pool;
    row.small = head->lane->small;
    row.expandable = head->expandable;
    for (const Block* b = head; b != nullptr && b->mapped; b = b->next) {
      row.bytes += b->size;
      row.blocks.push_back({b->size, b->requested,
                            b->allocated ? BlockState::active
                            : b->pending ? BlockState::pending
                                         : BlockState::inactive});
    }
  }
  return out;
}

std::vector<Bytes> CachingAllocator::shape(const std::vector<Block*>& owners) const {
  for (std::size_t i = 0; i < owners.size(); ++i)
    if (owners[i] != nullptr) owners[i]->owner = static_cast<std::int32_t>(i);
  std::vector<const Block*> heads;
  for (const Block& block : blocks_)
    if (block.lane != nullptr && block.prev == nullptr) heads.push_back(&block);
  std::sort(heads.begin(), heads.end(), [](const Block* x, const Block* y) { return x->address < y->address; });
  std::vector<Bytes> out;
  for (const Block* head : heads) {
    const Lane& in = *head->lane;
    for (const Bytes word : {Bytes{-1}, Bytes{in.stream}, Bytes{in.pool}, Bytes{in.small}, Bytes{head->expandable}})
      out.push_back(word);
    for (const Block* b = head; b != nullptr; b = b->next) {
      out.push_back(b->size);
      out.push_back(!b->mapped ? -4 : b->pending ? -3 : b->allocated ? Bytes{b->owner} : -2);
    }
  }
  for (Block* block : owners)
    if (block != nullptr) block->owner = -1;
  return out;
}

std::vector<CachingAllocator::Block*> CachingAllocator::restore(const std::vector<SegmentRecord>& records) {
  std::vector<Block*> active;
  for (const auto& record : records) {
    if (record.expandable) throw Defect("allocator: expandable segments cannot be restored");
    Lane& to = lane(record.pool, record.small, record.stream);
    Block* last = nullptr;
    Bytes at = record.address;
    for (const auto& row : record.blocks) {
      Block* block = new_block(to, at, row.size);
      block->requested = row.requested;
      block->prev = last;
      if (last != nullptr) last->next = block;
      last = block;
      at += row.size;
      if (row.state == BlockState::inactive) {
        to.free.insert(block);
        continue;
      }
      block->allocated = true;
      active.push_back(block);
      counters_.allocated += row.size;
      counters_.active += row.size;
      counters_.requested += row.requested;
    }
    if (at != record.address + record.bytes) throw Defect("allocator: the blocks of a segment do not fill it");
    counters_.reserved += record.bytes;
  }
  counters_.allocated_peak = std::max(counters_.allocated_peak, counters_.allocated);
  counters_.active_peak = std::max(counters_.active_peak, counters_.active);
  counters_.requested_peak = std::max(counters_.requested_peak, counters_.requested);
  counters_.reserved_peak = std::max(counters_.reserved_peak, counters_.reserved);
  counters_.device_peak = std::max(counters_.device_peak, counters_.reserved + outside_);
  return active;
}

}  // namespace oomplan
