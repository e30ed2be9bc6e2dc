// What Megatron-FSDP refuses itself, and what is not described with it.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "job/names.hpp"
#include "job/validate_megatron.hpp"

namespace oomplan {
namespace {

class FsdpChecker {
 public:
  explicit FsdpChecker(const Role& role) : t_(role.trainer), m_(role.trainer.megatron) {}

  std::vector<MegatronProblem> run() {
    if (m_.fsdp == MegatronFsdpStrategy::off) {
      constexpr std::string_view kExpected = "megatron_fsdp beside it", kWhy = "it is a setting of Megatron-FSDP";
      if (m_.communication_unit > 0)
        add("communication_unit_size", fmt::format("{}", m_.communication_unit), std::string(kExpected), std::string(kWhy));
      if (t_.memory_efficient_load)
        add("memory_efficient_load", "true", std::string(kExpected),
            "not supported yet: a model made on the meta device otherwise");
      if (m_.fsdp_double_buffer) add("fsdp_double_buffer", "true", std::string(kExpected), std::string(kWhy));
      return std::move(out_);
    }
    check_optimizer();
    check_layout();
    check_model();
    return std::move(out_);
  }

 private:
  void add(std::string_view knob, std::string found, std::string expected, std::string why) {
    out_.push_back({std::string(knob), std::move(found), std::move(expected), std::move(why)});
  }
  void not_yet(std::string_view knob, bool found, std::string value, std::string expected, std::string_view what) {
    if (found) add(knob, std::move(value), std::move(expected), fmt::format("not supported yet: {} under Megatron-FSDP", what));
  }
  void check_optimizer() {
    not_yet("distributed_optimizer", !m_.distributed_optimizer, "false", "true", "an optimizer that is not distributed");
    not_yet("precision_aware_optimizer", m_.precision_aware, "true", "false", "the precision-aware optimizer");
    not_yet("stateless_adam", m_.stateless_adam, "true", "false", "Adam without states");
    not_yet("optimizer_cpu_offload", m_.host_optimizer, "true", "false", "the optimizer on the host");
    not_yet("fp8_recipe", m_.fp8 != Fp8Recipe::none, std::string(spelling(m_.fp8)), "none", "8 bits");
    if (!m_.gradient_accumulation_fusion) return;
    if (t_.reduce == DType::fp32)
      // tensor_parallel/layers.py: torch.matmul of bf16 with out=main_grad
      add("gradient_accumulation_fusion", "true", "false",
          "Megatron's own output layer multiplies 16 bits into the fp32 gradient under Megatron-FSDP, which torch refuses");
    else
      not_yet("gradient_accumulation_fusion", true, "true", "false", "fused sums of gradients");
  }
  void check_layout() {
    const Layout& l = t_.layout;
    not_yet("layout", l.pipeline > 1, fmt::format("{} stages", l.pipeline), "one stage", "a pipeline");
  }
  void check_model() {
    not_yet("transformer_impl", m_.impl == TransformerImpl::local, "local", "transformer_engine", "Megatron's own modules");
    not_yet("memory_efficient_load", t_.memory_efficient_load && m_.fsdp == MegatronFsdpStrategy::no_shard, "true", "false",
            "a model made on the meta device with no_shard");
    not_yet("mtp_layers", m_.mtp_layers > 0, fmt::format("{}", m_.mtp_layers), "0", "multi-token prediction");
    not_yet("lora.rank", t_.lora.rank > 0, fmt::format("{}", t_.lora.rank), "0", "adapters");
    not_yet("recompute_layers",
            t_.recompute == Recompute::full && m_.recompute_method == RecomputeMethod::uniform && m_.recompute_layers != 1,
            fmt::format("{}", m_.recompute_layers), "1", "runs of several layers");
  }

  const Trainer& t_;
  const Megatron& m_;
  std::vector<MegatronProblem> out_;
};

}  // namespace

std::vector<MegatronProblem> megatron_fsdp_problems(const Role& role) { return FsdpChecker(role).run(); }

}  // namespace oomplan
