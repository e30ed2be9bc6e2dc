#include "job/validate_zero.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "catalog/architecture.hpp"

namespace oomplan {
namespace {

bool has_experts(const Architecture& a) {
  return std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& r) { return r.layer.feed_forward.experts > 0; });
}
/// Feed-forward blocks with a gate, whose line ArcticTraining puts TiledMLP around.
bool all_gated(const Architecture& a) {
  return std::all_of(a.runs.begin(), a.runs.end(),
                     [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::gated; });
}

class Objections {
 public:
  Objections(const Job& job, const Role& role) : job_(job), role_(role), t_(role.trainer) {}

  std::vector<ZeroObjection> run() {
    role_.engine == EngineKind::deepspeed ? of_deepspeed() : of_others();
    return std::move(out_);
  }

 private:
  void object(std::string knob, std::string expected, std::string why) {
    out_.push_back({std::move(knob), std::move(expected), std::move(why)});
  }
  void of_others() {
    constexpr auto kWhy = "it is DeepSpeed's";
    if (t_.zero != Zero{}) object("engine", "deepspeed", "the settings under zero are DeepSpeed's");
    if (t_.tiled_mlp) object("tiled_mlp", "false", kWhy);
  }
  void of_deepspeed() {
    if (t_.loop.of_framework || job_.kind == JobKind::rl)
      object("engine", "fsdp2", "not supported yet: DeepSpeed under an RL framework");
    formats();
    engines_of_others();
    stages();
    checkpoints();
    if (role_.architecture == nullptr) return;
    if (t_.zero.stage == 3 && has_experts(*role_.architecture)) experts_in_stage_3(role_.architecture->family);
    if (t_.tiled_mlp && (has_experts(*role_.architecture) || !all_gated(*role_.architecture)))
      object("tiled_mlp", "false", "not supported yet: TiledMLP around anything but a dense gated block");
  }
  void formats() {
    if (t_.storage == DType::fp32)
      object("precision.storage", "bf16 or fp16",
             "not supported yet: DeepSpeed without its 16-bit mode, or under torch_autocast");
    if (t_.compute != t_.storage)
      object("precision.compute", std::string("the format of the parameters"),
             "DeepSpeed computes with the parameters as they are");
    if (t_.reduce != t_.storage) without_16_bits();
    if (t_.autocast) object("autocast", "false", "not supported yet: torch_autocast of DeepSpeed");
    if (t_.lora.rank > 0 && t_.lora.format == AdapterFormat::fp32)
      object("lora.format", "storage", "DeepSpeed's 16-bit mode casts adapters too");
    const bool by_element = t_.optimizer == OptimizerKind::adamw || t_.optimizer == OptimizerKind::adam;
    if (!by_element) object("optimizer", "adamw or adam", "not supported yet: this optimizer under DeepSpeed");
    if (t_.optimizer_form == OptimizerForm::loop)
      object("optimizer_form", "fused (FusedAdam) or foreach", "not supported yet: a loop over ZeRO's partitions");
  }
  /// Parameters of 16 bits in DeepSpeed without `bf16` and `fp16`: gradients are reduced and added up in fp32.
  void without_16_bits() {
    constexpr const char* kExpected = "the format of the parameters";
    const auto refuse = [&](const std::string& what) {
      object("precision.reduce", kExpected, "not supported yet: gradients in fp32 of 16-bit parameters " + what);
    };
    if (t_.reduce != DType::fp32)
      object("precision.reduce", kExpected, "not supported yet: communication_data_type and grad_accum_dtype of their own");
    else if (t_.zero.stage == 1)
      refuse("under ZeRO stage 1, which adds up all of them");
    else if (t_.zero.stage == 2 && t_.zero.offload_optimizer)
      refuse("under ZeRO stage 2 with its optimizer on the host");
    else if (t_.lora.rank > 0)
      refuse("beside adapters");
    else if (t_.layout.context > 1)
      refuse("with Ulysses");
  }
  void engines_of_others() {
    if (t_.cpu_offload_policy) object("cpu_offload_policy", "false", "it is FSDP's; DeepSpeed has zero.offload_optimizer");
    if (t_.offload_parameters || t_.offload_optimizer)
      object("offload", "[]", "not supported yet: offload_states; zero.offload_optimizer keeps states on the host for good");
    if (t_.replicas > 1) object("replicas", "1", "not supported yet: zero_hpz_partition_size and MiCS");
    if (!t_.gradient_sync_every_micro_batch)
      object("gradient_sync_every_micro_batch", "true", "not supported yet: no_sync of DeepSpeed");
    if (t_.step_every_micro_batch) object("step_every_micro_batch", "false", "not supported yet under DeepSpeed");
    if (t_.kernels == Kernels::torchtitan)
      object("kernels", "those of transformers", "not supported yet: torchtitan under DeepSpeed");
  }
  /// Autograd saves views of gathered stacks: which modules have hooks, and what is saved, was executed for these. Those of the
  /// first row run in every form, with adapters beside them; the others by grouped_mm.
  void experts_in_stage_3(std::string_view family) {
    constexpr std::array<std::string_view, 2> kInEveryForm{"mixtral", "qwen3_moe"};
    constexpr std::array<std::string_view, 6> kGrouped{"deepseek_v3", "ernie4_5_moe", "glm4_moe",
                                                       "granitemoe",  "minimax_m2",   "olmoe"};
    const auto refuse = [this](std::string why) { object("zero.stage", "1 or 2", "not supported yet: " + std::move(why)); };
    const bool in_every_form = std::find(kInEveryForm.begin(), kInEveryForm.end(), family) != kInEveryForm.end();
    const bool grouped = std::find(kGrouped.begin(), kGrouped.end(), family) != kGrouped.end();
    if (!in_every_form && !grouped) refuse(fmt::format("the experts of {} under ZeRO stage 3", family));
    if (grouped && t_.experts != Experts::automatic && t_.experts != Experts::grouped_mm)
      object("experts", "grouped_mm", fmt::format("not supported yet: other code of {}'s experts under ZeRO stage 3", family));
    if (t_.transformers_version.starts_with("4.")) refuse("experts of transformers 4 under ZeRO stage 3");
    if (t_.lora.rank == 0) return;
    if (!in_every_form) return refuse(fmt::format("adapters beside the experts of {} under ZeRO stage 3", family));
    const auto in_attention = [](std::string_view target) {
      return target == "q_proj" || target == "k_proj" || target == "v_proj" || target == "o_proj";
    };
    const std::vector<std::string>& targets = t_.lora.targets;
    if (targets.empty() || !std::all_of(targets.begin(), targets.end(), in_attention))
      refuse("adapters of a block of experts under ZeRO stage 3");
    if (t_.recompute != Recompute::none) refuse("adapters beside experts and checkpoints under ZeRO stage 3");
  }
  void stages() {
    if (t_.zero.stage < 3 && t_.zero.offload_parameters)
      object("zero.offload_parameters", "false", "DeepSpeed offloads parameters in stage 3 only");
    if (!t_.zero.contiguous_gradients && t_.zero.stage < 3)
      object("zero.contiguous_gradients", "true", "not supported yet: stages 1 and 2 without contiguous_gradients");
    if (t_.zero.stage == 1 && t_.zero.offload_optimizer)
      object("zero.stage", "2 or 3", "not supported yet: offload of the optimizer in stage 1");
    if (t_.zero.stage < 3 && t_.layout.context > 1)
      object("zero.stage", "3", "not supported yet: Ulysses with stages 1 and 2, whose reductions become fp32");
    if (t_.zero.stage < 3 && t_.zero.offload_optimizer && t_.micro_batches != 1)
      object("micro_batches", "1", "not supported yet: gradients that add up on the host in stage 2");
  }
  void checkpoints() {
    if (!t_.offload_checkpoints) return;
    if (t_.recompute != Recompute::full || !t_.reentrant)
      object("offload_checkpoints", "recompute: full with reentrant: true",
             "ArcticTraining replaces torch's reentrant checkpoint");
  }

  const Job& job_;
  const Role& role_;
  const Trainer& t_;
  std::vector<ZeroObjection> out_;
};

}  // namespace

std::vector<ZeroObjection> zero_objections(const Job& job, const Role& role) { return Objections(job, role).run(); }

}  // namespace oomplan
