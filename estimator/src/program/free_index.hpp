// The free blocks of one lane of the allocator, by size, then address.
//
// A replay has few sizes (a dozen) and many blocks of each: sizes stand in one short sorted list, and behind each the addresses
// of its blocks, falling, in chunks. As fast as a vector while it is short, and never slow when it is long. The lowest address,
// which is the one that is asked for, stands last, where it goes without moving the others. A size without blocks stays a while,
// as it mostly comes back: ranks seldom change, and where a size stood last is mostly where it stands.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <oomplan/units/bytes.hpp>
#include <oomplan/units/errors.hpp>

namespace oomplan {

/// In a list of n sorted things: how many stand before what is looked for, one after another from the first. No branch depends on
/// the answers, which nothing could predict.
template <class Before>
std::size_t count_before(std::size_t n, Before&& before) {
  std::size_t from = 0;
  while (n > 0) {
    const std::size_t half = (n + 1) / 2;
    from += before(from + half - 1) ? half : 0;
    n -= half;
  }
  return from;
}

/// `Block` has size and address, which do not change while it is here.
template <class Block>
class FreeIndex {
 public:
  /// Where a block is. Good until the next insertion or erasure.
  struct At {
    std::size_t size = 0, chunk = 0, slot = 0;
  };
  bool end(At at) const { return at.size >= sizes_.size(); }
  Block* operator[](At at) const { return list(at.size)[at.chunk][at.slot].block; }
  At next(At at) const {
    if (at.slot > 0) return {at.size, at.chunk, at.slot - 1};
    if (at.chunk > 0) return {at.size, at.chunk - 1, list(at.size)[at.chunk - 1].size() - 1};
    return lowest(at.size + 1);
  }
  /// The smallest block of at least `size`; of equals the one with the lowest address.
  At at_least(Bytes size) const { return lowest(rank(size)); }
  void insert(Block* block) {
    const std::size_t r = rank(block->size);
    if (r == sizes_.size() || sizes_[r].bytes != block->size) {
      sizes_.insert(sizes_.begin() + static_cast<std::ptrdiff_t>(r), {block->size, new_list(), 0});
      ++empty_;
    }
    if (sizes_[r].blocks++ == 0) --empty_;
    insert(lists_[sizes_[r].list], block);
  }
  void erase(At at) {
    auto& chunks = lists_[sizes_[at.size].list];
    auto& chunk = chunks[at.chunk];
    chunk.erase(chunk.begin() + static_cast<std::ptrdiff_t>(at.slot));
    if (chunk.empty() && chunks.size() > 1) chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(at.chunk));
    if (--sizes_[at.size].blocks == 0 && ++empty_ > kMostEmpty) forget_empty();
  }
  void erase(const Block* block) {
    const std::size_t r = rank(block->size);
    const bool known = r < sizes_.size() && sizes_[r].bytes == block->size;
    const auto [chunk, slot] = known ? find(list(r), block->address) : std::pair<std::size_t, std::size_t>();
    if (!known || chunk == list(r).size() || list(r)[chunk][slot].block != block)
      throw Defect("allocator: a free block is not where its size says");
    erase({r, chunk, slot});
  }
  /// Every block becomes the one that `name` says. REQUIRES: of the same size and address.
  template <class Name>
  void rename(const Name& name) {
    for (List& chunks : lists_)
      for (auto& chunk : chunks)
        for (Entry& entry : chunk) entry.block = name(entry.block);
  }
  std::vector<Block*> all() const {
    std::vector<Block*> out;
    for (At at = lowest(0); !end(at); at = next(at)) out.push_back((*this)[at]);
    return out;
  }

 private:
  static constexpr std::size_t kChunk = 64, kMostEmpty = 32, kHints = 256;
  struct Size {
    Bytes bytes;
    std::uint32_t list;
    std::uint32_t blocks;
  };
  struct Entry {
    Bytes address;
    Block* block;
  };
  using List = std::vector<std::vector<Entry>>;  // falling; of several chunks none is empty

  const List& list(std::size_t r) const { return lists_[sizes_[r].list]; }
  /// Of all blocks with that size.
  At lowest(std::size_t r) const {
    while (r < sizes_.size() && sizes_[r].blocks == 0) ++r;
    if (r >= sizes_.size()) return {r, 0, 0};
    const List& chunks = list(r);
    return {r, chunks.size() - 1, chunks.back().size() - 1};
  }
  std::size_t rank(Bytes size) const {
    std::uint32_t& hint = hints_[static_cast<std::size_t>((static_cast<std::uint64_t>(size) * 0x9E3779B97F4A7C15ULL) >> 56)];
    if (hint < sizes_.size() && sizes_[hint].bytes >= size && (hint == 0 || sizes_[hint - 1].bytes < size)) return hint;
    const std::size_t r = count_before(sizes_.size(), [&](std::size_t i) { return sizes_[i].bytes < size; });
    hint = static_cast<std::uint32_t>(r);
    return r;
  }
  void forget_empty() {
    for (const Size& size : sizes_)
      if (size.blocks == 0) unused_.push_back(size.list);
    std::erase_if(sizes_, [](const Size& size) { return size.blocks == 0; });
    empty_ = 0;
  }
  /// Chunk and slot of the first entry that is not above `address`; the number of chunks when there is none.
  static std::pair<std::size_t, std::size_t> find(const List& chunks, Bytes address) {
    const std::size_t c =
        chunks.size() == 1 ? 0 : count_before(chunks.size(), [&](std::size_t i) { return chunks[i].back().address > address; });
    if (c == chunks.size()) return {c, 0};
    const Entry* entries = chunks[c].data();
    const std::size_t slot = count_before(chunks[c].size(), [&](std::size_t i) { return entries[i].address > address; });
    return slot == chunks[c].size() ? std::pair{c + 1, std::size_t{0}} : std::pair{c, slot};
  }
  static void insert(List& chunks, Block* block) {
    auto [c, slot] = find(chunks, block->address);
    if (c == chunks.size()) {
      c = chunks.size() - 1;
      slot = chunks[c].size();
    }
    auto& chunk = chunks[c];
    chunk.insert(chunk.begin() + static_cast<std::ptrdiff_t>(slot), {block->address, block});
    if (chunk.size() <= kChunk) return;
    const auto middle = chunk.begin() + kChunk / 2;
    std::vector<Entry> upper(middle, chunk.end());
    chunk.erase(middle, chunk.end());
    chunks.insert(chunks.begin() + static_cast<std::ptrdiff_t>(c) + 1, std::move(upper));
  }
  /// One empty chunk. Sizes come and go: what they used before is used again.
  std::uint32_t new_list() {
    if (unused_.empty()) {
      lists_.emplace_back(1);
      return static_cast<std::uint32_t>(lists_.size() - 1);
    }
    const std::uint32_t number = unused_.back();
    unused_.pop_back();
    return number;
  }

  std::vector<Size> sizes_;                            // sorted
  std::size_t empty_ = 0;                              // sizes without a block
  mutable std::array<std::uint32_t, kHints> hints_{};  // where a size may stand
  std::vector<List> lists_;
  std::vector<std::uint32_t> unused_;
};

}  // namespace oomplan
