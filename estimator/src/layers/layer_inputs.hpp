// Gemma 3n and 4: a second embedding table gives every layer an input of its own, to which a projection of the embedded tokens
// is added (transformers 5.23, models/{gemma3n,gemma4}/modeling_*.py, project_per_layer_inputs).
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

struct LayerInputLeaves {
  int table = -1, projection = -1;
  NormLeaf norm;
};
LayerInputLeaves declare_layer_inputs(Eager& g, const Architecture&, DType outer, DType dtype, const AdapterOptions&);

/// The second embedding, times a number. `own`: the ids are the model's, not the caller's.
Tensor layer_tokens(Eager& g, const Architecture&, const LayerInputLeaves&, const Tensor& ids, bool own, EmbeddingSort);
/// [B, S, L, p]; `embeds` is a name of the model.
Tensor make_layer_inputs(Eager& g, const FamilyCode&, const Architecture&, const LayerInputLeaves&, const Tensor& embeds,
                         Tensor tokens);

/// per_layer_inputs[:, :, i, :]
Tensor input_of_layer(Eager& g, const Tensor& all);

}  // namespace oomplan
