// What FlashInfer's attention holds beside the cache in SGLang. Internal to inference/.
#pragma once
#include "inference/server_model.hpp"

namespace oomplan {

struct FlashInferAsk {
  Bytes workspace = 0, wrapper = 0;                ///< of all backends, and of one wrapper: ServerFacts
  std::int64_t captured = 0;                       ///< requests of the largest CUDA graph; 0: there are none
  std::int64_t context = 0;                        ///< longest request
  bool windows = false;                            ///< the model has layers with a sliding window
  std::int64_t draft_tokens = 0, draft_steps = 0;  ///< 0: nothing guesses ahead
};

struct FlashInferBuffers {
  Bytes workspace = 0;  ///< one for all backends, and of every wrapper of a kernel what it plans
  Bytes tables = 0;     ///< numbers of the pages of all requests, and masks of what is verified, for the graphs
};

FlashInferBuffers flashinfer_buffers(const FlashInferAsk&);

}  // namespace oomplan
