// Words of other tools for our keys. Only for hints: a job file takes our keys alone.
#include <array>

#include "job/knobs.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

struct Word {
  std::string_view theirs, ours;
};
constexpr std::array<Word, 88> kWords{{
    {"memory_fraction", "mem_fraction_static"},
    {"gpu_memory_fraction", "mem_fraction_static"},
    {"mem_fraction", "mem_fraction_static"},
    {"max_tokens_per_mb", "tokens_per_micro_batch"},
    {"max_tokens_per_gpu", "tokens_per_micro_batch"},
    {"ppo_max_token_len_per_gpu", "tokens_per_micro_batch"},
    {"max_token_len_per_gpu", "tokens_per_micro_batch"},
    {"token_budget", "tokens_per_micro_batch"},
    {"tokens", "tokens_per_micro_batch"},
    {"tokens_per_microbatch", "tokens_per_micro_batch"},
    {"log_prob_max_token_len_per_gpu", "logprob_tokens_per_micro_batch"},
    {"log_probs_max_tokens_per_gpu", "logprob_tokens_per_micro_batch"},
    {"logprob_tokens", "logprob_tokens_per_micro_batch"},
    {"per_device_train_batch_size", "sequences_per_micro_batch"},
    {"ppo_micro_batch_size_per_gpu", "sequences_per_micro_batch"},
    {"micro_batch_size", "sequences_per_micro_batch"},
    {"micro_batch_size_per_gpu", "sequences_per_micro_batch"},
    {"gradient_accumulation_steps", "micro_batches"},
    {"n_mbs", "micro_batches"},
    {"max_length", "sequence_tokens"},
    {"max_seq_length", "sequence_tokens"},
    {"seq_len", "sequence_tokens"},
    {"seq_length", "sequence_tokens"},
    {"model_max_length", "sequence_tokens"},
    {"gradient_checkpointing", "recompute"},
    {"enable_gradient_checkpointing", "recompute"},
    {"activation_checkpointing", "recompute"},
    {"checkpointing", "recompute"},
    {"optim", "optimizer"},
    {"param_offload", "offload"},
    {"optimizer_offload", "offload"},
    {"offload_params", "cpu_offload_policy"},
    {"offload_policy", "cpu_offload_policy"},
    {"model_dtype", "precision.storage"},
    {"optimizer_dtype", "precision.storage"},
    {"param_dtype", "precision.compute"},
    {"dtype", "precision.compute"},
    {"storage", "precision.storage"},
    {"compute", "precision.compute"},
    {"reduce", "precision.reduce"},
    {"reduce_dtype", "precision.reduce"},
    {"grad_reduce_dtype", "precision.reduce"},
    {"use_liger", "liger"},
    {"use_liger_kernel", "liger"},
    {"attn_impl", "kernels"},
    {"attn_implementation", "kernels"},
    {"loss", "head"},
    {"backend", "engine"},
    {"strategy", "engine"},
    {"allocation_mode", "layout"},
    {"tensor_parallel_size", "layout"},
    {"tensor_model_parallel_size", "layout"},
    {"tp", "layout"},
    {"tp_size", "layout"},
    {"dp", "layout"},
    {"pp", "layout"},
    {"data_parallel_size", "layout"},
    {"ulysses_sequence_parallel_size", "layout"},
    {"ulysses_sp_size", "layout"},
    {"max_num_seqs", "max_running_requests"},
    {"context_length", "max_model_len"},
    {"max_seq_len", "max_model_len"},
    {"chunked_prefill_size", "batched_tokens"},
    {"max_num_batched_tokens", "batched_tokens"},
    {"max_prefill_tokens", "batched_tokens"},
    {"max_concurrent_rollouts", "concurrency"},
    {"disable_cuda_graph", "enforce_eager"},
    {"eager", "enforce_eager"},
    {"kv_cache_dtype", "kv"},
    {"sleep_level", "sleep"},
    {"colocate", "beside"},
    {"path", "model"},
    {"model_path", "model"},
    {"n_gpus_per_node", "gpus_per_node"},
    {"max_prompt_length", "prompt_tokens"},
    {"max_response_length", "response_tokens"},
    {"max_new_tokens", "response_tokens"},
    {"batch_size", "sequences_per_step"},
    {"train_batch_size", "sequences_per_step"},
    {"hsdp", "replicas"},
    {"fsdp_size", "replicas"},
    {"sharding_strategy", "reshard_after_forward"},
    {"fsdp_backward_prefetch", "backward_prefetch"},
    {"fsdp_limit_all_gathers", "limit_all_gathers"},
    {"activation_offloading", "offload_activations"},
    {"enable_activation_offloading", "offload_activations"},
    {"enable_activation_offload", "offload_activations"},
    {"fsdp_use_orig_params", "use_orig_params"},
}};

struct ValueWord {
  std::string_view key, theirs, ours, with{};
};
/// Values of transformers' TrainingArguments, TRL and accelerate.
constexpr std::array<ValueWord, 17> kValueWords{{
    {"optimizer", "adamw_torch", "adamw"},
    {"optimizer", "adamw_torch_fused", "adamw", "with optimizer_form: fused"},
    {"optimizer", "adamw_hf", "adamw"},
    {"optimizer", "adamw_bnb_8bit", "adamw_8bit"},
    {"optimizer", "paged_adamw", "paged_adamw_32bit"},
    {"optimizer", "fused_adamw", "adamw", "with optimizer_form: fused"},
    {"kernels", "flash_attention_2", "hf_flash"},
    {"kernels", "flash_attn", "hf_flash"},
    {"kernels", "sdpa", "hf_sdpa"},
    {"kernels", "eager", "hf_eager"},
    {"head", "dpo", "trl_dpo"},
    {"head", "orpo", "trl_orpo"},
    {"head", "kto", "trl_kto"},
    {"head", "grpo", "trl_grpo"},
    {"head", "reward", "reward_pairs"},
    {"recompute", "offload", "full", "with offload_checkpoints: true"},
    {"lora.base", "int4", "nf4"},
}};

}  // namespace

OurValue our_value(std::string_view key, std::string_view theirs) {
  for (const auto& word : kValueWords)
    if (word.key == key && word.theirs == theirs) return {word.ours, word.with};
  return {};
}

std::string_view our_word(std::string_view theirs) {
  for (const auto& word : kWords)
    if (word.theirs == theirs) return word.ours;
  return {};
}

std::string nearest_key(std::string_view key, const std::vector<std::string>& valid) {
  const auto ours = our_word(key);
  for (const auto& v : valid)
    if (!ours.empty() && v == ours) return v;
  return nearest(key, valid);
}

}  // namespace oomplan
