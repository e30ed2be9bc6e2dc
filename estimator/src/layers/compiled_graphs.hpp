// What torch.compile makes of a TransformerBlock of torchtitan, as memory sees it.
//
// AOTAutograd's partitioner decides what a block keeps for backward, inductor's scheduler in which order buffers come and go.
// Both were run (PyTorch 2.13, for an H100, benchmarks/oracle/compiled_graphs.py), and what the generated programs allocate and
// free is written down here. inductor also hands a freed buffer on to the next one of the same size; it does so only where the
// graph's peak stays what it is (torch/_inductor/codegen/wrapper.py, should_reuse_buffer), so that is left out.
//
// A program is a list of words:
//   +7=T.F    buffer 7 is allocated, T*F numbers of 16 bits      +8=T:4    T numbers of 32 bits
//   -7        it is freed, behind its last use                   !         here the kernel of attention's backward works
// The names f2, x of a backward program are those of the forward program's buffer 2 and of the block's input.
// T tokens, S tokens of a sequence, H hidden, A width of queries, K width of keys, F feed-forward width, a heads, g key/value
// heads, d head dim, P rows of the partial sums of a norm's weight gradient (one for 128 tokens).
#pragma once
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan {

struct CompiledGraph {
  std::string_view family;
  RmsNorm norm;
  bool repeat_kv;
  Recompute recompute;
  std::string_view forward;
  std::string_view kept;  ///< for backward: x, and buffers of the forward program
  int output;
  std::string_view backward;
  std::string_view gradients;  ///< "x=15 q=47": buffers that become gradients
};

/// Null: not described.
const CompiledGraph* find_compiled_graph(std::string_view family, RmsNorm, bool repeat_kv, Recompute);

}  // namespace oomplan
