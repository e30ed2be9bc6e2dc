#include "frontends/made_models.hpp"

#include <algorithm>

#include "catalog/architecture.hpp"
#include "job/names.hpp"

namespace oomplan {

void derive_made_model(Derivation& d, const Role& role, const MadeModel& made, std::string_view because) {
  const Trainer& t = role.trainer;
  const char* source = t.megatron.maker == ModelMaker::megatron_bridge ? "megatron/bridge/models"
                       : t.megatron.maker == ModelMaker::verl          ? "verl/models/mcore/config_converter.py"
                                                                       : "mbridge/core/llm_bridge.py";
  const auto set = [&](std::string_view knob, const std::string& text) {
    d.derive(key_of(role, knob), text, std::string(because), source);
  };
  const auto flag = [](bool on) { return std::string(on ? "true" : "false"); };
  set("sequence_parallel", flag(t.layout.tensor > 1));
  set("gradient_accumulation_fusion", flag(made.fused_gradients && (t.lora.rank == 0 || !t.loop.adapters_outside)));
  set("deallocate_outputs", flag(made.deallocates));
  set("rotary_fusion", flag(made.rotary_fusion));
  set("permute_fusion", flag(made.permute_fusion));
  set("activation_fusion", flag(made.activation_fusion));
  set("shared_expert_overlap", flag(made.shared_overlap));
  set("router_aux_loss", flag(made.balances));
  set("router_dtype", std::string(spelling(made.router)));
}

void derive_tied_units(Derivation& d, const Role& role) {
  if (role.serves() || role.engine == EngineKind::archon || !role.architecture->tied) return;  // Archon: in both units
  for (const std::string_view knob : {"wrap_embedding", "wrap_head"})
    d.derive(key_of(role, knob), "false", "tied embeddings belong to the root unit");
}

void derive_loop_over_experts(Derivation& d, const Role& role) {
  if (role.serves() || role.engine == EngineKind::megatron || role.engine == EngineKind::archon) return;
  const auto routed = [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; };
  const auto& runs = role.architecture->runs;
  if (std::none_of(runs.begin(), runs.end(), routed) || d.fact(role.trainer, "experts_fused") != 0) return;
  d.derive(key_of(role, "transformers"), "4.57.1", "this release of the framework runs on transformers 4");
}

}  // namespace oomplan
