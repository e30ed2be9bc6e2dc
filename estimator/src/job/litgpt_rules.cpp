#include "job/litgpt_rules.hpp"

namespace oomplan {

std::vector<Clash> litgpt_clashes(const Role& role) {
  const Trainer& t = role.trainer;
  const bool ours = t.kernels == Kernels::litgpt || t.kernels == Kernels::litgpt_0_4_5;
  std::vector<Clash> out;
  if (ours != (t.head == LossHead::litgpt))
    out.push_back({"head", ours ? "litgpt" : "another head, or kernels: litgpt",
                   "not supported yet: LitGPT's models and its loss without each other"});
  if (!ours) return out;
  if (t.loop.of_framework) out.push_back({"kernels", "hf_flash", "the framework does not run LitGPT's models"});
  if (role.engine != EngineKind::single && role.engine != EngineKind::fsdp1)
    out.push_back({"engine", "single or fsdp1", "not supported yet: LitGPT on this engine"});
  if (t.lora.rank > 0 && role.engine == EngineKind::fsdp1 && t.lora.own_units)
    out.push_back({"lora.own_units", "false", "LitGPT's FSDPStrategy wraps blocks alone"});
  if (t.lora.base.format != BaseFormat::full && role.engine == EngineKind::fsdp1)
    out.push_back({"lora.base", "full", "LitGPT packs a model on one device alone"});
  if (t.lora.rank > 0 && t.lora.format != AdapterFormat::storage)
    out.push_back({"lora.format", "storage", "LitGPT makes adapters in the format of the model"});
  if (t.lora.dora) out.push_back({"lora.dora", "false", "LitGPT has no magnitudes beside its adapters"});
  if (t.lora.base.prepare_kbit)
    out.push_back({"lora.prepare_kbit", "false", "LitGPT leaves norms and embeddings in the model's format"});
  if (t.reentrant && t.recompute != Recompute::none)
    out.push_back({"reentrant", "false", "not supported yet: LitGPT's layers under a reentrant checkpoint"});
  return out;
}

}  // namespace oomplan
