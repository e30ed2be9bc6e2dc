// Routers of the mixture-of-experts blocks: which experts a token goes to, and with which weights.
#pragma once
#include "catalog/architecture.hpp"
#include "layers/eager.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// `_, weights, indices = self.gate(x)`: the underscore keeps the logits as long as the block runs.
struct Routing {
  Tensor logits, weights, indices;
};
/// `values /= total`.
Tensor divide_in_place(Eager& g, const Tensor& values, const Tensor& total);
/// x of shape [T, H], held by the caller; `weight`, `bias`: leaves (-1: none).
/// `of_4`: as release 4 of transformers writes it.
Routing route(Eager& g, RouterCode, const FeedForward&, const Tensor& x, int weight, int bias, bool of_4 = false);

}  // namespace oomplan
