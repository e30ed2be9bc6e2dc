// Fused operators of linkedin/Liger-Kernel (src/liger_kernel/ops, read at 0.8.2; what changed is in liger_code.hpp).
//
// A Triton kernel allocates nothing: what one of these operators takes is in the Python function around it. Several write their
// gradients into what they saved or into the gradient that they were given.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/eager.hpp"
#include "layers/liger_code.hpp"

namespace oomplan::liger {

struct Norm {
  bool in_place = true;  ///< the gradient of x is written into the one that comes in; Gemma 2 and 3, OLMo 2 and GLM-4 do not
  bool in_fp32 = false;  ///< Gemma: by row, the weight's gradient is fp32 whatever the weight is
  std::int64_t multiprocessors = 1;
  LigerCode code;
};
/// rms_norm.py: saves x and one fp32 a row. `weight`: a leaf.
Tensor rms_norm(Eager& g, const Tensor& x, int weight, const Norm&, const std::string& name);

/// How layer_norm.py adds up the gradients of its weight and bias.
enum class LayerNormSum : std::uint8_t {
  parts,         ///< a row for each multiprocessor, in the format of the weight (up to 0.6.0)
  in_place,      ///< into one row (0.6.1 to 0.6.3)
  parts_in_fp32  ///< a row for each multiprocessor, in fp32
};
/// layer_norm.py: saves x, and mean and inverse deviation of a row in the format of x.
Tensor layer_norm(Eager& g, const Tensor& x, int weight, int bias, LayerNormSum, std::int64_t multiprocessors,
                  const std::string& name);

/// swiglu.py, geglu.py: act(a) * b. Both gradients are written into what was saved.
Tensor gated(Eager& g, Tensor a, Tensor b, const std::string& name);

/// rope.py: q and k are rotated where they lie. `by_head`: their gradients come with heads in front of tokens and are copied.
struct Pair {
  Tensor query, key;
};
Pair rope(Eager& g, const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin, bool by_head);

/// cross_entropy.py on logits, one row a token: the gradient is written into the logits in forward.
Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels);

/// Legend: R rows, C rows of a chunk, H width, V vocabulary.
struct FusedHead {
  Dim rows, chunk_rows, last_rows;
  std::int64_t hidden = 0, vocab = 0;
  int weight = -1;                 ///< a leaf; frozen: no gradient of it is made
  int chunks = 1;                  ///< as many as are simulated
  std::function<void(int)> scope;  ///< called with i before chunk i, with -1 behind the last
  LigerCode code;
};
/// fused_linear_cross_entropy.py: gradients of x and of the weight are made in forward and saved.
Tensor fused_linear_cross_entropy(Eager& g, const Tensor& x, const FusedHead&);
/// Rows of a chunk, a power of two: as many that a chunk's logits are about as large as x. REQUIRES: all >= 1.
std::int64_t fused_head_rows(std::int64_t rows, std::int64_t hidden, std::int64_t vocab);

}  // namespace oomplan::liger
