// Apertus's activation, written out as transformers does where its CUDA kernel is not installed (activations.py, 5.23.0).
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// XIELUActivation._xielu_python; `alpha_p`, `alpha_n`: leaves of one number each. x is held by the caller.
Tensor xielu(Eager& g, const Tensor& x, int alpha_p, int alpha_n);

}  // namespace oomplan
