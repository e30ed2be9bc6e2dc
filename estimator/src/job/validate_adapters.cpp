#include "job/validate_adapters.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "job/kernel_sets.hpp"

namespace oomplan {
namespace {

bool of_litgpt_alone(AdapterKind k) { return k == AdapterKind::adapter || k == AdapterKind::adapter_v2; }

/// Words for matrices of models that are not transformers': LitGPT's, torchtune's.
constexpr std::array<std::string_view, 15> kWords{
    "q_proj", "k_proj",       "v_proj",   "o_proj",   "qkv_proj",           "gate_proj", "up_proj", "down_proj",
    "fc1",    "gate_up_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "lm_head"};

class AdapterRules {
 public:
  AdapterRules(const Trainer& t, EngineKind engine) : t_(t), engine_(engine) {}

  std::vector<KnobProblem> run() {
    for (const std::string& target : t_.lora.targets)
      if (engine_ != EngineKind::megatron && target.starts_with("linear_"))
        object("lora.targets", "modules of transformers such as q_proj", "these are Megatron's linear layers");
    const bool megatron = engine_ == EngineKind::megatron;
    if (!megatron && t_.lora.scope != AdapterScope::all) object("lora.scope", "all", "it is of adapters under Megatron");
    if (!megatron && t_.lora.masked_gates) object("lora.masked_gates", "false", "it is of adapters under Megatron");
    if (t_.lora.rank > 0) words();
    if (t_.lora.rank > 0 && t_.lora.frozen_copies > 0 && (engine_ == EngineKind::fsdp1 || engine_ == EngineKind::deepspeed))
      object("lora.frozen_copies", "0", "not supported yet: adapters that are not trained under FSDP1 and DeepSpeed");
    if (!out_.empty()) return std::move(out_);
    if (t_.lora.kind == AdapterKind::lora) return {};
    if (t_.lora.rank == 0) object("lora.rank", "a rank", "the kind of adapters is given, but there are none");
    if (t_.lora.dora) object("lora.dora", "false", "it is a form of LoRA");
    if (t_.autocast) object("autocast", "false", "not supported yet: adapters other than LoRA under autocast");
    of_litgpt_alone(t_.lora.kind) ? of_litgpt() : of_peft();
    return std::move(out_);
  }

 private:
  /// Which rule the targets go by is that of the models: peft's of transformers', words of their own of others.
  void words() {
    const Lora& l = t_.lora;
    const bool peft = of_transformers(t_.kernels) && engine_ != EngineKind::megatron;
    // whether the expression names the tower is asked where names of modules are known (training/adapters.cpp)
    if (peft && (t_.vision.images == 0 || !t_.lora.exclude_matching.empty()) && !t_.foak.lora) return;
    const std::string why =
        peft ? (t_.foak.lora ? "not supported yet: beside fused adapters" : "not supported yet: beside a vision tower")
             : "a setting of peft's, which adapts transformers' models";
    if (l.targets_by_type || !l.targets_matching.empty()) object("lora.targets", "all-linear or a list", why);
    if (!l.exclude.empty() || !l.exclude_matching.empty()) object("lora.exclude", "[]", why);
    if (!l.layers.empty()) object("lora.layers", "all", why);
    if (!l.layers_pattern.empty()) object("lora.layers_pattern", "[]", why);
    if (!l.modules_to_save.empty()) object("lora.modules_to_save", "[]", why);
    if (peft || engine_ == EngineKind::megatron) return;
    for (const std::string& target : l.targets)
      if (std::find(kWords.begin(), kWords.end(), target) == kWords.end())
        object("lora.targets", fmt::format("all-linear, {}", fmt::join(kWords, ", ")),
               fmt::format("'{}' is no word for a matrix of these models", target));
  }
  void object(std::string knob, std::string expected, std::string why) {
    out_.push_back({std::move(knob), {}, std::move(expected), std::move(why)});
  }
  void of_litgpt() {
    if (t_.kernels != Kernels::litgpt && t_.kernels != Kernels::litgpt_0_4_5)
      object("lora.kind", "lora, vera or ia3", "these adapters are LitGPT's: kernels: litgpt");
    if (engine_ != EngineKind::single) object("engine", "single", "not supported yet: LitGPT's prefixes on several devices");
    if (t_.sequences_per_micro_batch > 1)
      object("sequences_per_micro_batch", "1",
             "not supported yet: of several sequences attention over a prefix takes another kernel");
  }
  void of_peft() {
    const bool ours = t_.kernels == Kernels::hf_flash || t_.kernels == Kernels::hf_sdpa || t_.kernels == Kernels::hf_eager;
    if (!ours || t_.loop.of_framework)
      object("lora.kind", "lora", "not supported yet: peft's other adapters beside other models than transformers', or under RL");
    const bool sharded = engine_ == EngineKind::fsdp2;
    if (engine_ != EngineKind::single && engine_ != EngineKind::ddp && !sharded)
      object("engine", "single, ddp or fsdp2",
             "not supported yet: adapters other than LoRA on parameters that FSDP1 or DeepSpeed shards");
    if (sharded && t_.lora.kind == AdapterKind::vera && t_.cast_parameters &&
        (t_.lora.format != AdapterFormat::storage || t_.storage != t_.compute))
      object("lora.format", "storage, and precision.storage as precision.compute",
             "VeRA's pair are buffers, which FSDP2 does not cast: their product with vectors in the compute format fails");
    if (sharded && t_.cpu_offload_policy)
      object("cpu_offload_policy", "false", "not supported yet: adapters other than LoRA that FSDP2 keeps on the host");
    if (t_.lora.base.format != BaseFormat::full)
      object("lora.base", "full", "not supported yet: adapters other than LoRA beside a quantised base");
    if (t_.layout.tensor > 1) object("lora.kind", "lora", "not supported yet: tensor parallelism of these adapters");
    if (t_.foak.rope || t_.foak.rms_norm || t_.foak.lora)
      object("foak", "[]", "not supported yet: fused operators beside these adapters");
    if (t_.lora.kind == AdapterKind::ia3 && t_.lora.rank > 1) object("lora.rank", "1", "IA3 has a vector for every matrix");
    if (t_.lora.kind == AdapterKind::ia3 && t_.lora.dropout > 0) object("lora.dropout", "0", "IA3 has no dropout");
  }

  const Trainer& t_;
  EngineKind engine_;
  std::vector<KnobProblem> out_;
};

}  // namespace

std::vector<KnobProblem> adapter_problems(const Trainer& t, EngineKind engine) { return AdapterRules(t, engine).run(); }

}  // namespace oomplan
