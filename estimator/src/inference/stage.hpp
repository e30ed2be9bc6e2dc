// What the layers of one pipeline stage add up to on one tensor-parallel rank. Internal to inference/.
#pragma once
#include <array>
#include <cstdint>

#include "inference/rank_share.hpp"
#include "inference/server_facts.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// Layers of the stage whose caches are alike.
struct CacheBucket {
  CacheKind kind = CacheKind::none;
  std::int64_t window = 0, layers = 0;
  Bytes token = 0;                ///< of one layer and one token on this rank
  Bytes conv = 0, recurrent = 0;  ///< of one layer and one request on this rank
  std::int64_t conv_steps = 0;    ///< tokens that a convolution remembers
  Compression compression;
};
inline constexpr int kMostBuckets = 8;

struct Stage {
  std::int64_t layers = 0;
  bool first = false, last = false;
  Bytes embedding = 0, head = 0, outside = 0;
  Bytes draft_embedding = 0, draft_head = 0;  ///< in embedding and head: those of a draft of another checkpoint
  Bytes draft_loaded = 0;                     ///< that it had before it got the model's
  Bytes norms = 0, mixers = 0, absorbed = 0, feed_forwards = 0, experts = 0, adapters = 0;
  Bytes slack = 0;      ///< what the allocator makes of all matrices beyond their bytes, as the engine's log counts it
  Bytes offloaded = 0;  ///< weights of the layers that lie in host memory
  std::array<CacheBucket, kMostBuckets> buckets{};
  int bucket_count = 0;
  Bytes states_of_model = 0;  ///< of one request, over the layers of all stages
  // of the widest layer, elements a token on this rank
  std::int64_t attention = 0, context = 0, gate_up = 0, activation = 0, workspace13 = 0, workspace2 = 0;
  Bytes unpacked = 0;  ///< bitsandbytes: the largest matrix of a product in 16 bits, or a layer's experts (BitsAndBytesMoEMethod)
};

/// How many layers stage `index` of `stages` gets, and the number of its first layer. Rule `extra`: where the remainder goes.
/// Sources: vllm/distributed/utils.py get_pp_indices (0.8 to 0.24); sglang/srt/distributed/utils.py (0.5.5, 0.5.10).
struct StageLayers {
  std::int64_t first = 0, count = 0;
};
StageLayers stage_layers(std::int64_t layers, std::int64_t stages, std::int64_t index, ExtraLayers extra);

/// Of a vision tower, and of the cos/sin tables: what a rank has where it has them.
Bytes tower_bytes(const ServerModel&, const ServerFacts&, std::int64_t tp, bool first);
Bytes rope_bytes(const ServerModel&, const ServerFacts&);
/// Buffers for what the language model gets beside the embeddings of a batch.
Bytes input_bytes(const ServerModel&, std::int64_t batched_tokens, bool first);

/// REQUIRES: pp >= 1 and index < pp.
Stage stage_of(const ServerModel&, const ServerFacts&, const RankShare&, std::int64_t pp, std::int64_t index);
/// The draft blocks alone, as SGLang's second worker has them.
Stage drafts_of(const ServerModel&, const ServerFacts&, const RankShare&);
/// The same where everything is divided over tp ranks, and the experts' numbers over ep of them.
Stage stage_of(const ServerModel&, const ServerFacts&, std::int64_t tp, std::int64_t pp, std::int64_t ep, std::int64_t index);

}  // namespace oomplan
