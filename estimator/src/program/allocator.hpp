// A replay of PyTorch's CUDA caching allocator: the same requests give the same segments, the same addresses and the same
// reserved bytes. docs/allocator.md lists the rules, and which of them were judged against recorded runs.
//
// Memory comes from the driver in segments (or, with expandable segments, in pages of a reserved range), is cut into blocks,
// and freed blocks stay with the allocator. When the driver refuses, everything that can be given back is, and the request is
// tried once more. A CachingAllocator belongs to one process on one device. It holds no memory: addresses are made up.
//
// Addresses matter only where best fit breaks a tie. New segments lie below all earlier ones, as real drivers do on Linux;
// `rising_addresses` puts them above, as on Windows.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include <oomplan/units/bytes.hpp>
#include <oomplan/units/errors.hpp>

namespace oomplan {

/// What PYTORCH_CUDA_ALLOC_CONF and the device decide.
struct AllocatorSettings {
  bool expandable_segments = false;
  Bytes max_split_size = -1;                       ///< blocks from here on are never split; -1: no such limit
  Bytes max_non_split_rounding = 20 * kMiB;        ///< how much larger than asked an unsplittable block may be
  Bytes large_segment_size = 20 * kMiB;            ///< of requests above 1 MiB and below 10 MiB
  double garbage_collection_threshold = 0;         ///< 0: off. Needs a memory fraction, as in PyTorch
  std::array<int, 16> roundup_power2_divisions{};  ///< [i]: of sizes from 2^i to 2^(i+1) MiB; 0: off
  double memory_fraction = 0;                      ///< set_per_process_memory_fraction of `device_total`; 0: not set
  bool native = true;  ///< false: backend:cudaMallocAsync, another allocator; what is replayed is the native one
  bool rising_addresses = false;
  Bytes device_total = 0;                                  ///< size of the device; 0: unknown, and expandable ranges are 1 TiB
  Bytes device_limit = std::numeric_limits<Bytes>::max();  ///< all that the driver gives: this allocator and `outside`

  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

/// Reads the text of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF over `base`. Options that change no sizes (pinned memory,
/// locks) are accepted and checked. Throws InputError with every problem; `place` is where the text stands in the user's input.
AllocatorSettings parse_allocator_settings(std::string_view text, const Place& place = {}, AllocatorSettings base = {});

enum class SegmentAction : std::uint8_t { alloc, free, map, unmap };
/// What the driver was asked for or given back.
struct SegmentEvent {
  SegmentAction action = SegmentAction::alloc;
  Bytes address = 0;
  Bytes bytes = 0;
  int stream = 0;
  int pool = 0;
  friend bool operator==(const SegmentEvent&, const SegmentEvent&) = default;
};

enum class BlockState : std::uint8_t { inactive, active, pending };
struct BlockRecord {
  Bytes size = 0;
  Bytes requested = 0;  ///< of an inactive block: whatever was asked last
  BlockState state = BlockState::inactive;
  friend bool operator==(const BlockRecord&, const BlockRecord&) = default;
};
/// A segment, or a contiguous mapped stretch of an expandable one; its blocks fill it in order of address.
struct SegmentRecord {
  Bytes address = 0;
  Bytes bytes = 0;
  int stream = 0;
  int pool = 0;
  bool small = false;
  bool expandable = false;
  std::vector<BlockRecord> blocks;
  friend bool operator==(const SegmentRecord&, const SegmentRecord&) = default;
};

class CachingAllocator {
 public:
  struct Block;

  /// As torch.cuda.memory_stats() shows them. `active` also counts freed blocks that another stream still uses.
  struct Counters {
    Bytes allocated = 0, allocated_peak = 0;  ///< whole blocks
    Bytes reserved = 0, reserved_peak = 0;
    Bytes active = 0, active_peak = 0;
    Bytes requested = 0, requested_peak = 0;            ///< as asked for
    Bytes device_peak = 0;                              ///< highest reserved + outside
    Bytes refused = std::numeric_limits<Bytes>::max();  ///< lowest level that the driver refused; the same run on any smaller
                                                        ///< device that holds device_peak is the same
    std::int64_t retries = 0;                           ///< num_alloc_retries
    std::int64_t ooms = 0;                              ///< num_ooms
  };

  explicit CachingAllocator(const AllocatorSettings&);
  ~CachingAllocator();
  /// Goes on from the same state by itself. REQUIRES: segments are neither logged nor placed by somebody.
  CachingAllocator(const CachingAllocator&);
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// The block of a request, or nullptr when memory has run out (the allocator stays usable). REQUIRES: bytes > 0 (PyTorch
  /// gives an empty request no block), stream and pool >= 0 and small: they index tables. Pool 0 is the default one, others
  /// are private (CUDA graphs, MemPools).
  Block* allocate(Bytes bytes, int stream = 0, int pool = 0);
  /// REQUIRES: the block is allocated.
  void free(Block*);
  /// A free while another stream still uses the block (record_stream): it stays active until complete().
  void free_later(Block*);
  /// The other streams are done with it. REQUIRES: free_later(block) came before.
  void complete(Block*);
  void complete_all();
  /// The CPU has waited for all but the latest `keep` of them.
  void complete_but(std::size_t keep);
  /// Frees that wait.
  std::size_t pending() const { return pending_.size(); }
  /// torch.cuda.empty_cache(): waits for pending frees, then gives back what is wholly free. Private pools keep theirs.
  void empty_cache();
  /// From now on empty_cache and retries take from this private pool too (nothing uses it any more).
  void retire_pool(int pool);

  /// Bytes of the device that others hold: context, NCCL, other processes. Counts against device_limit.
  /// False, and nothing changes, when they do not fit beside what is reserved.
  bool set_outside(Bytes bytes);
  Bytes outside() const { return outside_; }
  /// From now on the device is this large; Counters::refused starts again. What is reserved stays.
  void set_device_limit(Bytes limit);
  /// torch.cuda.memory._set_allocator_settings("expandable_segments:..."): of later requests. What is reserved stays as it is.
  void set_expandable_segments(bool on) { settings_.expandable_segments = on; }

  const Counters& counters() const { return counters_; }
  /// torch.cuda.reset_peak_memory_stats(): peaks start again from the present levels.
  void reset_peaks();
  static Bytes address(const Block*);
  static Bytes size(const Block*);

  /// What is reserved: segments by address, with their blocks.
  std::vector<SegmentRecord> state() const;
  /// What decides the future, without addresses: all blocks and gaps in order, each block of `owners` (entries may be nullptr) by
  /// its number there. Two equal shapes answer the same requests alike. Ages for garbage collection are not in it.
  std::vector<Bytes> shape(const std::vector<Block*>& owners) const;
  /// The block here that stands for one of the allocator of which this is a copy.
  Block* twin(const Block& of_the_other);
  /// How many blocks its books have room for: what a copy costs.
  std::size_t blocks() const;
  /// Starts from recorded segments instead of an empty device. Returns the active blocks in the order of the records.
  /// REQUIRES: nothing was allocated yet; no segment is expandable; no two inactive neighbours.
  std::vector<Block*> restore(const std::vector<SegmentRecord>&);

  /// Appends to `log` what is taken from and given to the driver. nullptr: no more.
  void log_segments(std::vector<SegmentEvent>* log) { log_ = log; }
  /// Where the driver puts the next segment or range of that many bytes, instead of made-up addresses.
  void place_segments(std::function<Bytes(Bytes)> where) { where_ = std::move(where); }

  /// The size of the block for a request, before whole blocks are handed out.
  Bytes rounded(Bytes bytes) const;

 private:
  struct Lane;
  struct Arena;
  Lane& lane(int pool, bool small, int stream);
  Block* new_block(Lane&, Bytes address, Bytes size);
  void drop(Block*);
  Block* take_free(Lane&, Bytes rounded);
  Block* take_from_driver(Lane&, Bytes rounded, Bytes segment);
  Block* take_expandable(Lane&, Bytes rounded);
  Block* find_expandable(Lane&, Bytes rounded);
  bool map(Block*, Bytes wanted);
  void unmap(Block*);
  bool absorb(Block* into, Block* from);
  void to_free(Block*);
  void release(Block*);
  void release_lane(Lane&);
  bool release_oversize(Lane&, Bytes rounded);
  void collect_garbage();
  bool driver_gives(Bytes bytes);
  Bytes place(Bytes bytes);
  Bytes segment_size(Bytes rounded) const;
  bool splits(const Lane&, Bytes block, Bytes rounded) const;
  void note(SegmentAction, const Block*, Bytes address, Bytes bytes);

  AllocatorSettings settings_;
  Bytes split_limit_;     // max_split_size, or the largest number
  Bytes fraction_limit_;  // likewise
  bool collects_ = false;
  bool divides_ = false;
  Counters counters_;
  Bytes outside_ = 0;
  Bytes next_address_;
  std::int64_t searches_ = 0;  // of the default pool's large blocks: the clock of garbage collection
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::deque<Block> blocks_;  // storage: addresses of Blocks are stable
  Block* spare_ = nullptr;    // chain of unused Blocks, through `next`
  std::vector<Block*> pending_;
  std::vector<SegmentEvent>* log_ = nullptr;
  std::function<Bytes(Bytes)> where_;
};

}  // namespace oomplan
