// Values that verl takes for a key, by release, each with the file that looks at it.
#pragma once
#include <array>
#include <string_view>

namespace oomplan::verl {

inline constexpr std::string_view kFirst = "0.3.0", kLast = "0.10.0";  // 0.10.0: the development version

/// A value that must be one of some words; "null" among them: nothing may be said.
struct Choice {
  std::string_view first, last;
  std::string_view key;    ///< of `under`, or the whole path
  std::string_view under;  ///< "engine": of every FSDP block, "megatron": of every Megatron block, "optim": of FSDP's optimizers
  std::string_view words;  ///< by blanks
  std::string_view source;
};
inline constexpr std::string_view kStrategies = "fsdp fsdp2 megatron";
inline constexpr std::string_view kNewStrategies = "fsdp fsdp2 megatron veomni torchtitan automodel mindspeed";
inline constexpr std::string_view kHead = "fsdp fsdp2 megatron veomni torchtitan automodel mindspeed fsdp_turbo";
inline constexpr std::string_view kEstimators =
    "gae grpo reinforce_plus_plus reinforce_plus_plus_baseline remax rloo opo grpo_passk gpg rloo_vectorized grpo_vectorized "
    "optimal_token_baseline tir_optimal_token_baseline gdpo";
inline constexpr std::string_view kOptimizers =
    "AdamW Adam SGD Adafactor Adagrad Adadelta Adamax ASGD LBFGS Muon NAdam RAdam RMSprop Rprop SparseAdam";
inline constexpr std::array kChoices{
    Choice{kFirst, "0.3.0", "actor_rollout_ref.actor.strategy", "", "fsdp megatron", "verl/trainer/main_ppo.py"},
    Choice{"0.4.0", "0.7.1", "actor_rollout_ref.actor.strategy", "", kStrategies, "verl/trainer/main_ppo.py"},
    Choice{"0.8.0", "0.9.0", "actor_rollout_ref.actor.strategy", "", kNewStrategies, "verl/workers/engine/base.py"},
    Choice{"0.10.0", kLast, "actor_rollout_ref.actor.strategy", "", kHead, "verl/workers/engine/base.py"},
    Choice{kFirst, "0.3.0", "critic.strategy", "", "fsdp megatron", "verl/trainer/main_ppo.py"},
    Choice{"0.4.0", "0.7.1", "critic.strategy", "", kStrategies, "verl/trainer/main_ppo.py"},
    Choice{"0.8.0", "0.9.0", "critic.strategy", "", kNewStrategies, "verl/workers/engine/base.py"},
    Choice{"0.10.0", kLast, "critic.strategy", "", kHead, "verl/workers/engine/base.py"},
    Choice{kFirst, "0.3.0", "actor_rollout_ref.rollout.name", "", "vllm sglang hf null", "verl/workers/fsdp_workers.py"},
    Choice{"0.4.0", "0.4.1", "actor_rollout_ref.rollout.name", "", "vllm sglang sglang_async hf null",
           "verl/workers/fsdp_workers.py"},
    Choice{"0.5.0", "0.5.0", "actor_rollout_ref.rollout.name", "", "vllm sglang hf null", "verl/workers/fsdp_workers.py"},
    Choice{"0.6.0", "0.7.0", "actor_rollout_ref.rollout.name", "", "vllm sglang null", "verl/workers/rollout/base.py"},
    Choice{"0.7.1", kLast, "actor_rollout_ref.rollout.name", "", "vllm sglang trtllm null", "verl/workers/rollout/base.py"},
    Choice{"0.4.0", "0.9.0", "actor_rollout_ref.actor.loss_agg_mode", "",
           "token-mean seq-mean-token-sum seq-mean-token-mean seq-mean-token-sum-norm", "verl/workers/config/actor.py"},
    Choice{"0.10.0", kLast, "actor_rollout_ref.actor.loss_agg_mode", "",
           "token-mean token-sum seq-mean-token-sum seq-mean-token-mean seq-mean-token-sum-norm", "verl/workers/config/actor.py"},
    Choice{kFirst, kLast, "algorithm.adv_estimator", "", kEstimators, "verl/trainer/ppo/core_algos.py"},
    Choice{"0.6.1", kLast, "dtype", "megatron", "bfloat16 float16", "verl/workers/config/engine.py"},
    Choice{"0.6.0", kLast, "lr_scheduler_type", "optim", "constant cosine", "verl/workers/config/optimizer.py"},
    Choice{"0.6.0", kLast, "warmup_style", "optim", "constant cosine null", "verl/workers/config/optimizer.py"},
    Choice{"0.6.0", kLast, "override_transformer_config.recompute_granularity", "megatron", "full selective null",
           "megatron/core/transformer/transformer_config.py"},
    Choice{"0.6.0", kLast, "override_transformer_config.recompute_method", "megatron", "uniform block null",
           "megatron/core/transformer/transformer_config.py"},
    Choice{"0.5.0", kLast, "actor_rollout_ref.rollout.dtype", "", "bfloat16 float16 float32 half float auto",
           "the server's own arguments"},
    Choice{"0.6.0", kLast, "actor_rollout_ref.model.override_config.attn_implementation", "",
           "eager sdpa flash_attention_2 flash_attention_3 flex_attention", "transformers"},
};

/// Keys that switch something on or off.
inline constexpr std::array<std::string_view, 16> kSwitches{"param_offload",
                                                            "optimizer_offload",
                                                            "grad_offload",
                                                            "offload_policy",
                                                            "use_dynamic_bsz",
                                                            "log_prob_use_dynamic_bsz",
                                                            "use_kl_loss",
                                                            "use_kl_in_reward",
                                                            "use_remove_padding",
                                                            "enforce_eager",
                                                            "free_cache_engine",
                                                            "enable_gradient_checkpointing",
                                                            "enable_chunked_prefill",
                                                            "forward_prefetch",
                                                            "enable_activation_offload",
                                                            "use_distributed_optimizer"};

}  // namespace oomplan::verl
