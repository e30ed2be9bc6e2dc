// Operators of flash-linear-attention that a gated delta rule calls, and causal-conv1d's convolution.
//
// Each is one autograd function of the package with all that it allocates, forward and backward; the kernels themselves allocate
// nothing. Read and executed at flash-linear-attention 0.5.0 (fla/ops/gated_delta_rule,
// fla/ops/common/{chunk_delta_h,chunk_o}.py, fla/modules/{l2norm,fused_norm_gate}.py) and causal-conv1d 1.6.1
// (causal_conv1d/causal_conv1d_interface.py). What is kept is the same from 0.4.0 to 0.5.2. No module around them is known here:
// transformers' layers and Megatron-core's call the same.
//
// Legend: n heads of values, k and v dims of a head's keys and values, N chunks of 64 tokens.
#pragma once
#include <string>
#include <vector>

#include "layers/eager.hpp"

namespace oomplan::fla {

/// Tokens that the rule takes at a time.
inline constexpr std::int64_t kChunk = 64;
/// Chunks of one row: without `lengths` it is one sequence of `tokens`, otherwise sequences that begin a chunk each (cu_seqlens).
std::int64_t chunks_of(std::int64_t tokens, const std::vector<std::int64_t>& lengths = {});

struct Rule {
  Dim heads, key_dim, value_dim;  ///< of values' heads, for which queries and keys are given, too
  std::int64_t chunks = 0;        ///< of one row of the batch
  std::int64_t ranks = 1;         ///< that share the row (cp_context): states are exchanged in front of the rule
  std::int64_t sequences = 1;     ///< with ranks: that have tokens here
  bool norms = true;              ///< use_qk_l2norm_in_kernel; otherwise queries and keys are kept as they come
  /// These lie apart in a wider row, or by channel: input_guard copies them.
  bool copies_query = false, copies_key = false, copies_value = false;
  Dim tokens = axis::S;  ///< of a row
};
/// By token: [B, S, n, dim], of decay and beta [B, S, n]. The decay is fp32.
struct RuleInput {
  Tensor query, key, value, decay, beta;
};
/// chunk_gated_delta_rule of fla/ops/gated_delta_rule/chunk.py, with ranks of fla/ops/cp/chunk_delta_h.py, without a state that
/// comes in or goes out: [B, S, n, v] in the queries' format.
Tensor chunk_gated_delta_rule(Eager&, const Rule&, const RuleInput&);

/// l2norm over the last axis. `copied`: x does not lie in one piece.
Tensor l2norm(Eager&, const Tensor& x, bool copied, const std::string& name);

/// FusedRMSNormGated: rms_norm(x) * weight * silu(gate), of rows. `gate_copied`: it does not lie in one piece.
/// `multiprocessors`: a row each of the weight's gradients.
Tensor rms_norm_gated(Eager&, const Tensor& x, const Tensor& gate, int weight, bool gate_copied, std::int64_t multiprocessors,
                      const std::string& name);

/// causal_conv1d_fn of causal-conv1d with silu: x by token, which it takes as it is. `sequences`: of which token is whose, which
/// is kept; none: the row is one sequence.
Tensor causal_conv1d(Eager&, const Tensor& x, int weight, const Tensor& sequences, const std::string& name);

/// causal_conv1d with silu of flash-linear-attention itself, which takes x as it lies in a wider row
/// (fla/modules/conv/triton/ops.py, 0.5.0). Backward makes the result without silu again, and a tile of the weight's gradients
/// for every 64 tokens; `chunks`: so many.
Tensor short_convolution(Eager&, const Tensor& x, const Tensor& weight, std::int64_t chunks, std::int64_t kernel);

}  // namespace oomplan::fla
