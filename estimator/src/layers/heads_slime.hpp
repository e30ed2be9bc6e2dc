// The loss of slime's FSDP backend (THUDM/slime slime/backends/fsdp_utils/actor.py, 0.2.0 to 0.2.2: _train_step,
// get_logprob_and_entropy).
//
// Legend as in heads.hpp. All is fp32. The step's variable `logits` has TK*V until it returns; the last token has no next one.
//   log-probs  a quotient of C = TK - 1 rows, which the compiled log_softmax saves; in backward a scattered gradient and the
//   result entropy    log_softmax and softmax of the rows, both saved, and their product; it has a gradient whatever its
//   coefficient is
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// `logits`: fp32, [B, K, V].
Tensor slime_objective(Eager& g, Tensor logits, std::int64_t vocab);

}  // namespace oomplan
