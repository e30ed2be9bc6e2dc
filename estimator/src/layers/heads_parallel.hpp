// Heads over a vocabulary that tensor parallelism splits. Legend as in heads.hpp; V: the vocabulary of one rank.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// One chunk of AReaL's vocab-parallel log-probs and entropy, in fp32 (AReaL areal/utils/functional/vocab_parallel.py, 0.5 to
/// 2.0: _VocabParallelLogProbsEntropy). The entropy is a metric. Forward-only passes run the form without entropy.
Tensor areal_vocab_parallel_chunk(Eager& g, Tensor part);

/// F.cross_entropy(logits.float()) under loss_parallel (torch/distributed/tensor/parallel/loss.py, 2.13): log_softmax and
/// nll_loss operator by operator, out of place. logits: [B, K, V], held by the caller.
Tensor loss_parallel(Eager& g, const Tensor& logits, const Tensor& labels);

}  // namespace oomplan
