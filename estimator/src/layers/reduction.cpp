#include "layers/reduction.hpp"

#include <algorithm>
#include <bit>

namespace oomplan {
namespace {

/// A tile of threads: `width` of them side by side along the columns, each with `vector` columns, `height` along the rows.
struct ThreadBlock {
  std::int64_t width, height, vector;
};

ThreadBlock block_of(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kMostThreads = 512, kWarp = 32;
  const std::int64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const std::int64_t most = kMostThreads / vector;
  const auto power = [&](std::int64_t n) {
    return n < most ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(n, 1)))) : most;
  };
  const std::int64_t across = power(columns / vector), down = power(rows);
  const std::int64_t height = std::min(down, most / std::min(across, kWarp));
  return {std::min(across, most / height), height, vector};
}

}  // namespace

Bytes row_sum_buffer(std::int64_t rows, std::int64_t columns, std::int64_t resident_threads) {
  constexpr std::int64_t kFewest = 16, kMost = 256, kFp32 = 4;
  const ThreadBlock block = block_of(rows, columns);
  if (rows < std::min(block.height * kFewest, kMost)) return 0;
  const std::int64_t each = ceil_div(rows, block.height);
  const std::int64_t grid = ceil_div(columns / block.vector, block.width);
  const std::int64_t wanted = resident_threads / (block.width * block.height);
  if (each < kMost || grid > wanted) return 0;
  const std::int64_t parts = std::max(std::min(ceil_div(wanted, grid), ceil_div(each, kFewest)), ceil_div(each, kMost));
  return parts > 1 ? kFp32 * columns * parts * block.width * block.vector : 0;
}

}  // namespace oomplan
