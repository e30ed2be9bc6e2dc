// How many tokens a server writes in a second, relative to other settings of the same server on the same GPUs.
//
// A roofline without efficiency factors. One step of decoding takes, on a GPU of a stage, the longer of
//   reading   its weights once, and the cache of the requests of one group at their mean length (prompt + half of the response)
//   computing two flops for each of its active parameters and each request
// and, with tensor parallelism or experts that groups share, two small collectives a layer. A pipeline of p stages works on p
// groups at once: in the time of one stage one group gets one token. Without CUDA graphs every layer of a step is launched by the
// CPU. The prompt's arithmetic is shared out over the tokens of its response (of all responses that share it). What is not in it:
// kernels that reach less than their peak, chunks of prefill between steps, all-to-all of experts, hops between stages.
#pragma once
#include <cstdint>

#include "catalog/gpus.hpp"
#include "search/time_model.hpp"

namespace oomplan {

struct ServingRateLoad {
  std::int64_t replicas = 1, tensor = 1, pipeline = 1, layers = 1;
  std::int64_t running = 1;  ///< requests at once in a replica
  std::int64_t prompt = 0, response = 1, samples = 1;
  Bytes weights = 0;      ///< on one GPU
  Bytes token_bytes = 0;  ///< of cache on one GPU
  bool eager = false;
  bool meets = false;  ///< groups with caches of their own share the experts
};
/// Of all replicas together.
double tokens_per_second(const ModelCost&, const ServingRateLoad&, const Gpu&);

}  // namespace oomplan
