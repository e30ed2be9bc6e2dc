// How long a step takes, relative to other configurations of the same job on the same GPUs: enough to rank, not to promise.
//
// A roofline: a phase takes the longest of its arithmetic, its memory traffic and its communication. No efficiency factor is
// applied, because a common one would not change the order.
//   training     (forward 2, backward 4, recompute 2, log-probs 2 each) * active parameters * tokens + attention; FSDP gathers
//   the
//                parameters three times a micro-batch (forward, backward, reduce-scatter), log-prob passes once
//   generation   every step of decoding reads the weights and the cache of all running requests once, on every GPU of a replica
#pragma once
#include <cstdint>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "catalog/gpus.hpp"

namespace oomplan {

/// What the model costs a token.
struct ModelCost {
  double active = 0;  ///< parameters that one token uses
  double parameters = 0;
  double attention_width = 0;  ///< sum over layers of heads * head_dim: 4 * width * context flops a token
};
ModelCost cost_of(const Architecture&);

struct TrainLoad {
  std::int64_t gpus = 1, context = 1;
  std::int64_t tokens_per_step = 0;  ///< of the whole job
  std::int64_t tokens_per_micro_batch = 0, micro_batches = 1;
  std::int64_t sequence = 0;  ///< average context is half of it
  bool recompute = false;
  int log_prob_passes = 0;     ///< forward-only passes of the same model per step
  double offloaded_bytes = 0;  ///< to the host and back, per step and GPU
};
double train_seconds(const ModelCost&, const TrainLoad&, const Gpu&);

struct GenerateLoad {
  std::int64_t replicas = 1, tensor = 1;
  std::int64_t sequences = 0;  ///< of the whole job
  std::int64_t prompt = 0, response = 0;
  std::int64_t running = 1;  ///< at once in a replica
  Bytes weights = 0;         ///< on one GPU
  Bytes token_bytes = 0;     ///< of cache on one GPU
  bool eager = false;
};
double generate_seconds(const ModelCost&, const GenerateLoad&, const Gpu&);

}  // namespace oomplan
