#include "frontends/verl/start.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/launch/quote.hpp"
#include "frontends/verl/tree.hpp"

namespace oomplan::verl {
namespace {

constexpr std::string_view kWrittenRelease = "0.9.0";  // the newest that is no development

constexpr const char* kScriptHead = R"(#!/usr/bin/env bash
# {what} of {model} on {gpus} GPUs, verl {release}; written by oomplan.
# Memory: oomplan estimate THIS_FILE --framework-version {release} --gpu {gpu}
set -euo pipefail

{program} \
)";

/// The arguments of one command, a line each.
class Arguments {
 public:
  void add(std::string_view key, std::string_view value) { out_ += fmt::format("    {}={} \\\n", key, value); }
  void add(std::string_view key, std::int64_t value) { add(key, fmt::format("{}", value)); }
  std::string text() && { return std::move(out_) + "    \"$@\"\n"; }

 private:
  std::string out_;
};

// Learning rates, clipping, the share of the memory and the data set are those of verl's own examples (verl-project/verl 0.9.0,
// examples/grpo_trainer/run_qwen3_8b_fsdp.sh, examples/ppo_trainer/run_qwen3_8b_fsdp.sh, examples/sft/gsm8k/run_qwen3_8b_fsdp.sh,
// docs/algo/dapo.md). Budgets hold the longest sequence.
void put_data(Arguments& out, const StartAsked& a) {
  out.add("data.train_files", "$HOME/data/gsm8k/train.parquet");
  out.add("data.val_files", "$HOME/data/gsm8k/test.parquet");
  out.add("data.train_batch_size", a.batch);
}

void put_adapters(Arguments& out, const std::string& model, const StartAsked& a) {
  if (a.lora == 0) return;
  out.add(model + ".lora_rank", a.lora);
  out.add(model + ".lora_alpha", a.lora);
  out.add(model + ".target_modules", "all-linear");
}

void put_actor(Arguments& out, const Start& s, std::int64_t budget) {
  const StartAsked& a = s.asked;
  out.add("actor_rollout_ref.model.path", launch::command_text({s.model_id}));
  out.add("actor_rollout_ref.model.use_remove_padding", "True");
  out.add("actor_rollout_ref.model.enable_gradient_checkpointing", "True");
  put_adapters(out, "actor_rollout_ref.model", a);
  out.add("actor_rollout_ref.actor.optim.lr", a.lora > 0 ? "3e-5" : "1e-6");
  out.add("actor_rollout_ref.actor.ppo_mini_batch_size", a.batch % 4 == 0 ? a.batch / 4 : a.batch);
  out.add("actor_rollout_ref.actor.use_dynamic_bsz", "True");
  out.add("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", budget);
  out.add("actor_rollout_ref.actor.use_kl_loss", a.reference ? "True" : "False");
  if (a.reference) out.add("actor_rollout_ref.actor.kl_loss_coef", "0.001");
  if (a.algorithm == Algorithm::dapo) {
    out.add("actor_rollout_ref.actor.clip_ratio_low", "0.2");
    out.add("actor_rollout_ref.actor.clip_ratio_high", "0.28");
  }
  out.add("actor_rollout_ref.actor.fsdp_config.param_offload", "False");
  out.add("actor_rollout_ref.actor.fsdp_config.optimizer_offload", "False");
  if (a.reference && a.lora == 0) {
    out.add("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "True");
    out.add("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", budget);
  }
}

void put_rollout(Arguments& out, const Start& s, std::int64_t budget) {
  out.add("actor_rollout_ref.rollout.name", "vllm");
  out.add("actor_rollout_ref.rollout.tensor_model_parallel_size", s.server_tensor);
  out.add("actor_rollout_ref.rollout.gpu_memory_utilization", "0.6");
  out.add("actor_rollout_ref.rollout.n", s.asked.samples);
  out.add("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz", "True");
  out.add("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", budget);
  if (s.asked.lora > 0) out.add("actor_rollout_ref.rollout.load_format", "safetensors");
}

void put_trainer(Arguments& out, const Start& s) {
  out.add("trainer.logger", "'[\"console\"]'");
  out.add("trainer.project_name", "oomplan");
  out.add(
      "trainer.experiment_name",
      launch::command_text({fmt::format("{}-{}", spelling(s.asked.algorithm), s.model_id.substr(s.model_id.rfind('/') + 1))}));
  out.add("trainer.n_gpus_per_node", s.gpus_per_node);
  out.add("trainer.nnodes", s.asked.nodes);
  out.add("trainer.total_epochs", 1);
}

std::string reinforcement(const Start& s) {
  const StartAsked& a = s.asked;
  const std::int64_t longest = a.prompt_tokens + a.response_tokens, budget = std::max<std::int64_t>(16384, longest);
  Arguments out;
  out.add("algorithm.adv_estimator", a.algorithm == Algorithm::ppo ? "gae" : "grpo");
  put_data(out, a);
  out.add("data.max_prompt_length", a.prompt_tokens);
  out.add("data.max_response_length", a.response_tokens);
  put_actor(out, s, budget);
  put_rollout(out, s, budget);
  if (a.algorithm == Algorithm::ppo) {
    out.add("critic.model.path", launch::command_text({s.model_id}));
    out.add("critic.optim.lr", "1e-5");
    out.add("critic.use_dynamic_bsz", "True");
    out.add("critic.ppo_max_token_len_per_gpu", std::max<std::int64_t>(32768, longest));
  }
  put_trainer(out, s);
  return std::move(out).text();
}

std::string fine_tuning(const Start& s) {
  const StartAsked& a = s.asked;
  Arguments out;
  put_data(out, a);
  out.add("data.max_length", a.prompt_tokens);
  out.add("data.use_dynamic_bsz", "True");
  out.add("data.max_token_len_per_gpu", std::max<std::int64_t>(8192, a.prompt_tokens));
  out.add("model.path", launch::command_text({s.model_id}));
  out.add("model.use_remove_padding", "True");
  out.add("model.enable_gradient_checkpointing", "True");
  put_adapters(out, "model", a);
  out.add("optim.lr", a.lora > 0 ? "1e-4" : "1e-5");
  put_trainer(out, s);
  return std::move(out).text();
}

}  // namespace

std::string written(Start& s) {
  if (s.asked.release.empty()) s.asked.release = kWrittenRelease;
  const std::string& release = s.asked.release;
  const auto found = find_release(release);
  if (!found || *found < release_named("0.7.0"))
    throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                             fmt::format("'{}'", release),
                             "0.7.0 or later",
                             {},
                             found ? "not supported yet: scripts of verl before 0.7 are read, and not written" : ""});
  const Algorithm algorithm = s.asked.algorithm;
  if (algorithm == Algorithm::dpo)
    throw InputError(
        Problem{{"command line", 0, 0, "--algorithm"}, "'dpo'", "grpo, ppo, dapo or sft", {}, "verl has no trainer of it"});
  const bool tunes = algorithm == Algorithm::sft;
  std::string program = "python3 -m verl.trainer.main_ppo";
  if (tunes)
    program = fmt::format("torchrun --nnodes={} --nproc-per-node={} -m verl.trainer.sft_trainer", s.asked.nodes, s.gpus_per_node);
  std::string name(spelling(algorithm));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return fmt::format(kScriptHead, fmt::arg("what", name), fmt::arg("model", s.model_id), fmt::arg("gpus", s.asked.gpus),
                     fmt::arg("release", release), fmt::arg("gpu", s.asked.gpu), fmt::arg("program", program)) +
         (tunes ? fine_tuning(s) : reinforcement(s));
}

}  // namespace oomplan::verl
