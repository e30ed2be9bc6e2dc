#include "training/megatron_host.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <numeric>

namespace oomplan {
namespace {

/// A parameter's part in a rank's share.
struct Part {
  std::int64_t elements = 0;
  bool decays = true;
};
using Parts = std::vector<Part>;

std::int64_t up_to(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// _ParamAndGradBuffer: parameters in reverse order, each from a multiple of 64 on, buckets up to a multiple of lcm(ranks, 128).
class Buffer {
 public:
  Buffer(std::vector<Parts>& of_ranks, std::int64_t bucket)
      : of_ranks_(of_ranks), unit_(std::lcm(std::ssize(of_ranks), std::int64_t{128})), enough_(bucket) {}
  void add(const MegatronTensor& t) {
    if (t.own_bucket) close();
    end_ = up_to(end_, kParameter);
    inside_.push_back({end_, t});
    end_ += t.elements;
    if (t.own_bucket || (enough_ > 0 && end_ >= enough_)) close();
  }
  /// The bucket's parts go to the ranks.
  void close() {
    if (inside_.empty()) return;
    const std::int64_t part = up_to(end_, unit_) / std::ssize(of_ranks_);
    for (const auto& [start, t] : inside_)
      for (std::int64_t at = start; at < start + t.elements;) {
        const std::int64_t rank = at / part, next = std::min(start + t.elements, (rank + 1) * part);
        of_ranks_[static_cast<std::size_t>(rank)].push_back({next - at, t.decays});
        at = next;
      }
    inside_.clear();
    end_ = 0;
  }

 private:
  static constexpr std::int64_t kParameter = 64;
  struct Placed {
    std::int64_t start = 0;
    MegatronTensor tensor;
  };
  std::vector<Parts>& of_ranks_;
  std::vector<Placed> inside_;
  std::int64_t unit_, enough_, end_ = 0;
};

/// HybridDeviceOptimizer takes parameters in the order of its groups until the fraction is reached: those with weight decay
/// first.
class Taking {
 public:
  Taking(const Parts& parts, double fraction) {
    std::int64_t all = 0;
    for (const Part& p : parts) all += p.elements;
    threshold_ = static_cast<double>(all) * fraction;
    for (const bool decays : {true, false})
      for (const Part& p : parts)
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
  std::vector<Parts> parts(static_cast<std::size_t>(ranks));
  Parts all;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    Buffer buffer(parts, buckets[c]);
    for (auto t = chunks[c].rbegin(); t != chunks[c].rend(); ++t) buffer.add(*t);
    buffer.close();
    for (const MegatronTensor& t : chunks[c]) all.push_back({t.elements, t.decays});
  }
  const Taking whole(all, fraction);  // its groups are in the model's order
  std::vector<HostShare> out;
  for (const Parts& own : parts) {
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
