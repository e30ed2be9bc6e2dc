#include "training/megatron_host.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <numeric>

#include "training/megatron_shares.hpp"

namespace oomplan {
namespace {

/// HybridDeviceOptimizer takes parameters in the order of its groups until the fraction is reached: those with weight decay
/// first.
class Taking {
 public:
  Taking(const MegatronParts& parts, double fraction) {
    std::int64_t all = 0;
    for (const MegatronPart& p : parts) all += p.elements;
    threshold_ = static_cast<double>(all) * fraction;
    for (const bool decays : {true, false})
      for (const MegatronPart& p : parts)
        if (p.decays == decays) take(p.elements);
  }
  std::int64_t kept = 0, largest = 0, largest_kept = 0;
  std::vector<std::int64_t> offloaded;
  std::int64_t sum() const { return std::accumulate(offloaded.begin(), offloaded.end(), std::int64_t{0}); }

 private:
  void take(std::int64_t elements) {
    if (static_cast<double>(taken_) >= threshold_) {
      kept += elements;
      largest_kept = std::max(largest_kept, elements);
      return;
    }
    taken_ += elements;
    largest = std::max(largest, elements);
    offloaded.push_back(elements);
  }
  double threshold_ = 0;
  std::int64_t taken_ = 0;
};

/// aten/src/ATen/core/CachingHostAllocator.h: a block is a power of two, and is used again by what needs as large a one. A 16-bit
/// copy of every offloaded parameter was pinned for a moment, of the whole one and of the share, before gradients were.
Bytes pinned_blocks(const Taking& whole, const Taking& share) {
  const auto block = [](Bytes bytes) { return static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(bytes))); };
  std::map<Bytes, std::int64_t> blocks;
  for (const std::int64_t n : share.offloaded) ++blocks[block(bytes_of(n, DType::fp32))];
  for (const Taking* once : {&whole, &share})
    for (const std::int64_t n : once->offloaded) blocks.try_emplace(block(bytes_of(n, DType::bf16)), 1);
  Bytes out = 0;
  for (const auto& [size, count] : blocks) out += size * count;
  return out;
}

}  // namespace

std::vector<HostShare> host_shares(const std::vector<std::vector<MegatronTensor>>& chunks,
                                   const std::vector<std::int64_t>& buckets, std::int64_t ranks, double fraction) {
  const std::vector<MegatronParts> parts = parts_of_ranks(chunks, buckets, ranks);
  MegatronParts all;
  for (const auto& chunk : chunks)
    for (const MegatronTensor& t : chunk) all.push_back({t.elements, t.decays});
  const Taking whole(all, fraction);  // its groups are in the model's order
  std::vector<HostShare> out;
  for (const MegatronParts& own : parts) {
    const Taking share(own, fraction);
    out.push_back(
        {share.kept, share.sum(), whole.kept, whole.sum(), share.largest, share.largest_kept, pinned_blocks(whole, share)});
  }
  return out;
}

HostShare fullest_share(const std::vector<HostShare>& shares) {
  HostShare out;
  if (shares.empty()) return out;
  std::int64_t offloaded = 0;
  Bytes pinned = 0;
  for (const HostShare& s : shares) {
    if (s.kept >= out.kept) out = s;
    offloaded += s.offloaded;
    pinned += s.pinned;
  }
  for (const HostShare& s : shares) {
    out.largest = std::max(out.largest, s.largest);
    out.largest_kept = std::max(out.largest_kept, s.largest_kept);
  }
  out.offloaded = ceil_div(offloaded, std::ssize(shares));
  out.pinned = ceil_div(pinned, std::ssize(shares));
  return out;
}

}  // namespace oomplan
