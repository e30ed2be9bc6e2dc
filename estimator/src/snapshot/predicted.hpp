// The run that oomplan predicts, as the snapshot that PyTorch would write of it: one device, recorded from the first byte on.
//
// Tensors of Pool::torch go through the allocator's replay, those of Pool::pausable too, in the private pool (0, 1). An engine
// that sleeps unmaps the pages of that pool below PyTorch, which goes on counting them (vllm/device_allocator/cumem.py, 0.23):
// nothing is recorded of it. What PyTorch does not record (context, NCCL, graphs, host memory) is not in it. A block's innermost
// frame is its tensor: the function "mlp.gate bf16[4096,18944]", the file the phase, the line the layer (or another index) of it;
// the second frame says what it is for and who holds it.
#pragma once
#include <oomplan/program.hpp>

#include "program/allocator.hpp"
#include "snapshot/snapshot.hpp"

namespace oomplan::snapshot {

/// Throws what expand() throws. Where a request finds no memory the history ends with its oom event.
Snapshot predicted_snapshot(const Program&, const AllocatorSettings&);

}  // namespace oomplan::snapshot
