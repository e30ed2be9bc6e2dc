#include "job/torchtune_rules.hpp"

namespace oomplan {

std::vector<Clash> torchtune_clashes(const Role& role) {
  const Trainer& t = role.trainer;
  const bool ours = t.kernels == Kernels::torchtune || t.kernels == Kernels::torchtune_packed;
  const bool head = t.head == LossHead::torchtune || t.head == LossHead::torchtune_chunked;
  std::vector<Clash> out;
  if (ours != head)
    out.push_back({"head", ours ? "torchtune or torchtune_chunked" : "another head, or kernels: torchtune",
                   "not supported yet: torchtune's models and its losses without each other"});
  if (!ours) return out;
  if (t.loop.of_framework) out.push_back({"kernels", "hf_flash", "the framework does not run torchtune's models"});
  if (role.engine != EngineKind::single)
    out.push_back({"engine", "single", "not supported yet: torchtune's recipes for several devices"});
  if (t.storage != DType::bf16)
    out.push_back({"precision.storage", "bf16", "not supported yet: torchtune's models in another format"});
  if (t.sequences_per_micro_batch == 0)
    out.push_back({"sequences_per_micro_batch", "a number", "torchtune's batches have rows, packed ones too"});
  if (t.lora.rank > 0 && t.lora.format != AdapterFormat::storage)
    out.push_back({"lora.format", "storage", "torchtune makes adapters in the format of the model"});
  if (t.lora.base.format != BaseFormat::full)
    out.push_back({"lora.base", "full", "not supported yet: torchao's packed matrices"});
  if (t.lora.dora) out.push_back({"lora.dora", "false", "not supported yet: torchtune's DoRA"});
  if (t.reentrant && t.recompute != Recompute::none)
    out.push_back({"reentrant", "false", "torchtune's checkpoints are not reentrant"});
  return out;
}

}  // namespace oomplan
