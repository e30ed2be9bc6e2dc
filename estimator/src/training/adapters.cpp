#include "training/adapters.hpp"
#include "training/adapter_targets.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <oomplan/units/errors.hpp>

#include "job/kernel_sets.hpp"
#include "layers/families.hpp"
#include "layers/heads.hpp"
#include "layers/heads_trl.hpp"
#include "layers/litgpt.hpp"
#include "layers/torchtune.hpp"
#include "layers/transformers_code.hpp"

namespace oomplan {
namespace {

/// FSDP2 wants one stored format of all that is trained in a unit (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
/// _init_mp_dtypes, 2.13). Pairs have the adapters' format, copies the base's; what is no unit of its own is the root's.
bool mixes_formats(const Trainer& t, const Architecture& a, const AdaptedModules& m) {
  if (t.lora.format == AdapterFormat::storage || t.storage == DType::fp32) return false;
  const bool apart = a.tied ? false : t.wrap_embedding || t.wrap_head;
  const bool pairs = m.has_outside("lm_head") || m.has_outside("embed_tokens"), copies = !m.saved.empty();
  return pairs && copies && !apart;
}

/// What adapters or trained copies of embedding and output layer were not executed with; "" nothing.
std::string unsupported_outside(const Trainer& t, EngineKind engine, const Architecture& a, const AdaptedModules& m) {
  const bool head = m.has_outside("lm_head") || m.saves("lm_head"),
             table = m.has_outside("embed_tokens") || m.saves("embed_tokens");
  if (!head && !table) return {};
  if (engine == EngineKind::deepspeed) return "under DeepSpeed";
  if (t.layout.tensor > 1) return "under tensor parallelism";
  if (engine == EngineKind::fsdp1 && t.lora.own_units && m.has_outside("embed_tokens"))
    return "where FSDP1 would flatten a trained pair with its frozen embedding, which torch refuses (lora.own_units: false)";
  if (engine == EngineKind::fsdp1 && t.lora.own_units && t.forward_prefetch) return "under FSDP1 with forward_prefetch";
  if (shards_by_fsdp2(engine) && mixes_formats(t, a, m))
    return "where a pair and a trained copy of another format share a unit, which FSDP2 refuses (lora.format: storage)";
  if (t.loop.of_framework) return "under an RL framework";
  if (t.lora.kind != AdapterKind::lora || t.lora.dora) return "of another kind than LoRA";
  if (t.lora.base.format != BaseFormat::full || t.lora.base.prepare_kbit) return "beside a quantised base";
  if (t.reference != ReferencePass::none) return "beside a reference";
  if (t.lora.frozen_copies > 0) return "with frozen copies";
  if (takes_hidden(t.head)) return "with a loss that takes hidden states";
  if (t.head == LossHead::value || t.head == LossHead::reward_pairs) return "of a value model";
  if (t.offload_activations != OffloadActivations::none) return "beside activations on the host";
  if (t.autocast) return "under autocast";
  const FamilyCode& code = family_code(a.family);
  if (table && (code.scales_embedding || a.scaled_embedding || a.embedding_width > 0))
    return "of an embedding that is scaled or projected";
  return {};
}

}  // namespace

namespace {

/// Of the embedding's output. peft asks for none when the base is quantised (huggingface/peft src/peft/peft_model.py
/// _prepare_model_for_gradient_checkpointing, 0.19.1); what a framework's loop does then is its own affair.
bool asks_for_input_gradients(const Trainer& t) {
  const bool packed = t.lora.base.format != BaseFormat::full;
  if (t.loop.of_framework && packed && !t.loop.packed_embedding_gradient) return false;
  return t.recompute != Recompute::none || t.loop.embedding_gradient;
}

}  // namespace

std::vector<Problem> target_problems(const Trainer& t, EngineKind engine, const Architecture& a) {
  if (t.lora.rank > 0 && t.vision.images > 0 && !t.lora.exclude_matching.empty() && !spares_tower(t.lora))
    return {Problem{{{}, 0, 0, "lora.exclude"},
                    t.lora.exclude_matching,
                    "an expression that matches all of the tower's modules, such as .*visual.*",
                    {},
                    "not supported yet: beside a vision tower"}};
  if (t.lora.rank == 0 || !names_modules(t, a)) return {};
  try {
    (void)modules_of(t, engine, a);
  } catch (const InputError& error) {
    return error.problems;
  }
  return {};
}

bool names_modules(const Trainer& t, const Architecture& a) {
  // beside a vision tower names are matched tower and model together (layers/vision.cpp)
  return of_transformers(t.kernels) && (t.vision.images == 0 || spares_tower(t.lora)) && find_family_code(a.family) != nullptr;
}

AdaptedModules modules_of(const Trainer& t, EngineKind engine, const Architecture& a) {
  const bool expert_modules = transformers_code(t.transformers_version).value_or(TransformersCode{}).expert_modules;
  AdaptedModules out = adapted_modules(a, t.lora, expert_modules && a.family != "gpt_oss");
  const std::string why = unsupported_outside(t, engine, a, out);
  if (!why.empty())
    throw InputError(Problem{{{}, 0, 0, out.saved.empty() ? "lora.targets" : "lora.modules_to_save"},
                             fmt::format("{}{}{}", fmt::join(out.outside, ", "),
                                         out.outside.empty() || out.saved.empty() ? "" : ", ", fmt::join(out.saved, ", ")),
                             "modules of the layers",
                             {},
                             "not supported yet: adapters or trained copies of embedding and output layer " + why});
  return out;
}

/// Under FSDP adapters are cast to the param_dtype like everything else, if there is one, but for fused ones, which FSDP1
/// ignores; else they run as they are stored. Checkpoints need an input with a gradient, and the RL frameworks ask for one in any
/// case.
AdapterOptions adapter_options(const Trainer& t, EngineKind engine, const Architecture& a) {
  AdapterOptions o;
  if (t.lora.rank == 0) return o;
  o.rank = t.lora.rank;
  o.targets = t.lora.targets;
  o.by_module = names_modules(t, a);
  o.spares_tower = spares_tower(t.lora);
  if (o.by_module) o.modules = modules_of(t, engine, a);
  const bool unless_ignored = engine == EngineKind::fsdp1 && (t.compute != t.storage || !t.foak.lora);
  const bool casts = t.cast_parameters && (shards_by_fsdp2(engine) || unless_ignored);
  o.dtype = !casts && t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.compute;
  o.dropout = t.lora.dropout > 0;
  o.kind = t.lora.kind;
  o.dora = t.lora.dora;
  o.joint = engine == EngineKind::fsdp1 && !t.lora.own_units;
  o.input_gradients = !is_litgpt(t.kernels) && !is_torchtune(t.kernels) && asks_for_input_gradients(t);
  return o;
}

}  // namespace oomplan
