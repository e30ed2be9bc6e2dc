// A block that runs shard by shard and again in backward: Liger's and DeepSpeed's tiled MLP.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// linkedin/Liger-Kernel src/liger_kernel/ops/tiled_mlp.py 0.8.2, after DeepSpeed 0.18 runtime/sequence_parallel/ulysses_sp.py:
/// x [rows, width] is kept; backward makes its gradient whole and runs body forward and backward for each shard of rows.
Tensor tiled(Eager& g, const Tensor& x, std::int64_t shards, const Eager::Function& body);

}  // namespace oomplan
