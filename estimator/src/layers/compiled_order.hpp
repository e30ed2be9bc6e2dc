// Which of an Archon block's graphs inductor makes (compiled_archon.hpp).
#pragma once
#include "layers/compiled_archon.hpp"
#include "layers/decoder.hpp"

namespace oomplan {

/// The number of the graph among those of the family and the checkpoint; 0 where none is described.
int archon_order(const Architecture&, Recompute, DType, const TokenCounts&);

/// Null: not described.
const CompiledGraph* find_archon_graph(std::string_view family, Recompute, int order);

}  // namespace oomplan
