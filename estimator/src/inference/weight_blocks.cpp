#include "inference/weight_blocks.hpp"

#include <algorithm>

namespace oomplan {
namespace {

constexpr Bytes kSmallRequest = kMiB, kSharedSegment = 20 * kMiB, kOwnSegment = 10 * kMiB, kSegmentStep = 2 * kMiB;
constexpr Bytes kAlignment = 512;

}  // namespace

void WeightBlocks::Rests::put(Bytes size) {
  if (count == sizes.size()) {
    if (size <= sizes[0]) return;
    take_at(0);
  }
  const auto end = sizes.begin() + static_cast<std::ptrdiff_t>(count);
  const auto at = std::upper_bound(sizes.begin(), end, size);
  std::copy_backward(at, end, end + 1);
  *at = size;
  ++count;
}

Bytes WeightBlocks::Rests::take_at(std::size_t index) {
  const Bytes out = sizes[index];
  std::copy(sizes.begin() + static_cast<std::ptrdiff_t>(index) + 1, sizes.begin() + static_cast<std::ptrdiff_t>(count),
            sizes.begin() + static_cast<std::ptrdiff_t>(index));
  sizes[--count] = 0;
  return out;
}

bool WeightBlocks::cuts(Bytes block, Bytes request) const {
  return block - request > kSmallRequest && (max_split_ == 0 || request < max_split_);
}

void WeightBlocks::take(Bytes bytes) {
  if (bytes <= 0) return;
  const Bytes request = round_up(bytes, kAlignment);
  totals_.asked += bytes;
  if (request <= kSmallRequest) {  // blocks of 512 bytes in segments of 2 MiB, which fill up
    totals_.counted += bytes;
    totals_.reserved += bytes;
    return;
  }
  std::size_t at = 0;
  while (at < rests_.count && rests_.sizes[at] < request) ++at;
  Bytes block = 0;
  if (at < rests_.count) {
    block = rests_.take_at(at);
  } else {
    block = request < kOwnSegment ? kSharedSegment : round_up(request, kSegmentStep);
    totals_.reserved += block;
  }
  const bool cut = cuts(block, request);
  totals_.counted += cut ? request : block;
  if (cut && block - request >= smallest_) rests_.put(block - request);
}

void WeightBlocks::layers(std::span<const Bytes> tensors, std::int64_t count) {
  for (std::int64_t left = count; left > 0; --left) {
    const Rests before = rests_;
    const Totals from = totals_;
    for (const Bytes tensor : tensors) take(tensor);
    if (rests_ != before) continue;
    totals_.asked += (left - 1) * (totals_.asked - from.asked);
    totals_.counted += (left - 1) * (totals_.counted - from.counted);
    totals_.reserved += (left - 1) * (totals_.reserved - from.reserved);
    return;
  }
}

}  // namespace oomplan
