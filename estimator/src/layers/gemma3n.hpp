// Gemma 3n (transformers 5.23, models/gemma3n/modeling_gemma3n.py): several copies of the hidden states, of which a layer works
// on one and corrects all (AltUp), beside a low-rank residual (Laurel).
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// altup_projections and altup_unembed_projections, one for every copy but the first.
struct CopyLeaves {
  std::vector<int> in, out;
};
CopyLeaves declare_copies(Eager& g, const Architecture&, DType, const AdapterOptions&);

/// The copies, [N, B, S, H], of embedded tokens; a name of the model each.
struct Copies {
  std::vector<Tensor> list;
  Tensor stacked;
};
Copies make_copies(Eager& g, const Architecture&, const CopyLeaves&, const Tensor& embeds);
/// Their mean, each as high as the first. `names`: those that the model's function keeps.
Tensor join_copies(Eager& g, const Architecture&, const CopyLeaves&, const Tensor& copies, std::vector<Tensor>& names);

/// x: [N, B, S, H], held by the caller.
Tensor run_gemma3n_layer(Eager& g, const Architecture&, const FamilyCode&, const Layer&, const LayerLeaves&, const KernelOptions&,
                         const LayerContext&, const Tensor& x);

}  // namespace oomplan
