#include "frontends/framework.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "job/names.hpp"

namespace oomplan::agilerl {
namespace {

/// One process, one GPU, adapters on a frozen base.
std::vector<KnobProblem> problems(const Role& role) {
  const Trainer& t = role.trainer;
  std::vector<KnobProblem> out;
  const auto add = [&](const char* knob, std::string found, const char* expected, const char* why) {
    out.push_back({knob, std::move(found), expected, why});
  };
  if (role.engine != EngineKind::single)
    add("engine", std::string(spelling(role.engine)), "single", "not supported yet: AgileRL on several GPUs");
  if (t.lora.rank == 0) add("lora.rank", "none", "a rank", "AgileRL trains adapters alone");
  if (t.offload_optimizer) add("offload", "optimizer", "[parameters] or []", "AgileRL leaves optimizer states on the GPU");
  if (t.sequences_per_micro_batch == 0)
    add("sequences_per_micro_batch", "nothing", "padded sequences", "AgileRL pads its micro-batches");
  if (t.lora.dropout > 0)
    add("lora.dropout", fmt::format("{}", t.lora.dropout), "0", "not supported yet: dropout of AgileRL's adapters");
  if (t.lora.dora) add("lora.dora", "true", "false", "AgileRL's fused adapters refuse it");
  return out;
}

void derive_role(Derivation& d, Role& role) {
  if (!role.beside.empty())
    d.derive(key_of(role, "in_process"), "true", "AgileRL trains and generates in one process",
             "agilerl/algorithms/core/base.py");
}

/// agilerl/utils/llm_utils.py: build_vllm_llm_init_kwargs, resolve_vllm_max_num_batched_tokens, 2.8.
void derive_update(Derivation& d, Role& rollout, Role& actor) {
  const auto set = [&](std::string_view knob, std::int64_t value) {
    if (value > 0) d.derive(key_of(rollout, knob), fmt::format("{}", value), "AgileRL's rule", "agilerl/utils/llm_utils.py");
  };
  set("max_model_len", d.job().prompt_tokens + d.job().response_tokens);
  const std::int64_t longest = rollout.server.max_model_len, most = rollout.server.max_running;
  set("batched_tokens", std::min(most * longest, std::max(longest, most * 8192)));
  set("lora.rank", std::max<std::int64_t>(16, actor.trainer.lora.rank));
  d.derive("sync.by", "none", "AgileRL hands its adapters over in files", "agilerl/algorithms/core/base.py");
}

}  // namespace

// embedding_gradient: agilerl/algorithms/core/base.py; prepare_model_for_kbit_training is called without reentry, which asks for
// none (huggingface/peft src/peft/utils/other.py, 0.19.1). positions_by_row: _position_ids_from_mask. learns_at_once: learn(),
// agilerl/algorithms/grpo.py, 2.8. loads_behind_servers: agilerl/algorithms/core/base.py
// _initialize_colocated_vllm_and_actors, 2.8. adapters_apart: grpo.py _loss, base.py _get_logprobs.
FrameworkRow framework_row() {
  return {.framework = Framework::agilerl,
          .loop = {.name = "AgileRL",
                   .of_framework = true,
                   .pads_batches = true,
                   .embedding_gradient = true,
                   .adapters_apart = true,
                   .positions_by_row = true,
                   .learns_at_once = true,
                   .loads_behind_servers = true,
                   .updates_by_files = true},
          .releases = {.newest = "2.8", .oldest = "2.8", .last = "2.8"},
          .defaults = default_rows,
          .problems = problems,
          .derive_role = derive_role,
          .derive_update = derive_update};
}

}  // namespace oomplan::agilerl
