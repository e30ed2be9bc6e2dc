// Phi-3.5 MoE's router (transformers, models/phimoe/modeling_phimoe.py, 5.23.0): two experts drawn one after the other.
#pragma once
#include "layers/router.hpp"

namespace oomplan {

/// PhimoeTopKRouter.forward in training mode.
Routing sparse_mixer(Eager& g, const FeedForward&, const Tensor& x, int weight);

}  // namespace oomplan
