// What torch.compile makes of a TransformerBlock of torchtitan under context parallelism: PyTorch's ring attention
// (torch.distributed.tensor.experimental, balanced, keys and values rotated by one all-gather) is inside of the graph, every step
// of it. Programs as in compiled_float8.hpp, as the rank that keeps most, and of these the one that is highest, runs
// them; T tokens are one rank's, Llama's A is H. More words:
//   +9=8.T.H:4  eight times T*H numbers       +9=T.H~  half of T*H numbers       !~  attention's backward on half of the queries
#pragma once
#include "layers/compiled_graphs.hpp"

namespace oomplan {

/// `ranks`: that share a sequence. Null: not described.
const CompiledGraph* find_ring_graph(std::string_view family, RmsNorm, bool repeat_kv, Recompute, Float8, std::int64_t ranks);

}  // namespace oomplan
