// How an AReaL file's batch of one optimizer step is cut into micro-batches: prompts, samples, pairs, and mb_spec.
//
// Sources: areal-project/AReaL areal/utils/data.py split_padded_tensor_dict_into_mb_list, areal/utils/seqpack.py ffd_allocate,
// areal/trainer/ppo/actor.py, areal/trainer/{rw,dpo}/*_engine.py, 0.4.1 to 2.0.0.
#pragma once
#include <cstdint>

#include "frontends/areal/meaning.hpp"

namespace oomplan::areal {

/// Sequences that one micro-batch keeps together: both of a pair, whatever mb_spec.granularity says (FSDPRWEngine,
/// FSDPDPOEngine).
std::int64_t sequences_together(const Meaning&);
/// Sequences of one optimizer step over all ranks, 0 when the file leaves them open. PPO cuts the rollout batch into
/// ppo_n_minibatches; a sample of preference data is two sequences.
std::int64_t step_sequences(const Meaning&, const compose::Node& root);
/// Those of one data-parallel rank.
std::int64_t rank_sequences(const Meaning&, const compose::Node& root, const BuiltRole&);
/// The same of all that a rollout or a data loader brings for one step of the trainer, before PPO cuts it.
std::int64_t rank_batch(const Meaning&, const BuiltRole&);
/// The least number of micro-batches of a rank: mb_spec.n_mbs, and two for every pipeline stage of Megatron.
std::int64_t least_micro_batches(const Meaning&, const compose::Node& root, const BuiltRole&);
/// Without a budget of tokens: the sequences of the largest micro-batch. The fullest group goes last, so equally long sequences
/// are spread evenly.
std::int64_t sequences_without_budget(const Meaning&, const compose::Node& root, const BuiltRole&);

}  // namespace oomplan::areal
