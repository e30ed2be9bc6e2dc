// What torch.compile makes of a TransformerBlock of AReaL's Archon engine (apply_compile behind apply_ac, in front of FSDP2;
// areal/experimental/models/archon/*/infra/parallelize.py, 0.5.3 to 2.0.0), in the words of compiled_graphs.hpp.
//
// `rope` is the copy of the whole table of positions that FSDP2 casts for a layer. Log-probs run through an inference program,
// which keeps nothing. inductor takes of several orders of one program that with the lowest peak (torch/_inductor/memory.py,
// reorder_for_peak_memory, 2.13): with fewer tokens than hidden states are wide, gradients of matrices come late. So a block has
// several graphs, the one of many tokens first (compiled_order.hpp).
#pragma once
#include <span>

#include "layers/compiled_graphs.hpp"

namespace oomplan {

struct ArchonGraph {
  bool whole_table;  ///< tokens are so many that the partitioner keeps the table of positions and no rows of it
  CompiledGraph graph;
};

std::span<const ArchonGraph> archon_graphs();

/// Its gradients name what it reads. Null: not described.
const CompiledGraph* find_archon_inference(std::string_view family);

}  // namespace oomplan
