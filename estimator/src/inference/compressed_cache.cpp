// Every layer has pages of 64 tokens for its window. Beside them stand entries of 4 or 128 tokens, in pages of 256 tokens, the
// indexer's keys of the same entries, and what an entry that is not finished yet is made of. Layers that need pages for the same
// tokens are a group; a page number stands for one page in every layer of a group, and groups share the bytes of a block.
//
// Sources: vllm/models/deepseek_v4/{attention,compressor}.py, vllm/v1/attention/backends/mla/sparse_swa.py and
// vllm/v1/{kv_cache_interface,core/kv_cache_utils}.py, 0.24; deepseek_v4_attention.py and deepseek_compressor.py, 0.20.
#include "inference/compressed_cache.hpp"

#include <algorithm>
#include <array>

namespace oomplan {
namespace {

constexpr Bytes kPageAlign = 576;             ///< of every page: FlashMLA reads rows so (MLAAttentionSpec.alignment)
constexpr std::int64_t kWindowTokens = 64;    ///< of a page (DeepseekV4SWACache.block_size)
constexpr std::int64_t kOverlapping = 4;      ///< tokens of an entry whose windows overlap
constexpr std::int64_t kScaleElements = 64;   ///< of latent elements in fp8 (compressor.py _quant_block)
constexpr std::int64_t kIndexElements = 128;  ///< of an indexer's key that share one fp32 scale

/// Layers of a group whose pages have one size.
struct PageSlots {
  Bytes page = 0;
  std::int64_t layers = 0;
};

/// Layers that need pages for the same tokens.
struct TokenGroup {
  std::array<PageSlots, 4> sizes{};
  int count = 0;
  std::int64_t tokens = 0;  ///< of a page
  std::int64_t window = 0;  ///< tokens that are kept; 0: all

  void add(Bytes page, std::int64_t layers) {
    if (page == 0 || layers == 0) return;
    int at = 0;
    while (at < count && sizes[static_cast<std::size_t>(at)].page != page) ++at;
    if (at == count) sizes[static_cast<std::size_t>(count++)].page = page;
    sizes[static_cast<std::size_t>(at)].layers += layers;
  }
  /// One page in every layer.
  Bytes bytes() const {
    Bytes out = 0;
    for (int i = 0; i < count; ++i) out += sizes[static_cast<std::size_t>(i)].page * sizes[static_cast<std::size_t>(i)].layers;
    return out;
  }
  std::int64_t most_layers() const {
    std::int64_t out = 0;
    for (int i = 0; i < count; ++i) out = std::max(out, sizes[static_cast<std::size_t>(i)].layers);
    return out;
  }
  /// KVCacheSpec.max_memory_usage_bytes, in pages.
  std::int64_t pages(const CacheAsk& ask) const {
    const std::int64_t S = std::max<std::int64_t>(1, ask.max_model_len);
    if (window == 0) return ceil_div(S, tokens);
    return ceil_div(std::min(window - 1 + ask.batched_tokens, S), tokens) + 1;
  }
};

/// Of the states of entries that are not finished (CompressorStateCache.block_size and sliding_window).
std::int64_t state_tokens(std::int64_t ratio) { return ratio == kOverlapping ? 4 : 8; }
std::int64_t state_window(std::int64_t ratio) { return ratio == kOverlapping ? 2 * ratio : ratio; }

Bytes aligned_page(std::int64_t rows, Bytes row) { return round_up(rows * row, kPageAlign); }

/// The entries first, then the windows, then the states of each ratio.
struct TokenGroups {
  std::array<TokenGroup, kMostBuckets + 2> all{};
  std::size_t count = 2;

  TokenGroup& of(std::int64_t tokens, std::int64_t window) {
    std::size_t at = 2;
    while (at < count && (all[at].tokens != tokens || all[at].window != window)) ++at;
    if (at == count) {
      all[count].tokens = tokens;
      all[count++].window = window;
    }
    return all[at];
  }
};

TokenGroups groups_of(const Stage& s, std::int64_t page_tokens) {
  TokenGroups out;
  TokenGroup& entries = out.all[0];
  TokenGroup& windows = out.all[1];
  entries.tokens = page_tokens;
  windows.tokens = kWindowTokens;
  for (int i = 0; i < s.bucket_count; ++i) {
    const CacheBucket& b = s.buckets[static_cast<std::size_t>(i)];
    const Compression& c = b.compression;
    windows.window = b.window;
    windows.add(aligned_page(kWindowTokens, b.token), b.layers);
    if (c.ratio == 0) continue;
    entries.add(aligned_page(page_tokens / c.ratio, b.token), b.layers);
    entries.add(aligned_page(page_tokens / c.ratio, c.index_entry), b.layers);
    TokenGroup& states = out.of(state_tokens(c.ratio), state_window(c.ratio));
    states.add(aligned_page(states.tokens, c.state), b.layers);
    states.add(aligned_page(states.tokens, c.index_state), b.layers);
  }
  return out;
}

/// How many layers of a size a group has at most: the number that wastes least where groups are rounded up to its multiples, not
/// below that of the entries; of several the largest (_approximate_gcd).
std::int64_t layers_of_a_group(const TokenGroups& groups) {
  const std::int64_t least = groups.all[0].most_layers();
  std::int64_t most = 0, best = least, waste = INT64_MAX;
  for (std::size_t g = 0; g < groups.count; ++g) most = std::max(most, groups.all[g].most_layers());
  for (std::int64_t d = std::max<std::int64_t>(1, least); d <= most; ++d) {
    std::int64_t padding = 0;
    for (std::size_t g = 0; g < groups.count; ++g)
      padding += round_up(groups.all[g].most_layers(), d) - groups.all[g].most_layers();
    if (padding > waste) continue;
    waste = padding;
    best = d;
  }
  return best;
}

/// A block of the pool: room for one page of whichever group it is given to.
class PoolBlock {
 public:
  explicit PoolBlock(const TokenGroup& entries) : entries_(entries) {}

  /// Pages grow to the next size that the entries have (_get_kv_cache_groups_uniform_groups).
  void pad(TokenGroup& g) const {
    for (int i = 0; i < g.count; ++i) {
      Bytes& page = g.sizes[static_cast<std::size_t>(i)].page;
      Bytes next = 0;
      for (int k = 0; k < entries_.count; ++k)
        if (const Bytes size = entries_.sizes[static_cast<std::size_t>(k)].page; size >= page && (next == 0 || size < next))
          next = size;
      page = std::max(page, next);
    }
  }
  void hold(const TokenGroup& g, std::int64_t layers) {
    for (int i = 0; i < g.count; ++i) {
      const PageSlots& of = g.sizes[static_cast<std::size_t>(i)];
      for (int k = 0; k < entries_.count; ++k)
        if (entries_.sizes[static_cast<std::size_t>(k)].page == of.page)
          slots_[static_cast<std::size_t>(k)] = std::max(slots_[static_cast<std::size_t>(k)], std::min(layers, of.layers));
    }
  }
  /// As many slots of every size, up to 0.22; of each as many as are used, from 0.23 on (_get_kv_cache_config_packed).
  Bytes bytes(bool packed) const {
    Bytes out = 0;
    for (int k = 0; k < entries_.count; ++k)
      out += entries_.sizes[static_cast<std::size_t>(k)].page * (packed ? slots_[static_cast<std::size_t>(k)] : most());
    return out;
  }
  std::int64_t most() const { return *std::max_element(slots_.begin(), slots_.end()); }

 private:
  const TokenGroup& entries_;
  std::array<std::int64_t, 4> slots_{};
};

}  // namespace

LayerCache compressed_layer(const Mixer& m) {
  LayerCache out;
  out.kind = CacheKind::compressed;
  out.window = m.window;
  out.heads = 1;
  // latent elements in fp8, rotated ones in 16 bits, a byte of scale for 64, padded to 8 (fp8_ds_mla)
  out.token_head = m.nope_head_dim + 2 * m.rope_head_dim + round_up(ceil_div(m.nope_head_dim, kScaleElements), 8);
  if (m.compress_ratio == 0) return out;
  out.compression.ratio = m.compress_ratio;
  const std::int64_t overlap = m.compress_ratio == kOverlapping ? 2 : 1;
  out.compression.state = bytes_of(2 * overlap * m.head_dim, DType::fp32);  // the sum and its weights
  if (m.index_heads == 0) return out;
  out.compression.index_entry = m.index_head_dim + m.index_head_dim / kIndexElements * 4;
  out.compression.index_state = bytes_of(2 * overlap * m.index_head_dim, DType::fp32);
  return out;
}

bool has_compressed(const Stage& s) {
  return std::any_of(s.buckets.begin(), s.buckets.begin() + s.bucket_count,
                     [](const CacheBucket& b) { return b.kind == CacheKind::compressed; });
}

CachePool compressed_pool(const Stage& stage, const ServerFacts& f, const CacheAsk& ask) {
  CachePool out;
  TokenGroups groups = groups_of(stage, f.page_tokens);
  const TokenGroup& entries = groups.all[0];
  if (entries.count == 0) return out;
  const std::int64_t layers = layers_of_a_group(groups);
  PoolBlock block(entries);
  std::int64_t pages = 0, group_count = 0, least_tokens = f.page_tokens;
  Bytes asked = 0;
  for (std::size_t g = 0; g < groups.count; ++g) {
    TokenGroup& group = groups.all[g];
    if (g > 0) block.pad(group);
    const std::int64_t parts = g == 0 ? 1 : ceil_div(group.most_layers(), layers), each = group.pages(ask);
    block.hold(group, ceil_div(group.most_layers(), parts));
    group_count += parts;
    pages += parts * each;
    asked += each * group.bytes();
    least_tokens = std::min(least_tokens, group.tokens);
    out.table_entries += parts * ceil_div(std::max<std::int64_t>(1, ask.max_model_len), group.tokens);
  }
  const Bytes bytes = block.bytes(f.compressed_cache == CompressedCache::packed);
  out.page_tokens = f.page_tokens;
  out.pages = std::max<Bytes>(0, ask.budget) / bytes;
  out.kv = out.pages * bytes;
  out.token = ceil_div(bytes, f.page_tokens);
  out.request = pages * block.bytes(false);  // _max_memory_usage_bytes_from_groups
  // get_max_concurrency_for_kv_cache_config
  const std::int64_t per_request = std::max<std::int64_t>(1, ceil_div(asked, entries.bytes()));
  out.full_requests = out.pages / per_request;
  out.tokens = f.tokens_by_request ? static_cast<std::int64_t>(static_cast<double>(out.pages) / static_cast<double>(per_request) *
                                                               static_cast<double>(ask.max_model_len))
                                   : out.pages / group_count * least_tokens;
  return out;
}

}  // namespace oomplan
