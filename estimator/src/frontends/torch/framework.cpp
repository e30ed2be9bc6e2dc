// PyTorch alone: the user's own script, and the trainers whose layers and losses a kernel set brings along.
#include "frontends/framework.hpp"

#include <array>
#include <utility>

#include "catalog/architecture.hpp"
#include "job/kernel_sets.hpp"
#include "job/names.hpp"

namespace oomplan::torch {
namespace {

/// FSDP casts to no format that is not written. Packed matrices are stored in the format that all compute in.
void derive_policy(Derivation& d, const Role& role) {
  const bool shards = shards_by_fsdp2(role.engine) || role.engine == EngineKind::fsdp1;
  if (!shards || role.trainer.lora.base.format != BaseFormat::full) return;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kFormats{
      {{"precision.compute", "precision.cast_parameters"}, {"precision.reduce", "precision.cast_gradients"}}};
  for (const auto& [format, cast] : kFormats)
    if (!d.written(key_of(role, format)) && !d.taken_over(key_of(role, format)) && !d.taken_over(key_of(role, cast)))
      d.derive(key_of(role, cast), "false", "no format is written for FSDP's policy",
               "torch/distributed/fsdp/_fully_shard/_fsdp_api.py: MixedPrecisionPolicy");
}

/// What torchtitan sets where a recipe is silent.
void derive_titan(Derivation& d, const Role& role) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kSettings{{{"precision.storage", "fp32"},
                                                                                    {"precision.compute", "bf16"},
                                                                                    {"precision.reduce", "fp32"},
                                                                                    {"optimizer_form", "fused"},
                                                                                    {"head", "cross_entropy"},
                                                                                    {"wrap_embedding", "true"},
                                                                                    {"wrap_head", "true"},
                                                                                    {"wrap_norm", "true"},
                                                                                    {"reshard_last", "false"}}};
  for (const auto& [knob, text] : kSettings)
    d.derive(key_of(role, knob), std::string(text), "torchtitan's models run so",
             "pytorch/torchtitan torchtitan/config/job_config.py, torchtitan/models/llama3/infra/parallelize.py, 0.2.2");
}

/// What LitGPT's fine-tuning scripts set.
void derive_litgpt(Derivation& d, const Role& role) {
  d.derive(key_of(role, "head"), "litgpt", "LitGPT's loss", "Lightning-AI/litgpt litgpt/utils.py");
  constexpr std::string_view kScripts = "Lightning-AI/litgpt litgpt/finetune/full.py, litgpt/finetune/lora.py";
  const auto set = [&](std::string_view knob, const char* text, const char* because) {
    d.derive(key_of(role, knob), text, because, std::string(kScripts));
  };
  set("lora.format", "storage", "adapters are made in the format of the model");
  if (role.trainer.lora.base.format != BaseFormat::full) set("lora.bitsandbytes", "0.42.0", "LitGPT supports this release alone");
  if (role.engine != EngineKind::fsdp1) return;
  set("recompute", "full", "LitGPT checkpoints its layers under FSDP");
  set("gradient_sync_every_micro_batch", "false", "fabric.no_backward_sync");
  d.derive(key_of(role, "use_orig_params"), "true", "Fabric asks for it", "lightning/fabric/strategies/fsdp.py");
  if (role.trainer.lora.rank > 0) set("lora.own_units", "false", "FSDPStrategy wraps blocks alone");
}

/// What torchtune's recipes set.
void derive_torchtune(Derivation& d, const Role& role) {
  d.derive(key_of(role, "head"), "torchtune_chunked", "torchtune's configurations name this loss",
           "pytorch/torchtune recipes/configs, 0.4.0");
  d.derive(key_of(role, "lora.format"), "storage", "adapters are made in the format of the model",
           "pytorch/torchtune torchtune/modules/peft/lora.py, 0.4.0");
}

/// FSDP2 computes and reduces as it stores unless told; how it stores is the script's choice.
void derive_formats(Derivation& d, const Role& role) {
  const Trainer& t = role.trainer;
  if (!d.taken_over(key_of(role, "precision.compute")))
    d.derive(key_of(role, "precision.compute"), std::string(name(t.storage)), "FSDP2 computes in the stored format unless told");
  if (!d.taken_over(key_of(role, "precision.reduce")))
    d.derive(key_of(role, "precision.reduce"), std::string(name(t.compute)), "FSDP2 reduces in the computed format unless told");
  derive_policy(d, role);
  const std::string storage = key_of(role, "precision.storage");
  if (!d.written(storage) && !d.taken_over(storage)) d.missing(storage, "fp32 or bf16", "PyTorch alone has no default for it");
}

void derive_role(Derivation& d, Role& role) {
  const Trainer& t = role.trainer;
  const bool titan = role.engine == EngineKind::fsdp2 && t.kernels == Kernels::torchtitan;
  if (titan)
    derive_titan(d, role);
  else
    derive_formats(d, role);
  const bool litgpt = t.kernels == Kernels::litgpt || t.kernels == Kernels::litgpt_0_4_5;
  if (litgpt) derive_litgpt(d, role);
  const bool torchtune = t.kernels == Kernels::torchtune || t.kernels == Kernels::torchtune_packed;
  if (torchtune) derive_torchtune(d, role);
  if (of_transformers(t.kernels) && t.lora.rank > 0 && t.vision.images == 0)
    d.derive(key_of(role, "lora.targets"), "default", "peft's own targets for the model's type",
             "huggingface/peft src/peft/utils/constants.py, 0.21.2");
  if (role.kind == RoleKind::generator)
    return d.derive(key_of(role, "head"), "next_token", "generate()",
                    "huggingface/transformers src/transformers/generation/utils.py");
  if (!titan && !litgpt && !torchtune && role.kind == RoleKind::trainer)
    d.derive(key_of(role, "head"), "hf_loss", "transformers' own loss");
}

void derive_model(Derivation& d, Role& role) {
  if (role.kind != RoleKind::generator || role.architecture->tower.kind.empty()) return;
  Place place;
  place.path = key_of(role, "model");
  d.note({Note::Level::warning, std::move(place),
          "prompts are counted as text alone: what images make in the vision tower comes on top"});
}

void derive_update(Derivation& d, Role& /*rollout*/, Role& /*actor*/) {
  d.derive("sync.by", "none", "PyTorch alone brings no weight update");
}

}  // namespace

FrameworkRow framework_row() {
  FrameworkRow row{.framework = Framework::torch, .loop = {}};
  row.defaults = default_rows;
  row.derive_role = derive_role;
  row.derive_model = derive_model;
  row.derive_update = derive_update;
  return row;
}

}  // namespace oomplan::torch
