#include "layers/split_keys.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <oomplan/units/bytes.hpp>

namespace oomplan {
namespace {

constexpr std::int64_t kQueriesOfBlock = 64;
constexpr std::int64_t kMostParts = 128;

std::int64_t keys_of_block(std::int64_t head_dim) { return head_dim <= 64 ? 256 : head_dim <= 128 ? 128 : 64; }

/// Parts of keys are whole blocks: a number of parts that leaves as many blocks in each as one part fewer is none.
bool differs(std::int64_t blocks, std::int64_t parts) {
  return parts == 1 || ceil_div(blocks, parts) != ceil_div(blocks, parts - 1);
}

/// How full the multiprocessors are in the last turn and those before it.
float efficiency(std::int64_t blocks, std::int64_t parts, std::int64_t places) {
  const float turns = static_cast<float>(blocks * parts) / static_cast<float>(places);
  return turns / std::ceil(turns);
}

/// The smallest number of parts with 85 % of the best efficiency.
std::int64_t parts_of(std::int64_t query_blocks, std::int64_t key_blocks, std::int64_t places) {
  if (static_cast<float>(query_blocks) >= 0.8F * static_cast<float>(places)) return 1;
  const std::int64_t most = std::min({kMostParts, places, key_blocks});
  std::array<float, kMostParts + 1> found{};
  float best = 0;
  for (std::int64_t n = 1; n <= most; ++n)
    if (differs(key_blocks, n)) {
      found[static_cast<std::size_t>(n)] = efficiency(query_blocks, n, places);
      best = std::max(best, found[static_cast<std::size_t>(n)]);
    }
  for (std::int64_t n = 1; n <= most; ++n)
    if (differs(key_blocks, n) && static_cast<double>(found[static_cast<std::size_t>(n)]) >= 0.85 * static_cast<double>(best))
      return n;
  return 1;
}

}  // namespace

std::int64_t SplitKeys::parts(const Shape& queries) const {
  if (multiprocessors == 0) return 1;
  TokenCounts counts;
  counts.b = sequences;
  counts.s = tokens;
  const std::int64_t rows = queries[2].value(counts), blocks = ceil_div(rows, kQueriesOfBlock);
  const std::int64_t of_queries = queries[0].value(counts) * queries[1].value(counts) * blocks;
  // two blocks of 128 threads to a multiprocessor
  return parts_of(of_queries, ceil_div(rows, keys_of_block(queries[3].value(counts))), 2 * multiprocessors);
}

SplitKeys split_keys(const Architecture& a, std::int64_t multiprocessors, std::int64_t ranks, const TokenCounts& counts) {
  const SplitKeys keys{multiprocessors, counts.b, counts.s};
  const bool some = std::any_of(a.runs.begin(), a.runs.end(), [&](const LayerRun& run) {
    const Mixer& m = run.layer.mixer;
    return m.heads > 0 && keys.parts({axis::B, ceil_div(m.heads, ranks), axis::S, m.head_dim}) > 1;
  });
  return some ? keys : SplitKeys{};
}

}  // namespace oomplan
