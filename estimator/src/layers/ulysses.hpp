// Ulysses sequence parallelism around an attention kernel: all-to-all of q, k, v before it and of its output after it.
//
// With n ranks, a rank holds S tokens of n*S and all heads; the kernel sees all tokens and heads/n. k and v are repeated first
// when the model has fewer key/value heads than ranks.
// Sources: verl verl/utils/ulysses.py (main, August 2026), AReaL areal/utils/ulysses.py (main, August 2026).
#pragma once
#include <functional>

#include "layers/decoder.hpp"

namespace oomplan {

using Kernel = std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v, Shape out_shape)>;
/// q, k, v of shape [B, heads, S, d]; returns [B, S, heads, d] of this rank's tokens.
Tensor exchange_around(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const KernelOptions&, const Kernel&);

}  // namespace oomplan
