// Which kernel sets belong together.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan {

/// The models are those of transformers, whatever computes their attention.
constexpr bool of_transformers(Kernels k) { return k == Kernels::hf_flash || k == Kernels::hf_sdpa || k == Kernels::hf_eager; }

}  // namespace oomplan
