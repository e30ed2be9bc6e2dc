#include "frontends/verl/derive.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "frontends/made_models.hpp"
#include "frontends/verl/images.hpp"
#include "job/placement.hpp"

namespace oomplan::verl {

void derive_budget(Derivation& d, Role& role) {
  const Trainer& t = role.trainer;
  const std::string budget = key_of(role, "tokens_per_micro_batch");
  if (d.written(budget) || t.layout.context == 1 || d.job().origins[budget].kind != Origin::Kind::default_) return;
  d.derive(budget, fmt::format("{}", t.tokens_per_micro_batch * t.layout.context),
           "verl's budget counts the tokens of one GPU: times the Ulysses degree", "verl/workers/engine/utils.py");
}

void derive_role(Derivation& d, Role& role) {
  if (role.beside.empty()) return;
  const Role* other = d.job().role(role.beside);
  const bool beside_trainer = other != nullptr && !other->serves();
  d.derive(key_of(role, "in_process"), beside_trainer ? "true" : "false", "verl's workers share one process",
           "verl/workers/engine_workers.py");
}

namespace {

bool has_delta(const Role& role) {
  const auto& runs = role.architecture->runs;
  return std::any_of(runs.begin(), runs.end(), [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; });
}

/// Where sequences of a packed row begin is told to the layers of Qwen3.5, which begin a chunk and a convolution with each.
void derive_lengths(Derivation& d, Role& role) {
  const std::int64_t longest = d.job().prompt_tokens + d.job().response_tokens;
  const bool told = has_delta(role) && !role.architecture->tower.kind.empty() && role.engine != EngineKind::megatron;
  const std::string key = key_of(role, "sequence_tokens");
  if (told && longest > 0 && role.trainer.sequence_tokens == 0 && role.trainer.sequences_per_micro_batch == 0 && !d.written(key))
    d.derive(key, fmt::format("{}", longest), "a prompt and its response", "verl/workers/engine/fsdp/transformer_impl.py");
}

/// verl's setup.py, uv.lock and stable images have neither package (0.9, 0.10), so neither does a job that does not say it.
void note_states(Derivation& d, const Role& role) {
  const auto told = d.job().origins.find(key_of(role, "linear_attention"));
  const bool is_told = told != d.job().origins.end() && told->second.kind != Origin::Kind::default_;
  if (!has_delta(role) || role.engine == EngineKind::megatron || is_told) return;
  const auto model = d.job().origins.find(key_of(role, "model"));
  d.note({Note::Level::warning, model != d.job().origins.end() ? model->second.place : Place{},
          "linear attention is taken to run in transformers' own functions: verl installs neither flash-linear-attention nor "
          "causal-conv1d. With them a layer keeps less: --linear-attention says what is installed"});
}

}  // namespace

void derive_model(Derivation& d, Role& role) {
  derive_loop_over_experts(d, role);
  derive_tied_units(d, role);
  if (!role.serves()) derive_images(d, role);
  if (!role.serves()) derive_lengths(d, role);
  if (role.kind == RoleKind::actor || role.kind == RoleKind::trainer) note_states(d, role);
  if (role.serves() || role.engine != EngineKind::megatron) return;
  constexpr std::string_view kMade = "verl's models are made so";
  const bool bridge = role.trainer.megatron.maker == ModelMaker::megatron_bridge;
  const std::string source = bridge ? "megatron/bridge/models" : "mbridge/core/llm_bridge.py";
  const auto set = [&](std::string_view knob, const char* text) {
    d.derive(key_of(role, knob), text, std::string(kMade), source);
  };
  set("wrap_with_ddp", "false");  // forward_only
  set("recompute", "none");       // override_transformer_config.recompute_granularity
  set("precision.storage", "bf16");
  MadeModel made = made_model(role.trainer.megatron.maker, made_as(*role.architecture)).value_or(MadeModel{});
  if (trains_mergers_alone(role.trainer.megatron.maker, *role.architecture) &&
      (role.kind == RoleKind::actor || role.kind == RoleKind::trainer)) {
    const auto model = d.job().origins.find(key_of(role, "model"));
    d.note(
        {Note::Level::warning, model != d.job().origins.end() ? model->second.place : Place{},
         "Megatron-Bridge freezes this model but for its tower's mergers (freeze_language_model, freeze_vision_model), and verl "
         "leaves it so: nothing else is trained"});
  }
  if (bridge) made.balances = false;  // moe_router_load_balancing_type none
  derive_made_model(d, role, made, kMade);
}

void derive_update(Derivation& d, Role& rollout, Role& actor) {
  constexpr const char* kWhere = "verl/workers/engine_workers.py";
  if (anchor(d.job(), rollout) == anchor(d.job(), actor))
    d.derive("sync.by", "ipc", "verl on shared GPUs hands weights over by CUDA IPC", kWhere);
  else
    d.derive("sync.by", "nccl", "servers on GPUs of their own get new weights over NCCL", kWhere);
  derive_bucket(d, actor.trainer, "update_weights_bucket_mib");
}

namespace {

/// The newest vLLM and the SGLang that setup.py of the tag allows (extras `vllm` and `sglang`); from 0.9 on setup.py has no upper
/// bound, and vLLM is that of docker/ and pyproject.toml.
struct Pin {
  std::string_view versions, vllm, sglang;
};
constexpr std::array<Pin, 7> kServers{{{">=0.10", "0.24.0", "0.5.12"},
                                       {">=0.9,<0.10", "0.24.0", "0.5.8"},
                                       {">=0.8,<0.9", "0.12.0", "0.5.8"},
                                       {">=0.7,<0.8", "0.12.0", "0.5.6"},
                                       {">=0.6,<0.7", "0.11.0", "0.5.5"},
                                       {">=0.4,<0.6", "0.8.5", "0.4.6"},
                                       {"<0.4", "0.8.2", "0.4.4"}}};

}  // namespace

std::string_view pinned_server(std::string_view version, EngineKind engine) {
  for (const Pin& pin : kServers)
    if (version_matches(version, pin.versions)) return engine == EngineKind::sglang ? pin.sglang : pin.vllm;
  return {};
}

}  // namespace oomplan::verl
