#include "frontends/relax/rules.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/relax/loss.hpp"
#include "frontends/relax/resource.hpp"
#include "frontends/relax/servers.hpp"
#include "frontends/slime/meaning.hpp"

namespace oomplan::relax {
namespace {

using slime::NotYet;
using slime::Own;
using slime::SlimeMeaning;
using slime::SlimeText;

/// What a rule looks at.
struct Seen {
  const SlimeText& t;
  const Own& o;
  const megatron::Arguments& a;
  const SlimeMeaning& m;
  const Resource& r;

  bool rl() const { return !m.supervised; }
  std::int64_t samples() const { return o.whole_or("rollout_batch_size", 0) * o.whole_or("n_samples_per_prompt", 1); }
  bool estimator(std::string_view name) const { return rl() && o.text("advantage_estimator") == name; }
  bool reinforce() const { return rl() && o.text("advantage_estimator").starts_with("reinforce_plus_plus"); }
  /// A budget that padding would exceed.
  bool over_padding(const char* name) const {
    const std::int64_t unit =
        std::max<std::int64_t>(1, a.whole_or("tensor_model_parallel_size", 1)) * o.whole_or("data_pad_size_multiplier", 128);
    return o.on("use_dynamic_batch_size") && unit > 0 && o.whole_or(name, 0) % unit != 0;
  }
  bool under(const char* name, std::int64_t least) const { return o.whole(name).value_or(least) < least; }
  bool outside(const char* name, double least, double most) const {
    const double x = o.number(name, most);
    return x < least || x > most;
  }
};

/// A check of Relax's. The states that make it; the flag at which it is told.
struct Rule {
  const char *first, *until;  ///< "": all; `until` is the first state without it
  bool (*broken)(const Seen&);
  const char *flag, *expected, *why;
};
constexpr const char *kAll = "", *kSft = "2026.07", *kLora = "2026.08", *kPairs = "2026.09";
constexpr const char* kAsks = "asks for it";
constexpr const char* kRefuses = "refuses it";

// relax/utils/arguments.py: slime_validate_args and what it calls; relax/utils/opd/opd_utils.py: validate_opd_args
constexpr Rule kRules[] = {
    {kAll, kAll, [](const Seen& s) { return s.o.whole_or("max_staleness", 0) < 0; }, "max_staleness", "0 or more", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("partial_rollout") && s.o.on("use_rollout_routing_replay"); },
     "partial_rollout", "nothing beside --use-rollout-routing-replay", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return s.m.reference && !s.o.has("ref_load"); }, "ref_load",
     "the checkpoint of the reference", "looks for it, also with coefficient 0"},
    {kAll, kAll,
     [](const Seen& s) {
       return s.rl() && s.a.has("eval_interval") && s.a.given("eval_interval") && !s.o.has("eval_prompt_data") &&
              !s.o.has("eval_config");
     },
     "eval_prompt_data", "data beside --eval-interval", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.a.given("save_interval") && !s.a.given("save"); }, "save",
     "a folder beside --save-interval", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.number("kl_coef", 0) != 0 && s.o.number("kl_loss_coef", 0) != 0; },
     "kl_coef", "0, or --kl-loss-coef 0", "takes only one of them"},
    {kAll, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.text("advantage_estimator").starts_with("reinforce_plus_plus") && !s.o.on("normalize_advantages");
     },
     "advantage_estimator", "--normalize-advantages beside it", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("fully_async") && s.o.on("normalize_advantages"); },
     "normalize_advantages", "nothing beside --fully-async", kRefuses},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("fully_async") && s.o.text("opd_type") == "megatron"; }, "opd_type",
     "sglang beside --fully-async", kRefuses},
    {kSft, kAll, [](const Seen& s) { return s.rl() && s.o.on("fully_async") && s.o.on("use_dynamic_global_batch_size"); },
     "use_dynamic_global_batch_size", "nothing beside --fully-async", kRefuses},
    {kAll, kSft, [](const Seen& s) { return s.o.on("fully_async") && s.o.on("balance_data") && !s.o.on("hybrid"); },
     "balance_data", "nothing beside --fully-async, or --hybrid", "refuses it: data is streamed"},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("use_rollout_logprobs") && s.o.on("use_tis"); },
     "use_rollout_logprobs", "nothing beside --use-tis", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("get_mismatch_metrics") && !s.o.has("custom_tis_function_path"); },
     "custom_tis_function_path", "a function beside --get-mismatch-metrics", kAsks},
    {kAll, kAll,
     [](const Seen& s) {
       return s.o.on("use_dynamic_batch_size") && !s.o.has("max_tokens_per_gpu") && !s.o.given("max_tokens_per_gpu");
     },
     "max_tokens_per_gpu", "tokens of a GPU beside --use-dynamic-batch-size", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.on("fully_async") && s.o.on("colocate") && !s.o.on("hybrid"); }, "fully_async",
     "--hybrid, or one of --fully-async and --colocate", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return s.o.on("debug_rollout_only") && s.o.on("debug_train_only"); }, "debug_rollout_only",
     "nothing beside --debug-train-only", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return !s.o.has("num_rollout") && !s.o.has("num_epoch"); }, "num_rollout",
     "--num-rollout or --num-epoch", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.has("num_epoch") && s.rl() && !s.o.on("rollout_global_dataset"); },
     "rollout_global_dataset", "nothing beside --num-epoch", "counts epochs of the global dataset"},
    {kAll, kAll, [](const Seen& s) { return s.o.on("enable_mtp_training") && s.a.whole_or("mtp_num_layers", 0) == 0; },
     "enable_mtp_training", "--mtp-num-layers beside it", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.text("qkv_format") == "bshd" && s.o.on("use_dynamic_batch_size"); }, "qkv_format",
     "thd beside --use-dynamic-batch-size", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.on("only_train_params_name_list") && s.o.on("freeze_params_name_list"); },
     "only_train_params_name_list", "nothing beside --freeze-params-name-list", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return s.o.on("rotate_ckpt") && !s.a.given("save"); }, "rotate_ckpt", "--save beside it",
     kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.on("rotate_ckpt") && !s.a.given("save_interval"); }, "rotate_ckpt",
     "--save-interval beside it", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.on("rotate_ckpt") && !s.a.on("async_save"); }, "rotate_ckpt",
     "--async-save beside it", kAsks},
    // distillation
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("use_opd") && !s.o.has("opd_type"); }, "opd_type",
     "sglang or megatron", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("use_opd") && s.o.number("opd_teacher_timeout_s", 30) <= 0; },
     "opd_teacher_timeout_s", "above 0", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.rl() && s.o.on("use_opd") && s.o.whole_or("opd_log_prob_top_k", 0) < 0; },
     "opd_log_prob_top_k", "0 or more", kAsks},
    {kAll, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && s.o.text("opd_type") == "megatron" && !s.o.has("opd_teacher_load");
     },
     "opd_teacher_load", "the checkpoint of the teacher beside --opd-type megatron", kAsks},
    {kAll, kAll,
     [](const Seen& s) { return s.rl() && s.o.on("use_opd") && s.o.text("opd_type") == "sglang" && s.o.has("opd_teacher_load"); },
     "opd_teacher_load", "nothing beside --opd-type sglang", kRefuses},
    {kAll, kSft, [](const Seen& s) { return s.o.on("use_opd") && s.o.text("opd_type") == "sglang" && !s.o.has("rm_url"); },
     "rm_url", "the teacher's address beside --opd-type sglang", kAsks},
    {kAll, kSft, [](const Seen& s) { return !s.o.on("use_opd") && s.o.has("opd_teacher_load"); }, "opd_teacher_load",
     "--use-opd beside it", kAsks},
    {kAll, kSft, [](const Seen& s) { return !s.o.on("use_opd") && s.o.on("opd_only_reward"); }, "opd_only_reward",
     "--use-opd beside it", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && s.o.text("opd_type") == "sglang" && !s.o.has("opd_teacher_url") &&
              !(s.r.has("teacher") && (s.o.has("teacher_hf_checkpoint") || s.o.has("opd_teacher_routes")));
     },
     "opd_teacher_url", "an address, or --teacher-hf-checkpoint with a teacher in --resource", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && s.o.text("opd_token_selection") != "student_sampled" &&
              s.o.whole_or("opd_log_prob_top_k", 0) <= 0;
     },
     "opd_log_prob_top_k", "1 or more beside this --opd-token-selection", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && s.o.text("opd_token_selection") == "student_sampled" &&
              s.o.text("opd_kl_type") != "reverse_kl" && s.o.text("opd_kl_type") != "low_var_kl";
     },
     "opd_kl_type", "reverse_kl or low_var_kl for sampled tokens", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && !gates_by_entropy(s.t) &&
              (s.o.number("opd_kl_coef", 1) != 0) == (s.o.number("opd_loss_coef", 0) != 0);
     },
     "opd_kl_coef", "one of --opd-kl-coef and --opd-loss-coef other than 0", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && gates_by_entropy(s.t) &&
              (s.o.number("opd_kl_coef", 1) == 0 || s.o.number("opd_loss_coef", 0) == 0);
     },
     "opd_loss_coef", "it and --opd-kl-coef other than 0 beside --opd-fkl-entropy-gate", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       const std::string chosen = s.o.text("opd_token_selection");
       return s.rl() && s.o.on("use_opd") && gates_by_entropy(s.t) && chosen != "teacher_topk" && chosen != "union";
     },
     "opd_token_selection", "teacher_topk or union beside --opd-fkl-entropy-gate", kAsks},
    // compute_opd_kl has summed over the tokens of a row when compute_opd_kl_topk does: numbers without a dimension, which
    // torch.cat does not take
    {kSft, kAll,
     [](const Seen& s) {
       return s.rl() && takes_most_likely(s.t) && !in_advantages(s.t) && !gates_by_entropy(s.t) &&
              s.o.text("opd_kl_type") == "low_var_kl";
     },
     "opd_kl_type", "reverse_kl, forward_kl or jsd for most likely tokens in the loss",
     "fails with it: the sums of its rows are summed up once more"},
    {kSft, kAll,
     [](const Seen& s) { return s.o.has("opd_teacher_routes") && s.o.has("teacher_hf_checkpoint") && s.o.on("use_opd"); },
     "opd_teacher_routes", "nothing beside --teacher-hf-checkpoint", "takes only one of them"},
    {kPairs, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.on("use_opd") && s.o.has("opd_student_eos_token_id") != s.o.has("opd_teacher_eos_token_id");
     },
     "opd_student_eos_token_id", "it and --opd-teacher-eos-token-id together", kAsks},
    // supervised training
    {kPairs, kAll, [](const Seen& s) { return s.rl() && s.o.on("sft_async_prepack"); }, "sft_async_prepack",
     "nothing without --loss-type sft", kRefuses},
    {kPairs, kAll, [](const Seen& s) { return s.rl() && s.o.on("sft_train_data_prefetch"); }, "sft_train_data_prefetch",
     "nothing without --loss-type sft", kRefuses},
    {kPairs, kAll, [](const Seen& s) { return s.o.text("sft_training_mode") == "cpt" && s.o.text("loss_type") != "sft"; },
     "sft_training_mode", "sft, or --loss-type sft beside cpt", kAsks},
    {kPairs, kAll,
     [](const Seen& s) { return s.o.text("sft_training_mode") == "cpt" && (s.o.has("label_key") || s.o.has("multimodal_keys")); },
     "sft_training_mode", "sft beside --label-key or --multimodal-keys", "trains on plain texts then"},
    {kPairs, kAll,
     [](const Seen& s) { return s.o.text("sft_cpt_template") != "raw" && s.o.text("sft_training_mode") != "cpt"; },
     "sft_cpt_template", "--sft-training-mode cpt beside it", kAsks},
    {kPairs, kAll, [](const Seen& s) { return s.over_padding("max_tokens_per_gpu"); }, "max_tokens_per_gpu",
     "a multiple of --tensor-model-parallel-size times --data-pad-size-multiplier", kAsks},
    {kPairs, kAll, [](const Seen& s) { return s.over_padding("log_probs_max_tokens_per_gpu"); }, "log_probs_max_tokens_per_gpu",
     "a multiple of --tensor-model-parallel-size times --data-pad-size-multiplier", kAsks},
    {kPairs, kAll, [](const Seen& s) { return s.estimator("m2po") && s.m.run.context != 1; }, "advantage_estimator",
     "another one beside context parallelism", kRefuses},
    {kPairs, kAll, [](const Seen& s) { return s.o.on("save_lora_only") && s.o.whole_or("lora_rank", 0) < 1; }, "save_lora_only",
     "--lora-rank beside it", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && !s.o.has("prompt_data") && !s.o.has("custom_dataset_class_path"); },
     "prompt_data", "data of supervised training", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && !s.o.on("use_dynamic_batch_size"); }, "use_dynamic_batch_size",
     "the flag beside --loss-type sft", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && s.o.has("eval_config"); }, "eval_config",
     "--eval-prompt-data instead beside --loss-type sft", kRefuses},
    {kSft, kAll,
     [](const Seen& s) {
       return s.m.supervised && s.o.text("sft_oversize_strategy") == "custom" && !s.o.has("sft_oversize_custom_function_path");
     },
     "sft_oversize_custom_function_path", "a function beside --sft-oversize-strategy custom", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.rl() && s.o.has("sft_max_in_flight_steps"); }, "sft_max_in_flight_steps",
     "nothing without --loss-type sft", kRefuses},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && s.under("sft_max_in_flight_steps", 1); }, "sft_max_in_flight_steps",
     "1 or more", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && s.under("sft_tq_timeout_minutes", 1); }, "sft_tq_timeout_minutes",
     "above 0", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.rl() && s.o.has("eval_size"); }, "eval_size", "nothing without --loss-type sft",
     kRefuses},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && s.o.has("eval_size") && s.o.number("eval_size", 1) <= 0; },
     "eval_size", "above 0", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.rl() && s.o.has("sft_predict_interval"); }, "sft_predict_interval",
     "nothing without --loss-type sft", kRefuses},
    {kSft, kAll, [](const Seen& s) { return s.m.supervised && s.o.has("sft_predict_interval") && !s.a.given("save"); }, "save",
     "a folder beside --sft-predict-interval", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.m.supervised && s.o.has("sft_predict_interval") && !s.o.has("eval_size") && !s.o.has("eval_prompt_data");
     },
     "eval_prompt_data", "it or --eval-size beside --sft-predict-interval", kAsks},
    {kSft, kAll,
     [](const Seen& s) {
       return s.m.supervised && s.a.given("eval_interval") && s.o.has("eval_size") && s.o.has("eval_prompt_data");
     },
     "eval_size", "nothing beside --eval-prompt-data", "takes only one of them"},
    {kSft, kAll, [](const Seen& s) { return s.o.on("sft_chunked_logits") && !s.a.on("untie_embeddings_and_output_weights"); },
     "sft_chunked_logits", "nothing for a model whose embedding is its output layer", kRefuses},
    {kSft, kLora, [](const Seen& s) { return s.o.on("sft_chunked_logits") && s.o.on("enable_mtp_training"); },
     "sft_chunked_logits", "nothing beside --enable-mtp-training", "takes only one of them"},
    {kSft, kAll, [](const Seen& s) { return s.o.on("sft_chunked_logits") && s.a.on("overlap_moe_expert_parallel_comm"); },
     "sft_chunked_logits", "nothing beside --overlap-moe-expert-parallel-comm", "takes only one of them"},
    // agents
    {kSft, kAll, [](const Seen& s) { return s.o.on("use_agentic_rollout") && !s.o.has("agent_command"); }, "agent_command",
     "a command beside --use-agentic-rollout", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.o.on("use_agentic_rollout") && !s.o.has("agent_cwd"); }, "agent_cwd",
     "a folder beside --use-agentic-rollout", kAsks},
    {kSft, kAll, [](const Seen& s) { return s.o.on("use_agentic_rollout") && s.o.number("agent_timeout", 1) <= 0; },
     "agent_timeout", "above 0", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.on("use_agentic_rollout") && s.under("agentic_concurrency", 1); },
     "agentic_concurrency", "1 or more", kAsks},
    {kLora, kAll,
     [](const Seen& s) { return s.o.on("agentic_program_admission") && s.outside("agentic_admission_headroom", 1e-9, 1); },
     "agentic_admission_headroom", "above 0, up to 1", kAsks},
    // adapters
    {kLora, kAll,
     [](const Seen& s) { return s.o.whole_or("lora_rank", 0) > 0 && s.o.on("lora_merge_mode") && s.o.on("lora_adapter_mode"); },
     "lora_merge_mode", "nothing beside --lora-adapter-mode", "takes only one of them"},
    {kLora, kAll,
     [](const Seen& s) { return s.o.whole_or("lora_rank", 0) > 0 && s.o.on("lora_adapter_mode") && s.m.server_groups > 1; },
     "lora_adapter_mode", "--sglang-dp-size 1 beside it", "asks for it: SGLang loads no adapters into several groups"},
    {kLora, kAll,
     [](const Seen& s) {
       const auto& targets = s.o.value("lora_target_modules");
       return s.o.whole_or("lora_rank", 0) > 0 && !s.o.on("lora_adapter_mode") &&
              std::any_of(targets.begin(), targets.end(), [](const auto& t) { return t == "router"; });
     },
     "lora_target_modules", "no router without --lora-adapter-mode", "refuses it: an adapter of the router is not merged"},
    // what is trained, and on what
    {kLora, kAll, [](const Seen& s) { return s.o.on("mtp_only_training") && s.rl(); }, "mtp_only_training",
     "--loss-type sft beside it", kAsks},
    {kLora, kAll,
     [](const Seen& s) {
       const auto& paths = s.o.value("mtp_detach_paths");
       return paths.size() > 1 && std::any_of(paths.begin(), paths.end(), [](const auto& p) { return p == "none"; });
     },
     "mtp_detach_paths", "none by itself", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.on("mtp_only_training") && s.a.whole_or("mtp_num_layers", 1) != 1; },
     "mtp_num_layers", "1 beside --mtp-only-training", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.on("mtp_only_training") && s.o.whole_or("lora_rank", 0) > 0; }, "lora_rank",
     "none beside --mtp-only-training", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.o.on("mtp_only_training") && s.o.on("sft_chunked_logits"); }, "sft_chunked_logits",
     "nothing beside --mtp-only-training", kRefuses},
    {kLora, kAll,
     [](const Seen& s) {
       return s.o.on("mtp_only_training") && (s.o.on("only_train_params_name_list") || s.o.on("freeze_params_name_list"));
     },
     "mtp_only_training", "neither --only-train-params-name-list nor --freeze-params-name-list beside it", kRefuses},
    {kLora, kAll,
     [](const Seen& s) {
       return s.o.on("mtp_only_training") && s.o.given("mtp_detach_paths") && s.o.value("mtp_detach_paths").size() < 3;
     },
     "mtp_detach_paths", "embedding backbone lm-head beside --mtp-only-training", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.text("task_type") == "seq_cls" && s.rl(); }, "task_type",
     "--loss-type sft beside seq_cls", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.text("task_type") == "seq_cls" && s.o.whole_or("num_labels", 0) < 2; },
     "num_labels", "2 or more beside --task-type seq_cls", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.text("task_type") != "seq_cls" && s.o.has("num_labels"); }, "num_labels",
     "nothing without --task-type seq_cls", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.o.text("save_hf_dtype") == "fp8" && !s.o.has("save_hf"); }, "save_hf",
     "a folder beside --save-hf-dtype fp8", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.o.has("save_hf_post_hook_path") && !s.o.has("save_hf"); }, "save_hf",
     "a folder beside --save-hf-post-hook-path", kAsks},
    {kLora, kAll,
     [](const Seen& s) {
       return s.m.offload_train && !s.o.on("selective_offload") &&
              s.o.text("train_env_vars").find("expandable_segments:True") != std::string::npos;
     },
     "train_env_vars", "no expandable_segments, or --selective-offload beside it",
     "refuses it: torch_memory_saver cannot follow them"},
    // leave-one-out
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.number("kl_coef", 0) != 0; }, "kl_coef",
     "0 beside --advantage-estimator rloo", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.whole_or("num_steps_per_rollout", 1) != 1; },
     "num_steps_per_rollout", "1 beside --advantage-estimator rloo", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.whole_or("n_samples_per_prompt", 1) < 2; },
     "n_samples_per_prompt", "2 or more beside --advantage-estimator rloo", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && (s.o.on("fully_async") || s.o.on("hybrid")); },
     "advantage_estimator", "another one beside --fully-async or --hybrid", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && !s.a.on("calculate_per_token_loss"); }, "advantage_estimator",
     "--calculate-per-token-loss beside rloo", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.whole_or("max_staleness", 0) != 0; }, "max_staleness",
     "0 beside --advantage-estimator rloo", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.samples() != s.m.global_batch; }, "advantage_estimator",
     "rloo with one global batch a rollout", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.on("normalize_advantages"); }, "normalize_advantages",
     "nothing beside --advantage-estimator rloo", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.on("partial_rollout"); }, "partial_rollout",
     "nothing beside --advantage-estimator rloo", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.estimator("rloo") && s.o.on("use_dynamic_global_batch_size"); },
     "use_dynamic_global_batch_size", "nothing beside --advantage-estimator rloo", kRefuses},
    // REINFORCE++
    {kLora, kAll,
     [](const Seen& s) { return s.reinforce() && (s.o.on("fully_async") || s.o.on("hybrid") || !s.o.on("colocate")); },
     "advantage_estimator", "another one without --colocate, or with --hybrid", kRefuses},
    {kLora, kAll,
     [](const Seen& s) {
       return s.rl() && s.o.text("advantage_estimator").starts_with("reinforce_plus_plus") && s.m.run.context != 1;
     },
     "advantage_estimator", "another one beside --context-parallel-size", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.estimator("reinforce_plus_plus") && s.o.number("kl_coef", 0) <= 0; }, "kl_coef",
     "above 0 beside --advantage-estimator reinforce_plus_plus", kAsks},
    {kLora, kAll,
     [](const Seen& s) {
       return s.estimator("reinforce_plus_plus_baseline") && (!s.o.on("use_kl_loss") || s.o.number("kl_loss_coef", 0) <= 0);
     },
     "kl_loss_coef", "above 0 with --use-kl-loss beside --advantage-estimator reinforce_plus_plus_baseline", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.reinforce() && s.a.on("calculate_per_token_loss"); }, "calculate_per_token_loss",
     "nothing beside REINFORCE++", "refuses it: the loss is the mean of responses"},
    {kLora, kAll, [](const Seen& s) { return s.estimator("reinforce_plus_plus") && s.o.text("kl_loss_type") != "k1"; },
     "kl_loss_type", "k1 beside --advantage-estimator reinforce_plus_plus", kAsks},
    {kLora, kAll,
     [](const Seen&
            s) { return s.estimator("reinforce_plus_plus") && (s.o.on("use_kl_loss") || s.o.number("kl_loss_coef", 0) != 0); },
     "use_kl_loss", "nothing beside --advantage-estimator reinforce_plus_plus",
     "refuses it: the penalty is a part of the reward"},
    {kLora, kAll,
     [](const Seen& s) { return s.estimator("reinforce_plus_plus_baseline") && s.o.whole_or("n_samples_per_prompt", 1) < 2; },
     "n_samples_per_prompt", "2 or more beside --advantage-estimator reinforce_plus_plus_baseline", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("reinforce_plus_plus_baseline") && s.o.number("kl_coef", 0) != 0; },
     "kl_coef", "0 beside --advantage-estimator reinforce_plus_plus_baseline", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("reinforce_plus_plus_baseline") && s.o.text("kl_loss_type") != "k2"; },
     "kl_loss_type", "k2 beside --advantage-estimator reinforce_plus_plus_baseline", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("reinforce_plus_plus_baseline") && s.o.on("use_unbiased_kl"); },
     "use_unbiased_kl", "nothing beside --advantage-estimator reinforce_plus_plus_baseline", kRefuses},
    {kLora, kAll,
     [](const Seen&
            s) { return (s.estimator("reinforce_plus_plus_baseline") || s.estimator("rloo")) && !s.o.on("rewards_normalization"); },
     "rewards_normalization", "no --disable-rewards-normalization beside this estimator", kAsks},
    {kLora, kAll,
     [](const Seen& s) { return s.estimator("reinforce_plus_plus_baseline") && s.o.has("custom_reward_post_process_path"); },
     "custom_reward_post_process_path", "nothing beside --advantage-estimator reinforce_plus_plus_baseline", kRefuses},
    // critics (relax/utils/training/ppo_utils.py: validate_ppo_config)
    {kSft, kLora, [](const Seen& s) { return s.estimator("ppo"); }, "advantage_estimator", "another estimator",
     "supports no critics any more"},
    {kLora, kAll, [](const Seen& s) { return s.estimator("ppo") && !s.r.has("critic"); }, "resource", "a critic in it", kAsks},
    {kLora, kAll, [](const Seen& s) { return s.estimator("ppo") && (s.o.on("fully_async") || s.o.on("hybrid")); },
     "advantage_estimator", "another one beside --fully-async or --hybrid", kRefuses},
    {kLora, kAll, [](const Seen& s) { return s.estimator("ppo") && s.o.on("colocate") && s.o.whole_or("max_staleness", 0) != 0; },
     "max_staleness", "0 beside --colocate and a critic", kAsks},
    // relax/backends/megatron/arguments.py
    {kAll, kAll, [](const Seen& s) { return s.m.trains && s.m.run.context > 1 && !s.a.on("calculate_per_token_loss"); },
     "context_parallel_size", "--calculate-per-token-loss beside it", "asks for it: so does Megatron-Bridge"},
    {kAll, kAll, [](const Seen& s) { return s.o.on("dynamic_context_parallel") && !s.o.on("use_dynamic_batch_size"); },
     "dynamic_context_parallel", "--use-dynamic-batch-size beside it", kAsks},
    {kAll, kAll, [](const Seen& s) { return s.o.on("dynamic_context_parallel") && !s.o.has("rollout_max_context_len"); },
     "dynamic_context_parallel", "--rollout-max-context-len beside it", kAsks},
    // relax/backends/sglang/arguments.py: validate_args
    {kAll, kAll, [](const Seen& s) { return s.o.has("prefill_num_servers") && s.o.on("rollout_external"); },
     "prefill_num_servers", "nothing beside --rollout-external", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return s.o.has("sglang_config") && s.o.on("rollout_external"); }, "sglang_config",
     "nothing beside --rollout-external", "takes only one of them"},
    {kAll, kAll, [](const Seen& s) { return s.o.has("sglang_config") && s.o.has("prefill_num_servers"); }, "sglang_config",
     "nothing beside --prefill-num-servers", "takes only one of them"},
};

/// The teacher's, or the student's own, in the loss or in the advantages. What --opd-type megatron and 2026.05 make of them was
/// not read, and in advantages the teacher's own are asked of the rollout's servers, too (student_at_teacher,
/// relax/utils/opd/opd_main_worker.py).
bool describes_most_likely(const SlimeText& t) {
  const Own& o = t.own;
  const std::string chosen = o.text("opd_token_selection");
  if (!o.on("use_opd")) return true;
  if (!t.release.since("2026.07") || o.text("opd_type") != "sglang" || o.on("allgather_cp")) return false;
  return !takes_most_likely(t) || !in_advantages(t) || chosen == "student_topk";
}
/// Of a whole model without adapters.
bool describes_classes(const SlimeText& t) {
  const Own& o = t.own;
  return o.text("loss_type") == "sft" && o.whole_or("lora_rank", 0) == 0 && !o.on("sft_chunked_logits") &&
         !o.on("enable_mtp_training") && !o.has("sft_predict_interval") && !o.on("multimodal_keys");
}

/// Switches and words that are not described, with the value that is.
constexpr std::array kNotYet = std::to_array<NotYet>({
    {"loss_type", "losses of your own, or of reward models", "policy_loss, sft_loss, sft-loss or dpo"},
    {"train_backend", "makers of images, which FSDP trains", "megatron"},
    {"use_rollout_indexer_replay", "an indexer's choices that are replayed"},
    {"colocate_expert_weight_routing", "a weight update that sends experts to their owners alone"},
    {"linear_cp_mode", "another way of sharing a context out among ranks of linear attention", "headwise"},
    {"defer_reward_to_post_process", "a judge that sleeps until all responses are there"},
    {"rollout_external", "servers that somebody else started"},
    {"rollout_external_engine_addrs", "servers that somebody else started"},
    {"prefill_num_servers", "servers that prefill apart from those that decode"},
    {"freeze_language_model", "models of which a part is frozen"},
    {"freeze_audio_model", "models of which a part is frozen"},
    {"allgather_cp", "context parallelism by all-gathers"},
    {"custom_model_provider_path", "a model of your own code"},
    {"task_type", "classification of a model with adapters, images or predictions", "causal_lm", describes_classes},
    {"opd_log_prob_top_k", "most likely tokens in advantages, of Megatron's teachers, or of 2026.05", "", describes_most_likely},
});

class Checker {
 public:
  Checker(SlimeText& t, const SlimeMeaning& m) : t_(t), m_(m), r_(resource_of(t)) {}

  void run() {
    if (!t_.own.has("hf_checkpoint")) wrong("hf_checkpoint", "nothing", "the checkpoint of the model", itself(kAsks));
    batch();
    resource();
    const Seen seen{t_, t_.own, t_.megatron, m_, r_};
    for (const Rule& rule : kRules) {
      const std::string_view first = rule.first, until = rule.until;
      if ((!first.empty() && !t_.release.since(first)) || (!until.empty() && t_.release.since(until)) || !rule.broken(seen))
        continue;
      wrong(rule.flag, found(rule.flag), rule.expected, itself(rule.why));
    }
    longest_sample();
    shared_servers();
    objects();
    instances();
    beside();
  }

 private:
  static std::string itself(std::string_view does) { return fmt::format("Relax itself {}", does); }
  bool of_megatron(const char* name) const {
    return slime::flag_named(t_.release, name) == nullptr && !t_.own.given(name);  // given: of a later state
  }
  std::string place(const char* name) const { return of_megatron(name) ? t_.megatron.place(name) : t_.own.place(name); }
  void wrong(const char* name, std::string found, std::string expected, std::string why) {
    t_.told.add(place(name), std::move(found), std::move(expected), std::move(why));
  }
  std::string found(const char* name) const {
    const nlohmann::json& v = of_megatron(name) ? t_.megatron.value(name) : t_.own.value(name);
    const bool given = of_megatron(name) ? t_.megatron.given(name) : t_.own.given(name);
    if (v.is_null() || (v.is_boolean() && !given)) return "nothing";
    if (v.is_boolean()) return "the flag";
    return v.is_string() ? fmt::format("'{}'", v.get<std::string>()) : v.dump();
  }

  void batch() {
    if (t_.own.has("rollout_batch_size")) return;
    const bool derives = t_.release.since("2026.07") && t_.megatron.given("global_batch_size");
    if (!derives)
      wrong("rollout_batch_size", "nothing", t_.release.since("2026.07") ? "it, or --global-batch-size" : "prompts of a rollout",
            itself(kAsks));
  }

  /// relax/core/controller.py: register_all_serve; relax/core/service_plan.py, relax/engine/sft/bootstrap.py.
  void resource() {
    if (!r_.given)
      return wrong("resource", "nothing", R"('{"actor": [1, 8], "rollout": [1, 8]}', for example)",
                   itself("looks up every role in it"));
    if (!r_.readable) return wrong("resource", found("resource"), "an object of JSON", itself(kAsks));
    constexpr std::array<std::string_view, 9> kRoles{"actor",     "critic", "rollout", "advantages", "reference",
                                                     "actor_fwd", "genrm",  "sft",     "teacher"};
    for (const auto& [role, asked] : r_.roles) {
      const bool known = std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end(),
                 without = role == "advantages" || role == "sft";
      const std::string at = fmt::format("{} {}", role, asked.written);
      if (!known)
        t_.told.note(Note::Level::warning, t_.own.place("resource"),
                     fmt::format("{} is no role of Relax, and is passed over", role));
      else if (!asked.readable)
        wrong("resource", at, "[1, GPUs]", itself("takes it apart into services and GPUs"));
      else if (asked.services != 1 && role != "teacher")
        wrong("resource", at, fmt::format("{} [1, {}]", role, asked.gpus), itself("starts one service of a role"));
      else if (asked.gpus < 0 || (asked.gpus == 0 && !without))
        wrong("resource", at, fmt::format("{} [1, 1 or more]", role), itself("needs GPUs for it"));
    }
    needed();
  }
  void needed() {
    const auto need = [&](const char* role, bool needs, const char* why) {
      if (needs && !r_.has(role))
        wrong("resource", fmt::format("no {}", role), fmt::format("\"{}\": [1, GPUs]", role), itself(why));
    };
    const bool apart = t_.own.on("fully_async") && !t_.own.on("hybrid") && !m_.supervised;  // --hybrid swaps them in
    need("actor", m_.trains, "starts no trainer without it");
    need("rollout", !m_.supervised && m_.serves, "starts no servers without it");
    need("sft", m_.supervised && t_.release.since("2026.07"), "asks for it: it hands out the data");
    need("reference", apart && m_.reference, "asks for it beside --use-kl-loss, or --kl-coef, and --fully-async");
    need("actor_fwd", apart && !trains_on_policy(t_), "asks for it: a rollout is not one global batch");
  }

  /// A sample that is longer than the budget goes alone, and Relax takes none.
  void longest_sample() {
    const auto context = t_.own.whole("rollout_max_context_len"), tokens = t_.own.whole("max_tokens_per_gpu");
    if (!t_.release.since("2026.07") || !t_.own.on("use_dynamic_batch_size") || !context || !tokens) return;
    if (t_.own.on("dynamic_context_parallel") || *tokens * m_.run.context >= *context) return;
    wrong("max_tokens_per_gpu", fmt::format("{} x {} context-parallel ranks", *tokens, m_.run.context),
          fmt::format("at least the {} of --rollout-max-context-len", *context), itself(kAsks));
  }

  /// Who shares the actor's GPUs with the servers.
  void shared_servers() {
    if (!m_.colocated || m_.supervised) return;
    if (m_.critic && !m_.beside.empty())
      return wrong("advantage_estimator", "'ppo'", "another estimator beside a judge or teacher with --colocate",
                   itself("counts the critic's GPUs beside the actor's, where there are none"));
    if (starts_judge(t_, r_)) {
      std::int64_t judge = 0;
      for (const Judge& one : judges_of(t_)) judge += one.gpus;
      const bool split = m_.rollout_gpus + judge == m_.actor_gpus,
                 all = m_.rollout_gpus == m_.actor_gpus && judge == m_.actor_gpus;
      if (!split && !all)
        wrong(t_.own.has("genrm_instances") ? "genrm_instances" : "genrm_num_gpus",
              fmt::format("{} beside {} of the servers", judge, m_.rollout_gpus),
              fmt::format("{} together, or {} each", m_.actor_gpus, m_.actor_gpus), itself("shares the actor's GPUs out"));
    }
    if (starts_teacher(t_, r_) && m_.rollout_gpus + r_.gpus("teacher") != m_.actor_gpus)
      wrong("resource", fmt::format("{} GPUs of the teacher beside {} of the servers", r_.gpus("teacher"), m_.rollout_gpus),
            fmt::format("{} together", m_.actor_gpus), itself("shares the actor's GPUs out"));
  }

  /// json.loads of the parser.
  void objects() {
    for (const char* name : {"genrm_engine_config", "genrm_sampling_config"})
      if (t_.own.given(name) && object_of(t_, name) == nullptr)
        wrong(name, found(name), "an object of JSON, in quotation marks of the shell", itself(kAsks));
  }
  /// _resolve_genrm_instances and _validate_genrm_resource_config of a later relax/utils/arguments.py, as
  /// tests/utils/test_arguments_genrm_instances.py (5c0807d5) has them.
  void instances() {
    if (!t_.own.has("genrm_instances")) return;
    const auto said = object_of(t_, "genrm_instances");
    const auto refuse = [&](std::string expected) {
      wrong("genrm_instances", found("genrm_instances"), std::move(expected), itself(kAsks));
    };
    if (said == nullptr || said->empty()) return refuse("an object of JSON, in quotation marks of the shell");
    for (const auto& [key, one] : said->items())
      if (key == "__default__" || !one.is_object() || !one.contains("model_path") || !one.contains("num_gpus"))
        return refuse(fmt::format("model_path and num_gpus of {}", key == "__default__" ? "names of your own" : key));
    std::int64_t sum = 0;
    for (const Judge& one : judges_of(t_)) sum += one.gpus;
    if (!r_.has("genrm"))
      wrong("resource", "no genrm", fmt::format("\"genrm\": [1, {}]", sum), itself("starts no judge without it"));
    else if (r_.gpus("genrm") != sum)
      wrong("resource", fmt::format("{} GPUs of genrm", r_.gpus("genrm")), fmt::format("the {} of --genrm-instances", sum),
            itself(kAsks));
  }
  /// relax/utils/opd/opd_utils.py: maybe_start_managed_opd_teacher; relax/distributed/ray/genrm.py: init_genrm_engines.
  void beside() {
    if (t_.own.has("opd_teacher_routes") && starts_teacher(t_, r_)) {
      const auto count = static_cast<std::int64_t>(teachers_of(t_).size());
      if (count == 0) return wrong("opd_teacher_routes", found("opd_teacher_routes"), "an object of JSON", itself(kAsks));
      if (!m_.colocated) wrong("opd_teacher_routes", found("opd_teacher_routes"), "--colocate beside it", itself(kAsks));
      if (r_.gpus("teacher") % count != 0)
        wrong("resource", fmt::format("{} GPUs of the teachers", r_.gpus("teacher")), fmt::format("a multiple of {}", count),
              itself("shares them out evenly"));
    }
    for (const slime::Served& server : m_.beside) {
      if (server.gpus % server.engine_gpus != 0)
        t_.told.add(server.engine_flag, fmt::format("{}", server.engine_gpus),
                    fmt::format("a divisor of the {} GPUs of {}", server.gpus, server.name), itself(kAsks));
      if (server.engine_gpus % server.stages != 0)
        t_.told.add(server.engine_flag, fmt::format("{}", server.engine_gpus),
                    fmt::format("a multiple of the {} stages", server.stages), itself(kAsks));
      const bool alone = !m_.colocated && !t_.own.on("fully_async") && !t_.own.on("hybrid");
      if (server.kind == RoleKind::reward && alone && m_.rollout_gpus >= server.engine_gpus)
        wrong(t_.own.has("genrm_instances") ? "genrm_instances" : "genrm_model_path",
              found(t_.own.has("genrm_instances") ? "genrm_instances" : "genrm_model_path"),
              "--colocate, --fully-async or --hybrid beside it",
              itself("looks for its GPUs behind those of the servers, and finds none"));
    }
  }

  SlimeText& t_;
  const SlimeMeaning& m_;
  const Resource r_;
};

}  // namespace

void check(SlimeText& text, const SlimeMeaning& m) { Checker(text, m).run(); }

std::span<const NotYet> not_yet() { return kNotYet; }

}  // namespace oomplan::relax
