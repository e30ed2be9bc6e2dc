// Norms of the modeling files.
#pragma once
#include <string>

#include "catalog/architecture.hpp"
#include "layers/eager.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// Parameters of a norm, as leaves; -1: it has none.
struct NormLeaf {
  int weight = -1, bias = -1;
};

/// Declares what a norm of width h has: nothing, a weight, or a weight and a bias.
NormLeaf declare_norm(Eager& g, NormKind, const std::string& name, std::int64_t h, DType);
/// The norm over the last axis of x, which the caller holds.
Tensor run_norm(Eager& g, NormCode, const Tensor& x, const NormLeaf&, const std::string& name);
/// Liger's fused RMSNorm: saves x and the inverse root; its backward writes the gradient of x over the one it is given.
Tensor run_fused_norm(Eager& g, const Tensor& x, const NormLeaf&, const std::string& name);

}  // namespace oomplan
