// What AReaL's loop does to its engines, and what AReaL refuses of a trainer.
#include "frontends/framework.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "frontends/areal/derive.hpp"
#include "frontends/areal/pass_order.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"

namespace oomplan::areal {
namespace {

using Out = std::vector<KnobProblem>;
auto adder(Out& out) {
  return [&out](std::string knob, std::string found, std::string expected, std::string why) {
    out.push_back({std::move(knob), std::move(found), std::move(expected), std::move(why)});
  };
}

void check_maker(const Role& role, Out& out) {
  const Trainer& t = role.trainer;
  const auto add = adder(out);
  if (t.megatron.maker == ModelMaker::mbridge) {
    if (t.lora.rank > 0)
      add("lora.rank", fmt::format("{}", t.lora.rank), "models_by: megatron-bridge beside it",
          "AReaL itself has adapters under Megatron only with Megatron-Bridge");
    return;
  }
  if (t.lora.rank > 0 && t.megatron.distributed_optimizer)
    add("distributed_optimizer", "true", "false", "AReaL itself distributes no optimizer of adapters");
  if (compare_versions(t.framework_version, "1.0.4") < 0)
    add("models_by", "megatron-bridge", "mbridge", "not supported yet: Megatron-Bridge before AReaL 1.0.4");
  if (role.kind == RoleKind::critic)
    add("models_by", "megatron-bridge", "mbridge", "AReaL itself loads no critic with Megatron-Bridge");
  const auto linear = [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; };
  if (role.architecture != nullptr &&
      (!made_model(t.megatron.maker, role.architecture->family) || std::ranges::any_of(role.architecture->runs, linear)))
    add("models_by", "megatron-bridge", "mbridge",
        fmt::format("not supported yet: models of the family '{}' as Megatron-Bridge makes them", role.architecture->family));
}
/// What of Megatron AReaL's engine does not have, and what of it is not described.
void check_megatron(const Role& role, Out& out) {
  const Trainer& t = role.trainer;
  const Megatron& m = t.megatron;
  const auto add = adder(out);
  if (compare_versions(t.framework_version, "0.4.0") < 0)
    add("engine", "megatron", "fsdp2", "not supported yet: Megatron before AReaL 0.4.0");
  const bool whole = compare_versions(t.framework_version, "0.5.0") < 0;
  if (whole != (m.loss == MegatronLoss::areal_whole))
    add("cross_entropy", std::string(spelling(m.loss)), whole ? "areal_whole" : "nothing",
        "AReaL's Megatron has a loss of its own; until 0.5.0 it was areal_whole");
  if (whole && role.kind == RoleKind::critic)
    add("engine", "megatron", "fsdp2", "a critic on Megatron came with AReaL 0.5.0 (areal/engine/ppo/critic.py)");
  if (t.layout.context > 1 && compare_versions(t.framework_version, "1.0.4") < 0)
    add("layout", letters(t.layout), "c1", "not supported yet: context parallelism of Megatron before AReaL 1.0.4");
  if (m.sequence_parallel != (t.layout.tensor > 1))
    add("sequence_parallel", m.sequence_parallel ? "true" : "false", t.layout.tensor > 1 ? "true" : "false",
        "AReaL splits the sequence wherever it splits tensors");
  check_maker(role, out);
  if (m.entropy_loss && !m.fp32_logits)
    add("entropy_loss", "true", "fp32_logits: true beside it", "without it AReaL's loss keeps what the entropy needs anyway");
  if (m.first_stage_layers > 0 || m.last_stage_layers > 0 || m.embedding_in_split || m.loss_in_split)
    add("first_stage_layers", "a split of the layers", "nothing", "AReaL splits the layers itself");
  if (role.architecture != nullptr && t.layout.pipeline > 1 && role.architecture->runs[0].layer.mixer.kind == MixerKind::mla)
    add("layout", letters(t.layout), "p1", "not supported yet: a pipeline of latent attention under AReaL");
}

std::vector<KnobProblem> problems(const Role& role) {
  const Trainer& t = role.trainer;
  Out out;
  const auto add = adder(out);
  if (role.engine == EngineKind::megatron) {
    check_megatron(role, out);
    return out;
  }
  if (role.engine == EngineKind::fsdp1) add("engine", "fsdp1", "fsdp2", "AReaL has no FSDP1");
  if (t.layout.tensor > 1 && !t.framework_version.empty() && version_matches(t.framework_version, "<0.5.0"))
    add("layout", fmt::format("'{}'", letters(t.layout)), "a layout without t",
        "not supported yet: tensor parallelism of FSDP before AReaL 0.5.0, which gathered whole logits");
  return out;
}

/// Engines that a release installs: pyproject.toml and, from 1.0.3 on for vLLM, pyproject.vllm.toml of its tag.
struct Pin {
  std::string_view versions, sglang, vllm;
};
constexpr Pin kPins[] = {
    {">=1.0.4", "0.5.10", "0.19.1"},       {">=1.0.2,<1.0.4", "0.5.9", "0.17.0"}, {">=0.5.2,<1.0.2", "0.5.7", "0.14.0"},
    {">=0.4.1,<0.5.2", "0.5.5", "0.11.0"}, {">=0.3.4,<0.4.1", "0.5.2", "0.10.2"},
};
std::string_view pinned_server(std::string_view version, EngineKind engine) {
  for (const auto& pin : kPins)
    if (version_matches(version, pin.versions)) return engine == EngineKind::sglang ? pin.sglang : pin.vllm;
  return {};
}

}  // namespace

// embedding_gradient: areal/engine/fsdp_engine.py, 1.0.4. loads_on_gpu: from_pretrained under torch.device("cuda") on every rank
// unless memory_efficient_load, the same. moves_parameters: not, AReaL pauses (FSDPEngine.offload, torch_memory_saver), and
// empties its cache only where a role is offloaded. fills_pipeline: areal/engine/megatron_engine.py _prepare_mb_list, 1.0.4.
FrameworkRow framework_row() {
  return {.framework = Framework::areal,
          .loop = {.name = "AReaL",
                   .of_framework = true,
                   .teachers_since = "0",
                   .packs_pairs = true,
                   .has_archon = true,
                   .packs = true,
                   .without_budget = "AReaL without max_tokens_per_mb puts a whole mini-batch into one",
                   .embedding_gradient = true,
                   .packed_embedding_gradient = true,
                   .loads_on_gpu = true,
                   .has_towers = true,
                   .exchanges_flat = true,
                   .generates_while_training = true,
                   .saves_plainly = false,
                   .facts = "areal",
                   .adapters_update = true,
                   .runs_megatron = true,
                   .pads_to_pages = true,
                   .pads_vocab = false,
                   .balances_stages = true,
                   .fills_pipeline = true,
                   .loss_by_sequence = true,
                   .adapters_outside = true},
          .releases = {.newest = "1.0.4", .oldest = "0.4", .last = "2.0.0"},
          .defaults = default_rows,
          .problems = problems,
          .order_passes = set_pass_order,
          .server_version = pinned_server,
          .derive_role = derive_role,
          .derive_model = derive_model,
          .derive_update = derive_update};
}

}  // namespace oomplan::areal
