// Norms of the modeling files.
#pragma once
#include <string>

#include "catalog/architecture.hpp"
#include "layers/eager.hpp"
#include "layers/families.hpp"
#include "layers/liger_code.hpp"

namespace oomplan {

/// Parameters of a norm, as leaves; -1: it has none.
struct NormLeaf {
  int weight = -1, bias = -1;
};

/// Declares what a norm of width h has: nothing, a weight, or a weight and a bias.
NormLeaf declare_norm(Eager& g, NormKind, const std::string& name, std::int64_t h, DType);
/// torch.nn.functional.rms_norm, one kernel (aten/src/ATen/native/layer_norm.cpp, PyTorch 2.9): saves x and one fp32 a row.
Tensor fused_rms_norm(Eager& g, const Tensor& x, int weight, const std::string& name);
/// The norm over the last axis of x, which the caller holds.
Tensor run_norm(Eager& g, NormCode, const Tensor& x, const NormLeaf&, const std::string& name, const LigerOptions& = {});

}  // namespace oomplan
