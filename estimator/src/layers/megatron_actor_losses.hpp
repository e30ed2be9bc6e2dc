// Losses that RL frameworks put behind Megatron's output layer.
#pragma once
#include <functional>

#include "layers/tape.hpp"

namespace oomplan {

/// slime's of today; of 0.3.0, which copies the logits; of 0.2.4 and before, which does so sample by sample; Relax's, slime's of
/// today of every sample's rows by themselves.
enum class ActorLossKind : std::uint8_t { verl, slime, slime_whole, slime_samples, slime_sliced };

/// Does it go sample by sample?
constexpr bool by_samples(ActorLossKind kind) {
  return kind == ActorLossKind::slime_samples || kind == ActorLossKind::slime_sliced;
}

struct ActorLoss {
  ActorLossKind kind = ActorLossKind::verl;
  bool entropy = false;           ///< it is computed
  bool entropy_gradient = false;  ///< slime: it is part of the loss (entropy_coef); verl's always is
  bool temperature = false;       ///< slime: other than 1, so that logits are divided into a new tensor
  bool checkpoint = false;        ///< slime: --recompute-loss-function
  bool fused = false;             ///< verl: use_fused_kernels, from hidden states instead of logits
  std::int64_t topk = 0;    ///< verl, by_samples: of the teacher's most likely tokens, over which the loss goes; 0: it does not
  bool topk_alone = false;  ///< verl: and nothing else, no log-probs are made; by_samples: no loss takes what is made of them
  bool undivided = false;   ///< verl before 0.6: no temperature, and no copy of the logits beside the entropy's
  int chunks = 0;           ///< slime: of --log-probs-chunk-size rows, as many as are simulated; 0: all rows at once
  int samples = 1;          ///< by_samples: of K rows each; chunks are those of one of them
  bool context = false;     ///< by_samples: of two parts of K rows each (context parallelism)
  int head_chunks = 0;      ///< by_samples: of a sample, in which the output layer runs, too; 0: it runs before
  bool operator==(const ActorLoss&) const = default;
};

/// Megatron's vocab_parallel_cross_entropy of fp32 logits: they become the softmax where they are, and that the gradient.
Tensor vocab_parallel_cross_entropy(Eager&, const Tensor& logits);
/// verl's vocab_parallel_entropy, which AReaL had before 0.5.0: keeps the logits and their softmax, which becomes the gradient.
Tensor vocab_parallel_entropy(Eager&, const Tensor& logits);

/// verl's with `fused`: from hidden states [S, B, H] of all sequence-parallel ranks and this rank's `columns` of the vocabulary.
/// `weight`: where the matrix's gradient goes; made also where that is nowhere.
Tensor fused_actor_loss(Eager&, const ActorLoss&, const Tensor& hidden, const Tensor& labels, const Tensor& weight,
                        std::int64_t columns);

/// Relax's with `head_chunks`: from fp32 hidden states of all sequence-parallel ranks. `head`: 16-bit rows of them to 16-bit
/// logits of this rank's part of the vocabulary.
Tensor actor_loss_of_states(Eager&, const ActorLoss&, const Tensor& hidden, const std::function<Tensor(const Tensor&)>& head);

/// From fp32 logits of this rank's part of the vocabulary to a scalar. `scope` as in run_head.
Tensor actor_loss(Eager&, const ActorLoss&, Tensor logits, const std::function<void(int)>& scope);

}  // namespace oomplan
