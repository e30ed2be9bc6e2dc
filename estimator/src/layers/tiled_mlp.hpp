// A feed-forward block of the model that runs over a tile of tokens after another, and again in backward: DeepSpeed's TiledMLP.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// deepspeedai/DeepSpeed 0.19.6, runtime/sequence_parallel/ulysses_sp.py (TiledMLP), as ArcticTraining calls it: x [B, S, hidden]
/// is kept; backward makes its gradient whole, runs `body` forward and backward for every tile, and hands the weights' gradients
/// on with the last one. `body` works on [B, M, hidden]. The tiles' outputs are counted whole while the last one is made: too
/// much by one tile's.
Tensor tiled_over_tokens(Eager& g, const Tensor& x, const Eager::Function& body);

}  // namespace oomplan
