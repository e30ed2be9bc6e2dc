#include "job/workload.hpp"

namespace oomplan {

Workload workload_of(const Job& job) { return {job.prompt_tokens, job.response_tokens, job.sequences_per_step}; }

std::int64_t longest_sequence(const Job& job, const Role& role) {
  const std::int64_t told = job.prompt_tokens + job.response_tokens;
  return job.kind == JobKind::rl || role.trainer.sequence_tokens == 0 ? told : role.trainer.sequence_tokens;
}

// AReaL cuts the batch of every engine by one function, which compares lengths without padding: realhf/base/datapack.py
// (ffd_allocate) in 0.3.0, areal/utils/datapack.py (ffd_allocate) from 0.4.1, areal/utils/seqpack.py (ffd_allocate, kk_allocate)
// from 1.0.4 on. verl: verl/utils/seqlen_balancing.py (rearrange_micro_batches), for FSDP and Megatron.
std::int64_t least_budget(const Job& job, const Role& role) {
  const Trainer& t = role.trainer;
  if (role.serves() || !t.loop.packs || t.sequences_per_micro_batch > 0) return 0;
  return longest_sequence(job, role);
}

}  // namespace oomplan
