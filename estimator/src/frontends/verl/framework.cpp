#include "frontends/framework.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "frontends/verl/derive.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"

namespace oomplan::verl {
namespace {

/// Megatron-Bridge's Qwen25VLModel.forward (models/qwen_vl/modeling_qwen25_vl.py, 0.5.2): it has neither the words of
/// fused_forward_model_engine (verl/models/mcore/model_forward_fused.py, 0.9 and 0.10) nor any of its own for others, and its
/// embeddings stay rows of padded sequences where packed_seq_params tell of one packed row. Executed:
/// benchmarks/oracle/execute_megatron_hf_tower.py.
std::vector<KnobProblem> bridged_qwen25(const Trainer& t) {
  std::vector<KnobProblem> out;
  if (t.megatron.loss == MegatronLoss::verl_fused)
    out.push_back({"cross_entropy", "fused kernels", "false, or megatron.vanilla_mbridge=True",
                   "verl itself fails: Qwen2.5-VL as Megatron-Bridge makes it takes no output_processor, by which they come"});
  const bool alone = t.sequence_tokens > 0 && t.tokens_per_micro_batch < 2 * t.sequence_tokens && t.layout.tensor == 1;
  if (t.sequences_per_micro_batch == 0 && !alone)
    out.push_back({"tokens_per_micro_batch", "packed sequences", "use_remove_padding=False, or megatron.vanilla_mbridge=True",
                   "verl itself fails: Megatron-Bridge does not pack the embeddings of Qwen2.5-VL"});
  return out;
}

bool has_linear_attention(const Architecture& a) {
  return std::ranges::any_of(a.runs, [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; });
}

void check_megatron(const Role& role, std::vector<KnobProblem>& out) {
  const Trainer& t = role.trainer;
  const auto not_yet = [&](std::string knob, std::string found, std::string expected, std::string what) {
    out.push_back({std::move(knob), std::move(found), std::move(expected), "not supported yet: " + std::move(what)});
  };
  // docker/Dockerfile.stable.vllm of 0.9 has Megatron-core 0.18, that of 0.7 has 0.15
  if (role.architecture != nullptr && has_linear_attention(*role.architecture) &&
      compare_versions(t.framework_version, "0.9") < 0)
    not_yet("model", role.model, "a model without linear attention, or verl 0.9",
            "linear attention of Megatron-core before 0.18, which verl 0.9 is the first to install");
  if (t.megatron.maker != ModelMaker::megatron_bridge) return;
  if (role.architecture != nullptr && made_as(*role.architecture) == "qwen2_5_vl") {
    for (KnobProblem& p : bridged_qwen25(t)) out.push_back(std::move(p));
    return;
  }
  if (role.architecture != nullptr && !made_model(t.megatron.maker, made_as(*role.architecture)))
    not_yet("models_by", "megatron-bridge", "mbridge",
            fmt::format("models of the family '{}' as Megatron-Bridge makes them", made_as(*role.architecture)));
  const bool learns = role.kind == RoleKind::actor || role.kind == RoleKind::trainer;
  if (learns && role.architecture != nullptr && t.vision.images == 0 &&
      trains_mergers_alone(t.megatron.maker, *role.architecture))
    out.push_back(
        {"models_by", "megatron-bridge", "mbridge, or samples with images (--image-size)",
         "Megatron-Bridge freezes this model but for its tower's mergers: of text nothing has a gradient, and verl fails"});
}

std::vector<KnobProblem> problems(const Role& role) {
  const Trainer& t = role.trainer;
  std::vector<KnobProblem> out;
  if (role.kind == RoleKind::teacher)
    out.push_back({"engine", fmt::format("'{}'", spelling(role.engine)), "vllm", "verl's teachers are servers"});
  if (role.kind == RoleKind::reward && compare_versions(t.framework_version, "0.7.1") >= 0)
    out.push_back({"engine", fmt::format("'{}'", spelling(role.engine)), "vllm or sglang",
                   "from 0.7.1 on verl's reward models are servers"});
  if (role.engine == EngineKind::megatron) {
    check_megatron(role, out);
  } else if (t.layout.tensor > 1) {
    out.push_back(
        {"layout", fmt::format("'{}'", letters(t.layout)), "a layout without t", "verl has no tensor parallelism of FSDP"});
  }
  if (t.lora.rank > 0 && t.lora.layered_summon && role.engine == EngineKind::fsdp1 && t.layout.world() == 1 &&
      compare_versions(t.framework_version, "0.9") >= 0)
    out.push_back(
        {"lora.layered_summon", "true", "false",
         "from 0.9 on verl reads the layers through the host, which FSDP1 refuses on one GPU (offload_to_cpu, NO_SHARD)"});
  return out;
}

}  // namespace

// states_by_mesh: verl/workers/fsdp_workers.py, 0.5 to 0.7 (device_mesh). embedding_gradient:
// verl/workers/engine/fsdp/transformer_impl.py, 0.8. reshards_root: verl/workers/fsdp_workers.py, engine/fsdp/transformer_impl.py
// (_handle.reshard(True)). moves_parameters: verl/utils/fsdp_utils.py, 0.7.0 (offload_fsdp_model_to_cpu). empties_cache:
// verl/workers/fsdp_workers.py and engine_workers.py, 0.7.0 (aggressive_empty_cache).
FrameworkRow framework_row() {
  return {.framework = Framework::verl,
          .loop = {.name = "verl",
                   .of_framework = true,
                   .teachers_since = "0.8",
                   .serves_rewards = true,
                   .budget_by_gpu = true,
                   .fuses_head = true,
                   .offloads_activations = true,
                   .packs = true,
                   .embedding_gradient = true,
                   .packed_embedding_gradient = true,
                   .reshards_root = true,
                   .states_by_mesh = true,
                   .has_towers = true,
                   .joins_images_itself = true,
                   .moves_parameters = true,
                   .moves_optimizer = true,
                   .empties_cache = true,
                   .saves_plainly = false,
                   .facts = "verl",
                   .adapters_update = true,
                   .summons_adapters = true,
                   .ipc = true,
                   .runs_megatron = true,
                   .pads_vocab = false,
                   .actor_loss = true},
          .releases = {.newest = "0.9.0", .oldest = "0.7", .last = "0.9.0"},
          .defaults = default_rows,
          .problems = problems,
          .server_version = pinned_server,
          .tensor_fact = "tensor_model_parallel_size",
          .derive_budget = derive_budget,
          .derive_role = derive_role,
          .derive_model = derive_model,
          .derive_update = derive_update};
}

}  // namespace oomplan::verl
