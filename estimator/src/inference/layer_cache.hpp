// What a layer keeps of a token or of a request in a server's cache. Internal to inference/.
#pragma once
#include "catalog/architecture.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// How an engine keeps the caches of a model's layers.
struct CacheFormat {
  EngineKind engine = EngineKind::vllm;
  DType kv = DType::bf16;       ///< of keys and values
  DType compute = DType::bf16;  ///< of the model
  std::int64_t draft_tokens = 0;
  bool token_scales = false;  ///< a scale for every token and head, of keys and of values
};

LayerCache layer_cache(const Mixer&, const Architecture&, const CacheFormat&);

}  // namespace oomplan
