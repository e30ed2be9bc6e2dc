#include "frontends/trainers/trl.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "catalog/facts.hpp"

namespace oomplan::trainers {
namespace {

using compose::Node;

/// From a release on.
struct HeadRow {
  std::string_view trainer, since, head, why;
};
constexpr std::array<HeadRow, 14> kHeads{{
    {"dpo", "0", "", "DPO of TRL before 0.18"},
    {"dpo", "0.18", "trl_dpo_0_18", ""},
    {"dpo", "0.21", "", "DPO of TRL 0.21 to 0.28, which asks for the hidden states of all layers"},
    {"dpo", "0.29", "trl_dpo_0_29", ""},
    {"dpo", "1.6", "trl_dpo", ""},
    {"kto", "0", "", "KTO of TRL before 0.18"},
    {"kto", "0.18", "trl_kto_0_18", ""},
    {"kto", "1.6", "trl_kto", ""},
    {"grpo", "0", "", "GRPO of TRL before 1.0"},
    {"grpo", "1.0", "trl_grpo_1_0", ""},
    {"reward", "0", "", "reward models of TRL before 0.24"},
    {"reward", "0.24", "reward_pairs", ""},
    {"gkd", "0", "trl_gkd", ""},
    {"gold", "0", "trl_gkd", ""},
}};

/// An empty trainer: of every one.
struct ArgumentRow {
  std::string_view trainer, key, what;
};
constexpr std::array<ArgumentRow, 16> kArguments{{
    {"dpo", "padding_free", "DPO without padding"},
    {"dpo", "use_logits_to_keep", "DPO of the last logits alone"},
    {"dpo", "rpo_alpha", "DPO with a likelihood loss beside it"},
    {"dpo", "use_weighting", "weights of DPO's losses"},
    {"dpo", "ld_alpha", "length desensitisation of DPO"},
    {"dpo", "sync_ref_model", "a reference that follows the policy"},
    {"kto", "sync_ref_model", "a reference that follows the policy"},
    {"grpo", "beta", "GRPO's reference model"},
    {"grpo", "use_transformers_paged", "generation by Transformers with pages"},
    {"grpo", "entropy_coef", "an entropy bonus of GRPO"},
    {"grpo", "vllm_enable_sleep_mode", "vLLM that sleeps in the trainer's process"},
    {"gold", "use_uld_loss", "distillation between vocabularies (ULD)"},
    {"", "activation_offloading", "activations that TRL takes to the host"},
    {"", "use_liger_kernel", "Liger under this trainer, which has a loss of Liger's then"},
    {"", "use_liger_loss", "Liger's loss of this trainer"},
    {"", "model_init_kwargs.quantization_config", "a reference model that is quantised"},
}};

constexpr std::int64_t kBatchedTokens = 4096;

}  // namespace

bool TrlTrainer::from(std::string_view version) const { return compare_versions(release, version) >= 0; }

bool TrlTrainer::casts_adapters() const {
  if (name == "dpo") return from("0.29");
  if (name == "kto") return from("1.4");
  return from("0.26");
}

bool TrlTrainer::loads_reference() const { return name == "kto" ? from("1.3") : from("0.29"); }

TrlHead head_of(const TrlTrainer& trainer) {
  TrlHead out{"", "this trainer of TRL"};
  for (const HeadRow& row : kHeads)
    if (row.trainer == trainer.name && trainer.from(row.since)) out = {row.head, row.why};
  return out;
}

std::vector<TrlArgument> undescribed_arguments(const TrlTrainer& trainer) {
  std::vector<TrlArgument> out;
  for (const ArgumentRow& row : kArguments)
    if (row.trainer.empty() || row.trainer == trainer.name) out.push_back({row.key, row.what});
  return out;
}

bool turns_on(const Node* n) {
  if (n == nullptr || n->kind == Node::Kind::null || n->kind == Node::Kind::missing) return false;
  if (n->kind == Node::Kind::boolean) return n->boolean;
  if (n->kind == Node::Kind::integer) return n->integer != 0;
  if (n->kind == Node::Kind::real) return n->real != 0;
  return n->is_container() ? !n->items.empty() || !n->entries.empty() : !n->text.empty();
}

bool has_likelihood(const Node* loss_type) {
  if (loss_type == nullptr) return false;
  const auto is = [](const Node& n) { return n.text == "sft"; };
  return is(*loss_type) || std::any_of(loss_type->items.begin(), loss_type->items.end(), is);
}

std::vector<TrlSetting> server_settings(const TrlServer& s, std::string_view vllm) {
  constexpr std::string_view kCode = "trl/generation/vllm_generation.py";  // 1.4; trl/trainer/grpo_trainer.py, 0.21
  const std::int64_t replicas = std::max<std::int64_t>(1, s.gpus / s.tensor);
  std::vector<TrlSetting> out{
      {"rollout.engine", fmt::format("vllm {}", vllm), "", "the newest that TRL's release takes"},
      {"rollout.beside", "actor", "vllm_mode", ""},
      {"rollout.in_process", "true", "vllm_mode", ""},
      {"rollout.layout", s.tensor > 1 ? fmt::format("d{}t{}", replicas, s.tensor) : fmt::format("d{}", s.gpus),
       "vllm_tensor_parallel_size", ""},
      {"rollout.gpu_memory_utilization", fmt::format("{}", s.utilization), "vllm_gpu_memory_utilization", ""},
      {"rollout.max_running_requests", fmt::format("{}", s.sequences_per_gpu * s.tensor * s.steps_per_generation), "", kCode},
      {"rollout.batched_tokens", fmt::format("{}", kBatchedTokens), "", kCode},
      // each parameter is handed to load_weights by itself
      {"sync.by", "none", "", kCode},
  };
  if (s.longest > 0) out.push_back({"rollout.max_model_len", fmt::format("{}", s.longest), "vllm_max_model_length", ""});
  return out;
}

}  // namespace oomplan::trainers
