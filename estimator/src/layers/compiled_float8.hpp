// What torch.compile makes of a TransformerBlock of torchtitan whose matrices torchao multiplies in 8 bits (torchao/float8,
// Float8Linear with scales made anew at every step). Programs as in compiled_graphs.hpp, with one more size of a number:
//   +9=T.H:1  buffer 9 is allocated, T*H numbers of 8 bits
// Scales of whole tensors and what their maxima are gathered from, less than 1 MiB each, are left out.
#pragma once
#include "layers/compiled_graphs.hpp"

namespace oomplan {

/// `gathered`: the matrices come from FSDP2 in 8 bits. Null: not described.
const CompiledGraph* find_float8_graph(std::string_view family, RmsNorm, bool repeat_kv, Recompute, Float8, bool gathered);

}  // namespace oomplan
