#include "frontends/oumi/trl.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/trainers/names.hpp"

namespace oomplan::oumi {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kTrainers{
    {{"TRL_DPO", "dpo"}, {"TRL_KTO", "kto"}, {"TRL_GRPO", "grpo"}, {"TRL_GKD", "gkd"}, {"TRL_GOLD", "gold"}}};
/// The newest TRL that pyproject.toml of a release and the ones behind it takes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kReleases{{{"0.1.3", "0.11.4"},
                                                                                  {"0.1.9", "0.15.2"},
                                                                                  {"0.2.0", "0.18.2"},
                                                                                  {"0.4.0", "0.21.0"},
                                                                                  {"0.5.0", "0.25.1"},
                                                                                  {"0.6.0", "0.26.2"},
                                                                                  {"0.8", "1.3.0"},
                                                                                  {"0.8+", "1.4.0"}}};

trainers::TrlTrainer trainer_of(const OumiText& text, std::string_view trainer) {
  trainers::TrlTrainer out;
  for (const auto& [ours, theirs] : kTrainers)
    if (ours == trainer) out.name = theirs;
  for (const auto& [since, release] : kReleases)
    if (text.release >= *find_release(since)) out.release = release;
  return out;
}

constexpr std::string_view kArguments = "training.trainer_kwargs.";

/// "auto" is taken as bf16, as of the policy.
std::string stored_as(std::string_view name) { return name == "auto" ? "bf16" : trainers::format_named(name); }

constexpr std::int64_t kLongest = 1024;  ///< max_length of DPOConfig, KTOConfig and SFTConfig, 0.18 to 1.4
constexpr std::int64_t kPrompt = 512;    ///< max_prompt_length of GRPOConfig, up to 0.27
constexpr std::int64_t kCompletion = 256;

}  // namespace

TrlJob::TrlJob(const OumiText& text, const OumiMeaning& m, const Telling& told, OumiSettings& settings)
    : m_(m), t_(told), s_(settings), trl_(trainer_of(text, m.trainer)) {}

bool TrlJob::accept() {
  if (const trainers::TrlHead head = trainers::head_of(trl_); head.head.empty()) {
    s_.refuse("training.trainer_type", std::string(head.why));
    return false;
  }
  if (m_.engine == "deepspeed" && trl_.distils()) {
    s_.refuse("deepspeed.enable_deepspeed", "a teacher under DeepSpeed");
    return false;
  }
  if (!refuse_arguments() || !refuse_images()) return false;
  if (trl_.distils()) return accept_teacher();
  return trl_.name != "grpo" || accept_generation();
}

bool TrlJob::refuse_arguments() {
  bool good = true;
  const auto refuse = [&](const std::string& path, std::string_view what) {
    s_.refuse(path, std::string(what));
    good = false;
  };
  for (const trainers::TrlArgument& argument : trainers::undescribed_arguments(trl_)) {
    const std::string path = fmt::format("{}{}", kArguments, argument.key);
    if (t_.has(path) && trainers::turns_on(t_.at(path))) refuse(path, argument.what);
  }
  if (t_.flag("model.enable_liger_kernel"))
    refuse("model.enable_liger_kernel", "Liger under this trainer, which has a loss of Liger's then");
  const std::string losses = fmt::format("{}loss_type", kArguments);
  if (trl_.name == "dpo" && trainers::has_likelihood(t_.at(losses))) refuse(losses, "DPO with a likelihood loss beside it");
  return good;
}

/// Datasets with a processor hand pixels on, whatever collates them.
bool TrlJob::refuse_images() {
  const compose::Node* sets = t_.at("data.train.datasets");
  if (sets == nullptr) return true;
  for (std::size_t i = 0; i < sets->items.size(); ++i) {
    const std::string path = fmt::format("data.train.datasets.{}.dataset_kwargs.processor_name", i);
    if (!t_.has(path)) continue;
    s_.refuse(path, "images in the batches of Oumi's trainers");
    return false;
  }
  return true;
}

// ---- lengths

/// Where the trainer's own settings stand.
std::string TrlJob::group() const { return fmt::format("training.{}.", trl_.name); }

std::int64_t TrlJob::completion() const {
  if (trl_.name == "gkd") return t_.whole("training.gkd.max_new_tokens", kCompletion / 2);
  return t_.whole(group() + "max_completion_length", trl_.name == "gold" ? kCompletion / 2 : kCompletion);
}

std::int64_t TrlJob::longest() const {
  if (trl_.name == "grpo") {
    const std::int64_t prompt = t_.whole("training.grpo.max_prompt_length", trl_.from("0.28") ? 0 : kPrompt);
    return prompt > 0 ? prompt + completion() : 0;
  }
  const std::int64_t said = t_.whole("model.model_max_length", 0);
  const std::int64_t most =
      said > 0 && takes_max_length(m_.trainer) ? said : t_.whole(fmt::format("{}max_length", kArguments), kLongest);
  if (!trl_.distils()) return most;
  // what the policy writes behind a prompt is cut nowhere (trl/experimental/gkd/gkd_trainer.py training_step, 1.4)
  const bool writes = t_.real(group() + "lmbda", 0.5) > 0 || t_.flag(group() + "seq_kd");
  return writes ? most + completion() : most;
}

void TrlJob::completions(std::int64_t tokens) {
  const std::int64_t written = std::min(completion(), std::max<std::int64_t>(1, tokens - 1));
  const Origin by = s_.origin("training.grpo.max_completion_length");
  s_.put("trainer.logits_to_keep", fmt::format("{}", written + 1), by);
  if (!has_server()) return;
  s_.put("prompt_tokens", fmt::format("{}", tokens - written), s_.origin("training.grpo.max_prompt_length"));
  s_.put("response_tokens", fmt::format("{}", written), by);
}

// ---- second models

void TrlJob::second_model() {
  if (trl_.prefers()) return reference();
  if (trl_.distils()) teacher();
}

void TrlJob::reference() {
  const std::string precomputed = fmt::format("{}precompute_ref_log_probs", kArguments),
                    init = fmt::format("{}model_init_kwargs.dtype", kArguments);
  if (t_.flag(precomputed)) return s_.put("trainer.reference", "none", s_.origin(precomputed));
  const std::string code = fmt::format("trl's {}_trainer.py, {}", trl_.name, trl_.release);
  if (t_.flag("training.use_peft")) {
    s_.put("trainer.reference", "adapters_off", s_.origin("training.use_peft"));
    // Oumi hands a model with adapters over
    if (trl_.copies_adapters()) s_.put("trainer.lora.frozen_copies", "1", s_.by_code(code + ": the adapter \"ref\""));
    return;
  }
  s_.put("trainer.reference", "model", s_.by_code(code + ": a second model without adapters"));
  if (!trl_.loads_reference() || m_.engine == "deepspeed") return;  // whose 16-bit mode casts it as it casts the policy
  const std::string policy = stored_as(t_.text("model.torch_dtype_str", "auto")), format = stored_as(t_.text(init, "float32"));
  if (policy == format) return;
  s_.put("trainer.reference_format", format,
         t_.has(init) ? s_.origin(init) : s_.by_code("trl/trainer/utils.py: create_model_from_path takes float32"));
}

bool TrlJob::accept_teacher() {
  const std::string at = group(), init = at + "teacher_model_init_kwargs.";
  const auto no = [&](const std::string& path, std::string what) {
    s_.refuse(path, std::move(what));
    return false;
  };
  if (!t_.has(at + "teacher_model_name_or_path"))
    return no(at + "teacher_model_name_or_path", "distillation without a teacher's name");
  if (t_.has(init + "device_map")) return no(init + "device_map", "a teacher that device_map spreads over GPUs");
  if (t_.has(init + "quantization_config")) return no(init + "quantization_config", "a teacher that is quantised");
  if (t_.has(init + "attn_implementation") &&
      t_.text(init + "attn_implementation") != t_.text("model.attn_implementation", "sdpa"))
    return no(init + "attn_implementation", "a teacher with another attention than the student");
  const std::string format = init + (t_.has(init + "dtype") ? "dtype" : "torch_dtype");
  if (stored_as(t_.text(format, "auto")) != stored_as(t_.text("model.torch_dtype_str", "auto")))
    return no(t_.has(format) ? format : "model.torch_dtype_str", "a teacher in another format than the student");
  const double beta = t_.real(at + "beta", 0.5);
  if (beta <= 0 || beta >= 1) return no(at + "beta", "a divergence of one direction alone");
  if (t_.flag(at + "use_uld_loss")) return no(at + "use_uld_loss", "distillation between vocabularies (ULD)");
  if (t_.flag(at + "use_vllm")) return no(at + "use_vllm", "vLLM under TRL_GOLD");
  return true;
}

void TrlJob::teacher() {
  const std::string name = group() + "teacher_model_name_or_path";
  s_.put("trainer.reference", "model", s_.origin(name));
  s_.copy("trainer.reference_model", name);
}

// ---- GRPO's server

bool TrlJob::uses_vllm() const { return t_.flag("training.grpo.use_vllm") || t_.flag(fmt::format("{}use_vllm", kArguments)); }

std::string TrlJob::mode_key() const {
  return t_.has("training.grpo.vllm_mode") ? "training.grpo.vllm_mode" : fmt::format("{}vllm_mode", kArguments);
}

bool TrlJob::has_server() const {
  return trl_.name == "grpo" && uses_vllm() && t_.text(mode_key(), trl_.vllm_mode()) == "colocate";
}

bool TrlJob::accept_generation() {
  if (!uses_vllm()) {
    s_.refuse("training.grpo.use_vllm", "GRPO with generation by Transformers");
    return false;
  }
  if (trl_.from("0.28") && t_.has("training.grpo.max_prompt_length")) {
    s_.refuse("training.grpo.max_prompt_length", "a cap on prompts, which GRPOConfig of TRL 0.28 and later does not know");
    return false;
  }
  return true;
}

void TrlJob::server(std::int64_t gpus, std::string_view vllm) {
  const auto argument = [&](std::string_view name, std::int64_t otherwise) {
    return t_.whole(fmt::format("{}{}", kArguments, name), otherwise);
  };
  trainers::TrlServer server;
  server.gpus = gpus;
  server.tensor = argument("vllm_tensor_parallel_size", 1);
  server.utilization = t_.real("training.grpo.vllm_gpu_memory_utilization", 0.9);
  server.longest = argument("vllm_max_model_length", 0);
  server.sequences_per_gpu = t_.whole("training.per_device_train_batch_size", 8);
  server.steps_per_generation = argument("steps_per_generation", t_.whole("training.gradient_accumulation_steps", 1));
  for (trainers::TrlSetting& setting : trainers::server_settings(server, vllm)) {
    const bool own = setting.key == "vllm_gpu_memory_utilization";
    const std::string path = own                          ? "training.grpo.vllm_gpu_memory_utilization"
                             : setting.key == "vllm_mode" ? mode_key()
                                                          : fmt::format("{}{}", kArguments, setting.key);
    s_.put(std::move(setting.knob), std::move(setting.value),
           setting.key.empty() ? s_.by_code(std::string(setting.source)) : s_.origin(path));
  }
}

}  // namespace oomplan::oumi
