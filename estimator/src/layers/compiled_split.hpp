// What torch.compile makes of a TransformerBlock of torchtitan whose matrices DTensor divides over ranks: collectives are inside
// of the graph. Programs as in compiled_float8.hpp. T tokens are those of one rank between the halves of a block; two more
// letters: W tokens of all ranks, Z of one whole sequence. A, K, F, a, g are one rank's; Llama's W.A is T.H.
#pragma once
#include "layers/compiled_graphs.hpp"

namespace oomplan {

/// `several`: more than one sequence, whose gathered tokens a copy puts in order. Null: not described.
const CompiledGraph* find_split_graph(std::string_view family, RmsNorm, bool repeat_kv, Recompute, Float8, bool several);

}  // namespace oomplan
