// Attention sinks of gpt-oss: one more column of logits, which takes part in the softmax and is dropped behind it.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// Probabilities in the dtype of the scores, a view without the sink's column. `logits`: the caller's name for the wider logits.
Tensor probabilities_with_sinks(Eager& g, const Tensor& scores, int sinks, Tensor& logits);

/// MiMo-V2, layers without sinks: softmax(scores - highest) in their format. `scores` is rebound.
Tensor shifted_probabilities(Eager& g, Tensor& scores);

}  // namespace oomplan
