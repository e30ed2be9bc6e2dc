#include "job/validate_adapters.hpp"

#include <string>
#include <utility>

namespace oomplan {
namespace {

bool of_litgpt_alone(AdapterKind k) { return k == AdapterKind::adapter || k == AdapterKind::adapter_v2; }

class AdapterRules {
 public:
  AdapterRules(const Trainer& t, EngineKind engine) : t_(t), engine_(engine) {}

  std::vector<KnobProblem> run() {
    for (const std::string& target : t_.lora.targets)
      if (engine_ != EngineKind::megatron && target.starts_with("linear_"))
        object("lora.targets", "modules of transformers such as q_proj", "these are Megatron's linear layers");
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
    if (!ours || t_.framework != Framework::torch)
      object("lora.kind", "lora", "not supported yet: peft's other adapters beside other models than transformers', or under RL");
    const bool sharded = engine_ == EngineKind::fsdp2;
    if (engine_ != EngineKind::single && engine_ != EngineKind::ddp && !sharded)
      object("engine", "single, ddp or fsdp2",
             "not supported yet: adapters other than LoRA on parameters that FSDP1 or DeepSpeed shards");
    if (sharded && t_.lora.kind == AdapterKind::vera && (t_.lora.format != AdapterFormat::storage || t_.storage != t_.compute))
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
