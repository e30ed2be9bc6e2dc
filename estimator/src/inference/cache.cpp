#include "inference/cache.hpp"

#include <algorithm>

#include "inference/compressed_cache.hpp"

namespace oomplan {
namespace {

struct Group {
  CacheBucket bucket;
  std::int64_t page_tokens = 0, groups = 0;
};

struct Pages {
  std::array<Group, kMostBuckets> groups{};
  int count = 0;
  Bytes page = 0;
  std::int64_t size = 1;  ///< layers of a group
  std::int64_t all_groups = 0;
  std::int64_t tokens = 16;  ///< of a page, as the engine reports it
};

/// Tokens by which pages grow at least (vllm/model_executor/models/config.py HybridAttentionMambaModelConfig, 0.19.1;
/// platforms/interface.py, 0.24.0).
constexpr std::int64_t kKernelTokens = 16, kLatentKernelTokens = 64;

/// Pages are sized so that the largest state fits in one (vllm/platforms/interface.py update_block_size_for_backend).
std::int64_t page_tokens_of(const Stage& s, const ServerFacts& f) {
  Bytes state = 0, token = 0;
  bool latent = false;
  for (int i = 0; i < s.bucket_count; ++i) {
    const CacheBucket& b = s.buckets[static_cast<std::size_t>(i)];
    state = std::max(state, b.conv + b.recurrent);
    token = std::max(token, b.token);
    latent = latent || b.kind == CacheKind::latent;
  }
  if (state == 0 || token == 0) return f.page_tokens;
  const std::int64_t align = f.state_pages_as_asked ? std::max(kKernelTokens, f.page_tokens)  // latent or not
                                                    : (latent ? kLatentKernelTokens : kKernelTokens);
  return std::max(f.page_tokens, align * ceil_div(state, align * token));
}

/// How many layers share one page number: all of a kind, or the size of the smallest kind where kinds differ much.
std::int64_t group_size(const Stage& s, double ratio) {
  std::int64_t least = 0, most = 0;
  for (int i = 0; i < s.bucket_count; ++i) {
    const std::int64_t n = s.buckets[static_cast<std::size_t>(i)].layers;
    least = i == 0 ? n : std::min(least, n);
    most = std::max(most, n);
  }
  return static_cast<double>(most) < ratio * static_cast<double>(least) ? most : least;
}

bool keeps_all(const CacheBucket& b) { return b.kind == CacheKind::full || b.kind == CacheKind::latent; }

/// Layers that all keep every token are one group, however wide each is (UniformTypeKVCacheSpecs, 0.11 to 0.24): a page has room
/// for its tokens in all of them. Sparse attention's indexers make such layers.
Pages one_group(const Stage& s, std::int64_t tokens) {
  Pages out;
  out.tokens = tokens;
  out.count = 1;
  out.all_groups = 1;
  Group& g = out.groups[0];
  g.bucket = s.buckets[0];
  g.bucket.layers = 1;
  g.bucket.token = 0;
  g.page_tokens = tokens;
  g.groups = 1;
  for (int i = 0; i < s.bucket_count; ++i) {
    const CacheBucket& b = s.buckets[static_cast<std::size_t>(i)];
    g.bucket.token += b.layers * b.token;
  }
  out.page = tokens * g.bucket.token;
  return out;
}

/// A model of recurrent states alone has pages of whole requests (vllm/model_executor/models/config.py MambaModelConfig, 0.19).
bool only_states(const Stage& s) {
  return s.bucket_count > 0 && std::all_of(s.buckets.begin(), s.buckets.begin() + s.bucket_count,
                                           [](const CacheBucket& b) { return b.kind == CacheKind::state; });
}

Pages pages_of(const Stage& s, const ServerFacts& f, const CacheAsk& ask) {
  Pages out;
  out.tokens = only_states(s) ? std::max<std::int64_t>(1, ask.max_model_len) : page_tokens_of(s, f);
  if (s.bucket_count > 1 && std::all_of(s.buckets.begin(), s.buckets.begin() + s.bucket_count, keeps_all))
    return one_group(s, out.tokens);
  for (int i = 0; i < s.bucket_count; ++i) {
    const CacheBucket& b = s.buckets[static_cast<std::size_t>(i)];
    out.page = std::max(out.page, b.kind == CacheKind::state ? b.conv + b.recurrent : out.tokens * b.token);
  }
  out.size = std::max<std::int64_t>(1, group_size(s, f.group_ratio));
  out.count = s.bucket_count;
  for (int i = 0; i < s.bucket_count; ++i) {
    Group& g = out.groups[static_cast<std::size_t>(i)];
    g.bucket = s.buckets[static_cast<std::size_t>(i)];
    g.page_tokens = g.bucket.token > 0 ? std::max<std::int64_t>(1, out.page / g.bucket.token) : 0;
    g.groups = ceil_div(g.bucket.layers, out.size);
    out.all_groups += g.groups;
  }
  return out;
}

/// Pages that one request of S tokens holds at its worst moment, in every group of its kind.
std::int64_t request_pages(const Group& g, const CacheAsk& ask) {
  const std::int64_t S = std::max<std::int64_t>(1, ask.max_model_len), T = ask.batched_tokens;
  switch (g.bucket.kind) {
    case CacheKind::sliding:
      return ceil_div(std::min(g.bucket.window - 1 + T, S), g.page_tokens) + 1;
    case CacheKind::chunked:
      return ceil_div(std::min(g.bucket.window + T, S), g.page_tokens);
    case CacheKind::state:
      return 1 + ask.draft_tokens;
    default:
      return ceil_div(ceil_div(S, ask.context_parts), g.page_tokens);  // FullAttentionSpec.max_memory_usage_bytes
  }
}

/// Every layer of the stage as if it kept all tokens.
Stage without_windows(const Stage& s) {
  Stage out = s;
  out.bucket_count = 0;
  for (int i = 0; i < s.bucket_count; ++i) {
    CacheBucket b = s.buckets[static_cast<std::size_t>(i)];
    if (b.kind == CacheKind::sliding || b.kind == CacheKind::chunked) b.kind = CacheKind::full;
    b.window = b.kind == CacheKind::full ? 0 : b.window;
    int at = 0;
    while (at < out.bucket_count && (out.buckets[static_cast<std::size_t>(at)].kind != b.kind ||
                                     out.buckets[static_cast<std::size_t>(at)].token != b.token))
      ++at;
    if (at < out.bucket_count) {
      out.buckets[static_cast<std::size_t>(at)].layers += b.layers;
    } else {
      out.buckets[static_cast<std::size_t>(out.bucket_count++)] = b;
    }
  }
  return out;
}

}  // namespace

CachePool vllm_pool(const Stage& stage, const ServerFacts& f, const CacheAsk& ask) {
  if (has_compressed(stage)) return compressed_pool(stage, f, ask);
  CachePool out;
  const Pages p = pages_of(f.uniform_swa ? without_windows(stage) : stage, f, ask);
  if (p.page == 0) return out;
  std::int64_t per_request = 0;
  for (int i = 0; i < p.count; ++i) {
    const Group& g = p.groups[static_cast<std::size_t>(i)];
    per_request += g.groups * request_pages(g, ask);
    const bool grows = g.bucket.kind == CacheKind::full || g.bucket.kind == CacheKind::latent;
    if (grows) out.token += g.groups * p.size * p.page / g.page_tokens;
  }
  out.page_tokens = p.tokens;
  out.pages = std::max<Bytes>(0, ask.budget) / p.page / p.size;
  out.kv = out.pages * p.page * p.size;
  out.request = per_request * p.page * p.size;
  out.full_requests = out.pages / std::max<std::int64_t>(1, per_request);
  if (f.tokens_by_request) {
    out.tokens = static_cast<std::int64_t>(static_cast<double>(out.pages) / static_cast<double>(per_request) *
                                           static_cast<double>(ask.max_model_len));
  } else {
    out.tokens = out.pages / p.all_groups * p.tokens * ask.context_parts;
  }
  out.token = ceil_div(out.token, ask.context_parts);
  return out;
}

Bytes request_of_all_layers(const Stage& all, const ServerFacts& f, const CacheAsk& ask) {
  const Pages p = pages_of(f.uniform_swa ? without_windows(all) : all, f, ask);
  Bytes out = 0;
  for (int i = 0; i < p.count; ++i) {
    const Group& g = p.groups[static_cast<std::size_t>(i)];
    out += g.bucket.layers * request_pages(g, ask) * p.page;
  }
  return out;
}

namespace {

/// States of one request that drafts ask for: one a token that is verified; convolutions share a window where there is a buffer.
Bytes states_of_drafts(const Stage& stage, const ServerFacts& f, std::int64_t tokens) {
  Bytes out = 0;
  for (int i = 0; i < stage.bucket_count; ++i) {
    const CacheBucket& b = stage.buckets[static_cast<std::size_t>(i)];
    const bool shares = f.drafts_buffer_states && b.conv_steps > 0;
    const Bytes conv = shares ? b.conv / b.conv_steps * (tokens + b.conv_steps - 1) : tokens * b.conv;
    out += b.layers * (tokens * b.recurrent + conv);
  }
  return out;
}

/// Slots and drafts of a share of what is free, together; `rest`: what is left.
std::int64_t slots_beside_drafts(const ServerFacts& f, const CacheAsk& ask, Bytes counted, Bytes& rest) {
  const double share = static_cast<double>(rest) * f.state_ratio / (1 + f.state_ratio);
  const std::int64_t of_request = std::max<std::int64_t>(1, ask.slots_per_request);
  const double each =
      static_cast<double>(counted) * (1 + static_cast<double>(ask.draft_tokens) / static_cast<double>(of_request));
  const auto slots = static_cast<std::int64_t>(share / each);
  rest -= std::min(ask.max_running, slots / of_request) * ask.draft_tokens * counted;
  return slots;
}

}  // namespace

CachePool sglang_pool(const Stage& stage, const ServerFacts& f, const CacheAsk& ask) {
  CachePool out;
  Bytes full = 0, sliding = 0, state = 0;
  for (int i = 0; i < stage.bucket_count; ++i) {
    const CacheBucket& b = stage.buckets[static_cast<std::size_t>(i)];
    const bool windowed = (b.kind == CacheKind::sliding || b.kind == CacheKind::chunked) && !f.uniform_swa;
    (windowed ? sliding : full) += b.layers * b.token;
    state += b.layers * (b.conv + b.recurrent);
  }
  Bytes rest = std::max<Bytes>(0, ask.budget);
  if (state > 0) {  // the share of the states is cut in slots first, on a stage of a pipeline too by the states of all layers
    const Bytes counted = std::max(state, stage.states_of_model);
    const bool buffers = f.drafts_buffer_states && ask.draft_tokens > 0 && ask.state_slots == 0;
    if (!buffers) rest = std::max<Bytes>(0, rest - counted * ask.max_running * ask.draft_tokens);
    out.state_slots = buffers ? slots_beside_drafts(f, ask, counted, rest)
                      : ask.state_slots > 0
                          ? ask.state_slots
                          : static_cast<std::int64_t>(static_cast<double>(rest) * f.state_ratio / (1 + f.state_ratio)) / counted;
    rest = std::max<Bytes>(0, rest - out.state_slots * counted);
    out.state = (out.state_slots + 1) * state;  // one more takes what padded requests write (mem_cache/memory_pool.py MambaPool)
    const std::int64_t of_request = std::max<std::int64_t>(1, ask.slots_per_request);
    const std::int64_t running = std::min(ask.max_running, out.state_slots / of_request);
    if (ask.draft_tokens > 0) out.state += (running + 1) * states_of_drafts(stage, f, ask.draft_tokens);
  }
  const double ratio = full > 0 ? f.swa_ratio : 1;
  const double cell = static_cast<double>(full) + ratio * static_cast<double>(sliding);
  if (cell <= 0) return out;
  // the tokens of cells of all layers first, then what their bytes give in two pools (_resolve_hybrid_swa_tokens)
  const Bytes both = full + sliding;
  const Bytes room = rest / both * both;
  std::int64_t capacity = static_cast<std::int64_t>(static_cast<double>(room) / cell);
  if (f.most_tokens > 0) capacity = std::min(capacity, f.most_tokens);  // max_total_tokens, in front of pages and windows
  out.page_tokens = f.page_tokens;
  out.tokens = round_down(capacity, f.page_tokens);
  const std::int64_t windowed =
      sliding > 0 ? round_down(static_cast<std::int64_t>(static_cast<double>(out.tokens) * ratio), f.page_tokens) : 0;
  // one page more holds what padded requests write
  out.kv = (out.tokens + f.page_tokens) * full + (sliding > 0 ? (windowed + f.page_tokens) * sliding : 0);
  out.pages = out.tokens / f.page_tokens;
  out.token = full > 0 ? full : sliding;
  out.request = round_up(ask.max_model_len, f.page_tokens) * full + state;
  out.full_requests = out.tokens / std::max<std::int64_t>(1, round_up(ask.max_model_len, f.page_tokens));
  if (state > 0) out.full_requests = std::min(out.full_requests, out.state_slots);
  return out;
}

}  // namespace oomplan
