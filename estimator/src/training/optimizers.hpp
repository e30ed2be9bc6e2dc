// What an optimizer keeps for each parameter, and what its step holds for a moment.
//
// Read in pytorch/pytorch torch/optim (2.13), huggingface/transformers src/transformers/optimization.py (5.23) and
// bitsandbytes-foundation/bitsandbytes bitsandbytes/optim (0.50); the first two executed on the meta device
// (tests/data/executed_optimizers.jsonl), as was apollo_torch (zhuhanqing/APOLLO, 76b3472; tests/data/executed_apollo.jsonl).
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

/// A trained parameter as this rank has it.
struct TrainedTensor {
  std::vector<std::int64_t> shape;  ///< of the shard
  std::int64_t elements = 0;
  DType storage = DType::fp32;
  std::int64_t copies = 1;         ///< equal ones, of equal layers
  bool matrix_of_a_layer = false;  ///< two axes, inside of a decoder layer: Muon's part, and APOLLO's
  bool embedding = false;          ///< an nn.Embedding's weight: transformers keeps its states in fp32
};

bool adam(OptimizerKind);
/// States of an optimizer that goes element by element, in the parameter's format; step counters apart.
std::int64_t states_per_element(const Trainer&);

struct OptimizerBytes {
  Bytes states = 0;     ///< on the device
  Bytes managed = 0;    ///< unified memory, which is counted with the host
  Bytes steps = 0;      ///< step counters on the device
  Bytes transient = 0;  ///< highest level of a step above all these
};
/// `tensors` in the order in which the optimizer goes through them.
OptimizerBytes optimizer_bytes(const Trainer&, const std::vector<TrainedTensor>& tensors);

}  // namespace oomplan
