// Writes a Snapshot as the pickle that PyTorch's own tools read: pytorch.org/memory_viz and torch/cuda/_memory_viz.py.
//
// Protocol 2, plain data. Texts, frames and stacks are written once and referred to by the memo, as PyTorch does.
#pragma once
#include <string>

#include "snapshot/snapshot.hpp"

namespace oomplan::snapshot {

/// REQUIRES: stacks and frames are in range. parse_snapshot() of it gives an equal snapshot.
std::string to_pickle(const Snapshot&);

}  // namespace oomplan::snapshot
