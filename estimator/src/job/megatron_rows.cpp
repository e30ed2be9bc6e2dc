#include "job/megatron_rows.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "job/knob_table.hpp"

namespace oomplan {
namespace {

using knob::Access;

constexpr Limit64 kChunkLimit{1, 1024};
constexpr Limit64 kStageLayerLimit{0, 65536};

/// megatron/core/transformer/transformer_config.py, 0.16.1: recompute_modules
const std::vector<std::string>& modules() {
  static const std::vector<std::string> names{"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"};
  return names;
}

std::string get_modules(const Job&, const Role* r) {
  return fmt::format("[{}]", fmt::join(r->trainer.megatron.recompute_modules, ", "));
}
/// "[mlp, layernorm]" or "mlp", put in the order of the table.
Refusal set_modules(const Knob& k, Job&, Role* r, std::string_view text) {
  Refusal refusal{fmt::format("a list of {}", fmt::join(k.choices, ", ")), {}, {}};
  if (text.starts_with('[') != text.ends_with(']')) return refusal;
  std::vector<std::string> given;
  for (const std::string_view item : knob::items_of(text)) {
    if (std::find(modules().begin(), modules().end(), item) == modules().end()) return refusal;
    given.emplace_back(item);
  }
  std::vector<std::string> ordered;
  for (const auto& name : modules())
    if (std::find(given.begin(), given.end(), name) != given.end()) ordered.push_back(name);
  r->trainer.megatron.recompute_modules = std::move(ordered);
  return {};
}

Knob setting(std::string_view key, KnobType type, Access access, Effect effect, std::string_view help,
             std::string_view remedy = {}) {
  Knob k;
  k.key = key;
  k.of = KnobOf::trains;
  k.type = type;
  k.engine = EngineKind::megatron;
  k.get = access.get;
  k.set = access.set;
  k.effect = effect;
  k.help = help;
  k.remedy = remedy;
  return k;
}
Knob bounded(Knob k, Limit64 limits, std::string_view unit, std::string_view zero = {}) {
  k.limits = limits;
  k.unit = unit;
  k.zero = zero;
  return k;
}
Knob chosen_from(Knob k, std::vector<std::string> choices) {
  k.choices = std::move(choices);
  return k;
}
Knob capacity() {
  Knob k =
      setting("expert_capacity", KnobType::number, knob::number_or_auto<&Megatron::expert_capacity>(), Effect::semantics,
              "Megatron: capacity factor of every expert, padded to it; auto: no token is dropped, routing is taken as even");
  k.least = 0.01;
  k.most = 1000;
  k.zero = "auto";
  return k;
}

}  // namespace

std::vector<Knob> megatron_rows() {
  using enum KnobType;
  using enum Effect;
  return {
      setting("sequence_parallel", flag, knob::flag<&Megatron::sequence_parallel>(), speed,
              "Megatron: norms, dropouts and residuals are split over the tensor-parallel ranks too",
              "splits what tensor parallelism leaves whole over its ranks; the same communication"),
      bounded(setting("virtual_stages", count, knob::count<&Megatron::virtual_stages>(), speed,
                      "Megatron: chunks of layers on every pipeline stage (interleaved schedule)"),
              kChunkLimit, "chunks"),
      bounded(setting("first_stage_layers", count, knob::count_or_auto<&Megatron::first_stage_layers>(), speed,
                      "Megatron: layers of the first pipeline stage; auto: as many as the others"),
              kStageLayerLimit, "layers", "auto"),
      bounded(setting("last_stage_layers", count, knob::count_or_auto<&Megatron::last_stage_layers>(), speed,
                      "Megatron: layers of the last pipeline stage; auto: as many as the others"),
              kStageLayerLimit, "layers", "auto"),
      setting("embedding_in_split", flag, knob::flag<&Megatron::embedding_in_split>(), speed,
              "Megatron: the embedding counts as a layer where layers are dealt to stages"),
      setting("loss_in_split", flag, knob::flag<&Megatron::loss_in_split>(), speed,
              "Megatron: the output layer and loss count as a layer where layers are dealt to stages"),
      chosen_from(setting("attention", choice, knob::choice<&Megatron::attention>(), speed,
                          "Megatron: attention of Transformer Engine: fused (cuDNN), flash (flash-attention 2) or unfused"),
                  spellings<TeAttention>()),
      chosen_from(setting("recompute_method", choice, knob::choice<&Megatron::recompute_method>(), speed,
                          "Megatron, recompute full: uniform (runs of recompute_layers) or block (the first recompute_layers)"),
                  spellings<RecomputeMethod>()),
      bounded(setting("recompute_layers", count, knob::count<&Megatron::recompute_layers>(), speed,
                      "Megatron, recompute full: layers of a run (uniform) or of a stage's chunk (block)"),
              kStageLayerLimit, "layers"),
      chosen_from(setting("recompute_modules", items, {get_modules, set_modules}, speed,
                          "Megatron, recompute selective: modules whose inside is computed again"),
                  modules()),
      chosen_from(setting("cross_entropy", choice, knob::choice<&Megatron::loss>(), numerics,
                          "Megatron: cross-entropy of Transformer Engine (te), the compiled one (native) or the unfused one",
                          "Transformer Engine's writes the gradient into the logits: no fp32 logits"),
                  spellings<MegatronLoss>()),
      chosen_from(setting("context_exchange", choice, knob::choice<&Megatron::context_exchange>(), speed,
                          "Megatron: context parallelism by a ring (p2p) or by exchanging heads (a2a)"),
                  spellings<ContextExchange>()),
      setting("gradient_accumulation_fusion", flag, knob::flag<&Megatron::gradient_accumulation_fusion>(), speed,
              "Megatron: weight gradients are added up inside of the matrix product"),
      setting("distributed_optimizer", flag, knob::flag<&Megatron::distributed_optimizer>(), speed,
              "Megatron: masters and optimizer states are split over the data-parallel ranks",
              "splits the optimizer's states over the data-parallel ranks"),
      setting("deallocate_outputs", flag, knob::flag<&Megatron::deallocate_outputs>(), free,
              "Megatron: a stage frees its output once it has been sent"),
      capacity(),
      setting("permute_fusion", flag, knob::flag<&Megatron::permute_fusion>(), speed,
              "Megatron: tokens are sorted by expert with Transformer Engine's kernel"),
      chosen_from(
          setting("router_dtype", choice, knob::choice<&Megatron::router>(), numerics, "Megatron: format of the router's logits"),
          {"bf16", "fp32", "bfloat16", "float32"}),
  };
}

}  // namespace oomplan
