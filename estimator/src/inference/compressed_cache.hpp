// The cache of a model whose layers keep a window of tokens and compressed entries of all of them (DeepSeek V4), in vLLM.
// Internal to inference/.
#pragma once
#include "catalog/architecture.hpp"
#include "inference/cache.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// What one layer keeps.
LayerCache compressed_layer(const Mixer&);

bool has_compressed(const Stage&);

/// Pages, tokens and requests of the pool (vllm/v1/core/kv_cache_utils.py, 0.20 to 0.24).
CachePool compressed_pool(const Stage&, const ServerFacts&, const CacheAsk&);

}  // namespace oomplan
