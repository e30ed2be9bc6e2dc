#include "layers/attention_tiles.hpp"

#include <algorithm>

#include <oomplan/units/bytes.hpp>

#include "layers/decoder.hpp"

namespace oomplan {
namespace {

constexpr std::int64_t kWide = 128;        // columns of a head that the forward kernel keeps in registers
constexpr std::int64_t kMostRows = 128;    // of a tile
constexpr std::int64_t kMostSplits = 200;  // of keys, over all heads of a batch

/// Queries and keys of a tile. `sums`: gradients of keys and values are summed outside of the registers.
struct Tile {
  std::int64_t queries, keys;
  bool sums;
};

Tile tile_of(std::int64_t width, bool half, SharedMemory memory) {
  if (width <= 64) return {64, 64, false};
  if (!half) return {128, 64, false};  // fp32 sums are the gradients themselves
  if (memory == SharedMemory::small_ampere_ada && width <= 96) return {128, 64, false};
  if (width > kWide) return {128, 64, true};
  if (memory == SharedMemory::volta) return {128, 64, false};
  return memory == SharedMemory::large ? Tile{128, 128, false} : Tile{64, 64, true};
}

std::int64_t columns(const Tensor& x) { return x.shape.back().coefficient; }

bool has_wide_heads(const Architecture& a, SharedMemory memory) {
  return std::any_of(a.runs.begin(), a.runs.end(), [&](const LayerRun& run) {
    const Mixer& m = run.layer.mixer;
    return m.heads > 0 && tile_of(std::max(m.head_dim, m.value_head_dim), true, memory).sums;
  });
}

/// Into how many parts one head's keys are split.
std::int64_t splits_of(const Tile& tile, std::int64_t heads, std::int64_t keys) {
  std::int64_t out = heads >= 256 && keys <= 2 * tile.keys ? 1 : ceil_div(keys, tile.keys);
  out = std::min(out, kMostSplits / std::max<std::int64_t>(1, heads));
  return std::max<std::int64_t>(1, out);
}

}  // namespace

SharedMemory shared_memory(std::string_view sm) {
  if (sm == "sm86" || sm == "sm89") return SharedMemory::small_ampere_ada;
  if (sm == "sm120" || sm == "sm121") return SharedMemory::small;
  if (sm == "sm70" || sm == "sm75") return SharedMemory::volta;
  return SharedMemory::large;
}

Dim AttentionTiles::rows(const Dim& axis, std::int64_t tile) const {
  const bool number = axis == Dim(axis.coefficient);
  if (tokens == 0 && !number) return axis;
  TokenCounts counts;
  counts.b = sequences;
  counts.s = tokens;
  return round_up(axis.value(counts), tile);
}

AttentionTiles attention_tiles(const KernelOptions& k, const Architecture& a, const TokenCounts& counts, SharedMemory memory) {
  AttentionTiles out{.memory = memory};
  const bool sdpa = k.kernels == Kernels::hf_sdpa, flash = k.kernels == Kernels::hf_flash;
  out.by_length = flash && k.padding_mask;
  const bool whole = counts.s % kMostRows == 0 && !out.by_length;
  if ((!sdpa && !flash) || (whole && !(sdpa && has_wide_heads(a, memory)))) return out;
  out.sequences = counts.b;
  out.tokens = counts.s;
  return out;
}

Shape flash_sums(const Shape& queries, const AttentionTiles& tiles) {
  const std::int64_t width = queries.back().coefficient;
  Shape out = with_last(queries, Dim(round_up(width, width <= kWide ? 32 : 64)));
  if (!tiles.by_length) {
    out[2] = tiles.rows(queries[2], kMostRows);
  } else if (tiles.tokens > 0) {
    out[2] = Dim(tiles.rows(queries[2], 1).coefficient + kMostRows);
  }
  return out;
}

void make_efficient_forward(Eager& g, const Tensor& q, const Tensor& v) {
  if (q.dtype == DType::fp32 || std::max(columns(q), columns(v)) <= kWide) return;
  const Tensor sums = g.make("attention.out_accum", with_last(q.shape, v.shape.back()), DType::fp32, Category::workspace);
}

void make_efficient_backward(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, DType dtype,
                             const AttentionTiles& tiles) {
  const Shape by_row{q.shape[0], q.shape[1], q.shape[2]};
  const Tile tile = tile_of(std::max(columns(q), columns(v)), dtype != DType::fp32, tiles.memory);
  Tensor delta;
  if (dtype == DType::fp32) {
    const Tensor product = g.make("attention.delta_product", with_last(q.shape, v.shape.back()), dtype, Category::workspace);
    const Tensor sum = g.make("attention.delta_sum", by_row, dtype, Category::workspace);
    delta = g.make("attention.delta", by_row, DType::fp32, Category::temporaries);
  } else {
    delta = g.make("attention.delta", by_row, DType::fp32, Category::temporaries);
  }
  const std::int64_t parts = ceil_div(columns(q), tile.keys);
  Shape of_queries{q.shape[0], q.shape[1], tiles.rows(q.shape[2], tile.queries), Dim(parts * tile.keys)};
  const Tensor sums = g.make("attention.dq_accum", std::move(of_queries), DType::fp32, Category::workspace);
  if (!tile.sums || tiles.tokens == 0) return;
  TokenCounts counts;
  counts.b = tiles.sequences;
  counts.s = tiles.tokens;
  const std::int64_t splits = splits_of(tile, (q.shape[0] * q.shape[1]).value(counts), k.shape[2].value(counts));
  const std::int64_t width = round_up(columns(k), tile.queries) + round_up(columns(v), tile.queries);
  Shape of_keys{q.shape[0], q.shape[1], Dim(splits * tile.keys), Dim(width)};
  const Tensor more = g.make("attention.dkv_accum", std::move(of_keys), DType::fp32, Category::workspace);
}

}  // namespace oomplan
