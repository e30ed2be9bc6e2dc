#include "job/validate_optimizer.hpp"

#include "job/names.hpp"

namespace oomplan {
namespace {

/// FSDP2's parameters are DTensors, cut along the first axis. Each of these was run on them (PyTorch 2.13, transformers 5.23,
/// bitsandbytes 0.50.2).
std::string fails_on_dtensors(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adafactor:
      return "transformers' Adafactor fails on FSDP2's DTensors: its factors are plain tensors, which they cannot be added to";
    case OptimizerKind::torch_adafactor:
      return "torch.optim.Adafactor fails on FSDP2's DTensors: norms over the ranks cannot be squared in place";
    case OptimizerKind::muon:
      return "not supported yet: Muon on DTensors, whose products gather or reduce as DTensor's estimate of their cost has it";
    case OptimizerKind::apollo_adamw:
      return "not supported yet: APOLLO on DTensors, whose projections were not run";
    default:
      return "bitsandbytes' kernels take no DTensors, which FSDP2's parameters are";
  }
}

/// FSDP1's have one axis: a flat shard, or with use_orig_params a flat piece of a parameter.
std::string fails_on_flat_shards(const Trainer& t) {
  if (t.optimizer == OptimizerKind::muon) return "torch.optim.Muon takes matrices alone, and FSDP1's parameters are flat";
  if (t.optimizer == OptimizerKind::apollo_adamw) return "APOLLO projects matrices, and FSDP1's parameters are flat";
  if (t.use_orig_params && t.optimizer < OptimizerKind::adamw_8bit)
    return "not supported yet: this optimizer on the pieces of parameters that a rank of FSDP1 has";
  if (t.cpu_offload_policy) return "not supported yet: this optimizer on the host";
  return {};
}

}  // namespace

std::vector<KnobProblem> optimizer_problems(const Trainer& t, EngineKind engine) {
  std::vector<KnobProblem> out;
  const bool by_element = element_by_element(t.optimizer);
  if (!by_element && (shards_by_fsdp2(engine) || engine == EngineKind::fsdp1)) {
    std::string why = shards_by_fsdp2(engine) ? fails_on_dtensors(t.optimizer) : fails_on_flat_shards(t);
    if (!why.empty())
      out.push_back(
          {"optimizer", "'" + std::string(spelling(t.optimizer)) + "'", "adamw, adam, sgd or sgd_momentum", std::move(why)});
  }
  const bool accumulates = engine == EngineKind::single || engine == EngineKind::ddp ||
                           (shards_by_fsdp2(engine) && t.gradient_sync_every_micro_batch && !t.cpu_offload_policy);
  if (t.keep_gradients && (!accumulates || t.loop.learns_at_once || t.step_every_micro_batch))
    out.push_back({"keep_gradients", "true", "false",
                   "not supported yet: gradients that stay, beyond one device, DDP and FSDP2 that reduces in every micro-batch"});
  if (t.keep_gradients && t.gradient_as_bucket_view && !t.gradient_sync_every_micro_batch)
    out.push_back({"keep_gradients", "true", "false",
                   "not supported yet: gradients that stay as views of buckets without synchronisation"});
  if (!by_element && t.offload_optimizer)
    out.push_back({"offload", "[optimizer]", "[]", "not supported yet: the offload of this optimizer's states"});
  return out;
}

}  // namespace oomplan
