#include "job/validate_offload.hpp"

#include "catalog/facts.hpp"
#include "job/names.hpp"

namespace oomplan {
namespace {

bool takes_hooks(Kernels k) { return k == Kernels::hf_flash || k == Kernels::hf_sdpa || k == Kernels::hf_eager; }

/// verl/utils/activation_offload.py: enable_activation_offloading.
std::string why_not_verl(const Trainer& t, EngineKind engine) {
  if (!t.loop.offloads_activations) return "it is verl's";
  if (engine != EngineKind::fsdp1 && !shards_by_fsdp2(engine)) return "verl has it under FSDP alone";
  if (t.recompute == Recompute::full && !t.reentrant)
    return "verl takes transformers' checkpoints off and puts reentrant ones around the layers: say reentrant: true";
  if (t.wrap_head && shards_by_fsdp2(engine) && t.head != LossHead::value && compare_versions(t.framework_version, "0.9") < 0)
    return "up to 0.8 verl divides logits in place, which PyTorch refuses: from 0.7.1 on they come out of a group";
  if (t.recompute == Recompute::full && t.kernels == Kernels::hf_eager)
    return "not supported yet: the mask of eager attention, which verl's checkpoints save";
  return {};
}

std::string why_not_torch(const Trainer& t, EngineKind engine) {
  if (t.loop.of_framework) return "not supported yet under an RL framework";
  if (t.recompute != Recompute::none && t.offload_activations == OffloadActivations::offload_wrapper)
    return "not supported yet: checkpoints inside of torch's offload_wrapper";
  if (shards_by_fsdp2(engine)) return "not supported yet under FSDP2: copies of its gathered parameters on the host";
  if (engine == EngineKind::fsdp1 && t.cpu_offload_policy) return "not supported yet beside FSDP1's CPUOffload";
  if (engine != EngineKind::single && engine != EngineKind::ddp && engine != EngineKind::fsdp1)
    return "not supported yet under this engine";
  return {};
}

/// trl/models/activation_offloading.py.
std::string why_not_trl(const Trainer& t, EngineKind engine) {
  if (t.loop.of_framework) return "it is TRL's, whose loop is described as framework: torch";
  if (t.recompute_every > 1) return "not supported yet: TRL's offload beside checkpoints of some layers";
  if (t.liger != Liger{}) return "not supported yet: TRL's offload beside Liger's kernels";
  if (t.head != LossHead::hf_loss && t.head != LossHead::reward_pairs)
    return "not supported yet: TRL's offload beside a loss that takes sequences one by one, or chunks";
  if (t.reentrant && t.recompute == Recompute::full && t.lora.rank > 0)
    return "not supported yet: reentrant checkpoints of adapters under TRL's offload";
  if (engine != EngineKind::single && engine != EngineKind::ddp)
    return "not supported yet under this engine: parameters that it gathers are none that TRL knows, and are copied";
  return {};
}

/// torchtune/training/_activation_offloading.py; recipes/full_finetune_single_device.py.
std::string why_not_torchtune(const Trainer& t) {
  if (t.recompute != Recompute::full) return "torchtune's recipes have it beside checkpoints alone: say recompute: full";
  return {};
}

std::string why_not(const Trainer& t, EngineKind engine) {
  const bool torchtune = t.offload_activations == OffloadActivations::torchtune;
  if (torchtune != (t.kernels == Kernels::torchtune || t.kernels == Kernels::torchtune_packed))
    return "torchtune's models and its offload without each other are not supported yet";
  if (torchtune) return why_not_torchtune(t);
  if (!takes_hooks(t.kernels)) return "not supported yet beside kernels other than transformers'";
  if (t.offload_checkpoints) return "offload_checkpoints is another offload of the same tensors";
  if (t.layout.tensor > 1) return "not supported yet: offload of activations under tensor parallelism";
  if (t.vision.images > 0) return "not supported yet: offload of activations beside a vision tower";
  if (t.padding_mask) return "not supported yet: offload of activations with a padding mask";
  if (t.lora.base.format != BaseFormat::full) return "not supported yet: offload of activations beside a quantised base";
  if (t.lora.dora) return "not supported yet: offload of activations beside DoRA";
  if (t.foak.rope || t.foak.rms_norm || t.foak.lora)
    return "not supported yet: offload of activations of fms-acceleration's operators";
  if (t.offload_activations == OffloadActivations::trl) return why_not_trl(t, engine);
  return t.offload_activations == OffloadActivations::verl ? why_not_verl(t, engine) : why_not_torch(t, engine);
}

}  // namespace

std::vector<KnobProblem> offload_problems(const Trainer& t, EngineKind engine) {
  if (t.offload_activations == OffloadActivations::none) return {};
  std::string why = why_not(t, engine);
  if (why.empty()) return {};
  return {{"offload_activations", std::string(spelling(t.offload_activations)), "none", std::move(why)}};
}

}  // namespace oomplan
