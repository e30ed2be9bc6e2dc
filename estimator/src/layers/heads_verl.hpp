// verl's log-probs and entropy of an actor update (verl verl/workers/engine/fsdp/transformer_impl.py and
// verl/utils/torch_functional.py, 0.2 to 0.9).
//
// Legend as in heads.hpp.
#pragma once
#include <functional>
#include <optional>

#include <oomplan/job.hpp>

#include "layers/eager.hpp"

namespace oomplan {

enum class VerlEntropy : std::uint8_t { none, compiled, eager, chunked };
/// What one of verl's heads does.
struct VerlSteps {
  VerlEntropy entropy = VerlEntropy::none;
  bool checkpoint = false;  ///< of the entropy, reentrant
  bool in_place = false;    ///< the temperature divides the logits in place
  bool fp32 = false;        ///< the logits are cast first
  bool rows = false;        ///< log_softmax of one row after another in place of flash-attn's cross-entropy
};
/// Nothing for the heads of others.
std::optional<VerlSteps> verl_steps(LossHead);

/// How a head goes through its chunks.
struct HeadChunks {
  std::int64_t vocab = 0;
  int simulated = 1;
  std::function<void(int)> scope;  ///< called with i before chunk i, with -1 behind the last
};
/// Temperature, entropy, log-probs: one fp32 number a token.
Tensor verl_objective(Eager& g, Tensor logits, const VerlSteps&, const HeadChunks&);

/// entropy_from_logits: logsumexp(x) - sum(softmax(x) * x). Autocast gives softmax and logsumexp an fp32 copy of x each.
Tensor entropy(Eager& g, const Tensor& x);
/// The labels with an axis of their own.
Tensor labels_index(Eager& g);

}  // namespace oomplan
