// Multi-head latent attention of DeepSeek V2 and V3.
#pragma once
#include "layers/families.hpp"
#include "layers/kernels.hpp"

namespace oomplan {

Attended run_latent_attention(Eager& g, const FamilyCode&, const Mixer&, std::int64_t hidden, const LayerLeaves&,
                              const KernelOptions&, const LayerContext&, const Tensor& x);

}  // namespace oomplan
