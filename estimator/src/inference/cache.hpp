// From bytes for the cache to pages, tokens and requests. Internal to inference/.
//
// Legend: S tokens of a request, w window, T tokens in flight in one step.
#pragma once
#include <cstdint>

#include "inference/server_facts.hpp"
#include "inference/stage.hpp"

namespace oomplan {

struct CachePool {
  Bytes kv = 0, state = 0;  ///< as allocated
  Bytes token = 0;          ///< of one token of a long request
  Bytes request = 0;        ///< of one request of `max_model_len`
  std::int64_t pages = 0, tokens = 0, full_requests = 0, page_tokens = 1, state_slots = 0;
  std::int64_t table_entries = 0;  ///< page numbers of one request in all groups, where groups have pages of their own
};

struct CacheAsk {
  Bytes budget = 0;
  std::int64_t max_model_len = 0, max_running = 0, batched_tokens = 0;
  std::int64_t draft_tokens = 0;       ///< guessed ahead; each keeps a state of its own
  std::int64_t context_parts = 1;      ///< ranks that share the tokens of layers which keep all of them
  std::int64_t state_slots = 0;        ///< SGLang: recurrent states; 0: a share of the pool
  std::int64_t slots_per_request = 1;  ///< SGLang: of these; 0: not counted
};

/// vLLM: groups of layers share pages (vllm/v1/core/kv_cache_utils.py, 0.10 to 0.24).
CachePool vllm_pool(const Stage&, const ServerFacts&, const CacheAsk&);
/// vLLM up to 0.15: bytes that one request of ask.max_model_len is said to need, layer by layer. `all`: a stage of all layers.
Bytes request_of_all_layers(const Stage& all, const ServerFacts&, const CacheAsk& ask);
/// SGLang: one pool, or one for full and one for sliding-window layers, or one beside recurrent states
/// (sglang/srt/model_executor/model_runner_kv_cache_mixin.py, 0.5.10). With drafts every request that may run has a state more
/// for each token that is verified (MambaPool, mem_cache/memory_pool.py, 0.5.8 to 0.5.12).
CachePool sglang_pool(const Stage&, const ServerFacts&, const CacheAsk&);

}  // namespace oomplan
