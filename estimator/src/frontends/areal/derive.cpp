#include "frontends/areal/derive.hpp"

#include <array>
#include <numeric>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "catalog/architecture.hpp"
#include "frontends/made_models.hpp"
#include "job/names.hpp"
#include "job/placement.hpp"
#include "units/sizes.hpp"

namespace oomplan::areal {

/// One format (dtype) is that of everything but the reductions.
void derive_role(Derivation& d, Role& role) {
  if (role.engine != EngineKind::archon) return;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSettings{{{"kernels", "archon"},
                                                                                    {"precision.storage", "bf16"},
                                                                                    {"precision.reduce", "fp32"},
                                                                                    {"wrap_embedding", "true"},
                                                                                    {"wrap_head", "true"},
                                                                                    {"wrap_norm", "true"},
                                                                                    {"reshard_last", "false"}}};
  for (const auto& [knob, text] : kSettings)
    d.derive(key_of(role, knob), std::string(text), "Archon's models run so",
             "areal/experimental/models/archon/qwen3/infra/parallelize.py, areal/experimental/engine/archon_engine.py, 1.0.4");
  d.derive(key_of(role, "precision.compute"), std::string(name(role.trainer.storage)),
           "Archon computes in the format of its parameters", "areal/experimental/engine/archon_engine.py, 1.0.4");
}

namespace {

/// areal/experimental/engine/archon_engine.py, _prepare_mb_list, 0.5.2 to 2.0.0: a multiple of the tokens of a page of 2 MiB of
/// hidden states and of 2 t c, behind the multiple of 256 that every engine has (areal/utils/data.py, pad_mb_list).
void pad_to_whole_pages(Derivation& d, Role& role) {
  Trainer& t = role.trainer;
  const auto origin = d.job().origins.find(key_of(role, "tokens_per_micro_batch"));
  if (origin == d.job().origins.end()) return;
  if (origin->second.rule == Origin::Rule::longest_of_model)
    origin->second.because = kWholePages;
  else if (origin->second.rule != Origin::Rule::whole_pages)
    return;
  const std::int64_t page = std::max<std::int64_t>(1, 2 * kMiB / role.architecture->hidden / bytes_of(1, t.storage));
  const std::int64_t multiple = std::lcm(page, 2 * t.layout.tensor * t.layout.context);
  t.tokens_per_micro_batch = round_up(round_up(t.tokens_per_micro_batch, 256), multiple);
}

void derive_megatron_model(Derivation& d, const Role& role) {
  const Trainer& t = role.trainer;
  MadeModel made = made_model(t.megatron.maker, role.architecture->family).value_or(MadeModel{});
  // AReaL's own defaults of megatron.moe_*, which reach mbridge's configuration from 2.0.0 on (areal/engine/megatron_engine.py)
  if (t.megatron.maker == ModelMaker::mbridge && compare_versions(t.framework_version, "2.0.0") >= 0) {
    made.shared_overlap = false;
    made.router = DType::fp32;
  }
  derive_made_model(d, role, made, "AReaL's models are made so");
}

}  // namespace

void derive_model(Derivation& d, Role& role) {
  derive_loop_over_experts(d, role);
  derive_tied_units(d, role);
  if (role.serves()) return;
  if (role.engine == EngineKind::megatron) derive_megatron_model(d, role);
  if (role.engine == EngineKind::archon) pad_to_whole_pages(d, role);
}

void derive_update(Derivation& d, Role& rollout, Role& actor) {
  constexpr const char* kWhere = "areal/trainer/rl_trainer.py";
  const bool shared = anchor(d.job(), rollout) == anchor(d.job(), actor);
  if (shared)
    d.derive("sync.by", "disk", "AReaL on shared GPUs hands weights over on disk", kWhere);
  else
    d.derive("sync.by", "nccl", "servers on GPUs of their own get new weights over NCCL", kWhere);
  derive_bucket(d, actor.trainer, "weight_chunked_mem_mib");
  if (shared)
    d.derive(key_of(actor, "offload"), "[parameters, optimizer]", "AReaL offloads an actor that shares its GPUs with servers",
             kWhere);
}

}  // namespace oomplan::areal
