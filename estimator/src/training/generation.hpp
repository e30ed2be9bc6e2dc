// A generator: transformers' model by itself. Without a cache every token is a pass over all tokens so far, and the last one is
// the largest; with one the first pass is that of the prompt, and every further one has a token for each sequence and keeps what
// the layers have seen. lm-evaluation-harness runs a pass over whole texts (huggingface/transformers
// src/transformers/generation/utils.py _sample, 4.57 and 5.24; EleutherAI/lm-evaluation-harness lm_eval/models/huggingface.py).
#pragma once
#include <memory>
#include <vector>

#include "layers/tape.hpp"
#include "training/passes.hpp"
#include "training/plan.hpp"
#include "training/spread.hpp"

namespace oomplan {

/// Of one GPU of a generator: what of the model it has, and its passes.
struct GenerationPasses {
  std::shared_ptr<const Architecture> architecture;
  Trainer trainer;  ///< as its pass over whole sequences sees it
  PassOptions whole, token;
  bool grows = false;  ///< there is a pass of one token beside a cache
  TokenCounts counts;  ///< of that
};
/// `prompt`: tokens of a prompt, with a cache. `share`: what of the model's layers is there.
GenerationPasses generation_passes(const Trainer&, const std::shared_ptr<const Architecture>&, std::int64_t prompt,
                                   const LayerShare& share, KernelInternals = {});
/// REQUIRES: tapes.log_probs is the tape of passes.whole, tapes.decode that of passes.token where it grows.
TrainPlan generation_plan(const GenerationPasses&, const TrainTapes&);

}  // namespace oomplan
