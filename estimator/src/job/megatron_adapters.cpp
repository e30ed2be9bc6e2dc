// What adapters under Megatron can be, and which of their settings belong to it alone.
#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "job/names.hpp"
#include "job/validate_megatron.hpp"

namespace oomplan {

std::vector<MegatronProblem> megatron_adapter_problems(const Role& role) {
  const Trainer& t = role.trainer;
  std::vector<MegatronProblem> out;
  const auto add = [&](std::string_view knob, std::string found, std::string expected, std::string why) {
    out.push_back({std::string(knob), std::move(found), std::move(expected), std::move(why)});
  };
  if (t.megatron.input_regather && t.lora.rank == 0)
    add("sequence_parallel_input_regather", "true", "lora.rank beside it", "it is a setting of the adapters");
  if (t.lora.rank == 0) return out;
  for (const std::string& target : t.lora.targets)
    if (!target.starts_with("linear_") && target != "in_proj" && target != "out_proj")
      add("lora.targets", target, "linear_qkv, linear_proj, linear_fc1, linear_fc2, in_proj and out_proj",
          "those are Megatron's linear layers");
  if (t.lora.format != AdapterFormat::storage)
    add("lora.format", std::string(spelling(t.lora.format)), "storage",
        "Megatron-Bridge makes adapters in the format of the model");
  if (t.lora.dropout > 0)
    add("lora.dropout", fmt::format("{}", t.lora.dropout), "0", "not supported yet: dropout in front of Megatron's adapters");
  if (t.lora.dora) add("lora.dora", "true", "false", "not supported yet: DoRA under Megatron");
  if (t.lora.base.format != BaseFormat::full)
    add("lora.base", std::string(spelling(t.lora.base.format)), "full", "not supported yet: a packed base under Megatron");
  if (t.lora.frozen_copies > 0)
    add("lora.frozen_copies", fmt::format("{}", t.lora.frozen_copies), "0", "Megatron has no adapters that are not trained");
  if (t.recompute == Recompute::selective)
    add("recompute", "selective", "none or full", "not supported yet: selective recomputation with adapters under Megatron");
  if (t.megatron.mtp_layers > 0)
    add("mtp_layers", fmt::format("{}", t.megatron.mtp_layers), "0", "not supported yet: multi-token prediction with adapters");
  if (t.megatron.host_optimizer)
    add("optimizer_cpu_offload", "true", "false", "not supported yet: adapters with an optimizer on the host");
  const std::int64_t rank = t.lora.rank, ranks = t.layout.tensor;
  if (rank % ranks != 0)
    add("lora.rank", fmt::format("{}", rank), fmt::format("a multiple of {}", ranks),
        "Megatron splits the adapters' ranks evenly");
  return out;
}

}  // namespace oomplan
