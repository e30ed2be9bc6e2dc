#include "frontends/transformers/trl.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/trainers/names.hpp"

namespace oomplan::transformers {
namespace {

/// The newest vLLM that a release of TRL takes (its pyproject.toml, setup.cfg).
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kServers{{{"0.21", "0.10.0"},
                                                                                 {"0.24", "0.10.2"},
                                                                                 {"0.26", "0.11.2"},
                                                                                 {"1.0", "0.17.1"},
                                                                                 {"1.3", "0.18.0"},
                                                                                 {"1.6", "0.19.0"},
                                                                                 {"1.9", "0.25.1"}}};

trainers::TrlTrainer trainer_of(const HfText& text) {
  constexpr std::array<std::string_view, 4> kOurs{"dpo", "kto", "grpo", "reward"};
  trainers::TrlTrainer out;
  std::string_view release = trl_of(text.release);
  if (release.ends_with('+')) release.remove_suffix(1);
  if (std::find(kOurs.begin(), kOurs.end(), text.trainer->name) != kOurs.end()) out = {text.trainer->name, release};
  return out;
}

}  // namespace

TrlJob::TrlJob(const HfText& text, const HfMeaning& m, const Telling& told, trainers::TreeSettings& settings)
    : m_(m), t_(told), s_(settings), trl_(trainer_of(text)) {}

bool TrlJob::accept() {
  const trainers::TrlHead head = trainers::head_of(trl_);
  bool good = !head.head.empty();
  const auto refuse = [&](std::string_view path, std::string_view what) {
    s_.refuse(path, std::string(what));
    good = false;
  };
  if (!good) s_.refuse("", std::string(head.why));
  for (const trainers::TrlArgument& argument : trainers::undescribed_arguments(trl_))
    if (trainers::turns_on(t_.at(argument.key))) refuse(argument.key, argument.what);
  if (trl_.name == "dpo" && trainers::has_likelihood(t_.at("loss_type")))
    refuse("loss_type", "DPO with a likelihood loss beside it");
  if (trl_.name == "reward" && m_.adapters) refuse("use_peft", "adapters of a reward model");
  if (m_.packed && !trl_.casts_adapters())
    refuse(t_.flag("load_in_4bit") ? "load_in_4bit" : "load_in_8bit",
           fmt::format("a packed base under {} of TRL {}", trl_.name, trl_.release));
  return good && (trl_.name != "grpo" || accept_generation());
}

void TrlJob::reference(const std::string& policy) {
  if (!trl_.prefers()) return;
  if (t_.flag("precompute_ref_log_probs")) return s_.put("trainer.reference", "none", "precompute_ref_log_probs");
  if (m_.adapters) return s_.put("trainer.reference", "adapters_off", "use_peft");
  const std::string code = fmt::format("trl's {}_trainer.py, {}", trl_.name, trl_.release);
  s_.put("trainer.reference", "model", s_.by_code(code + ": a second model without adapters"));
  if (m_.engine.name.value == "deepspeed") return;  // which casts it as it casts the policy
  const std::string key = "model_init_kwargs.dtype", said = t_.text(key, "float32");
  const std::string loaded = m_.loaded == "auto" ? "bf16" : m_.loaded, format = !trl_.loads_reference() ? loaded
                                                                                : said == "auto" ? "bf16"
                                                                                                 : trainers::format_named(said);
  if (policy == format) return;
  const std::string source = "trl/trainer/utils.py: create_model_from_path takes float32";
  s_.put("trainer.reference_format", format, t_.has(key) ? s_.origin(key) : s_.by_code(source));
}

// ---- GRPO

bool TrlJob::has_server() const {
  return trl_.name == "grpo" && t_.flag("use_vllm") && t_.text("vllm_mode", trl_.vllm_mode()) == "colocate";
}

bool TrlJob::accept_generation() {
  if (t_.flag("use_vllm")) return true;
  s_.refuse("use_vllm", "GRPO with generation by Transformers");
  return false;
}

void TrlJob::completions(std::int64_t tokens) {
  if (trl_.name != "grpo") return;
  const std::int64_t written = std::min(t_.whole("max_completion_length", 256), std::max<std::int64_t>(1, tokens - 1));
  s_.put("trainer.logits_to_keep", fmt::format("{}", written + 1), "max_completion_length");
  if (!has_server()) return;
  s_.put("prompt_tokens", fmt::format("{}", tokens - written), m_.cap);
  s_.put("response_tokens", fmt::format("{}", written), "max_completion_length");
}

void TrlJob::server(std::int64_t gpus) {
  std::string_view vllm = kServers.front().second;
  for (const auto& [since, release] : kServers)
    if (trl_.from(since)) vllm = release;
  trainers::TrlServer server;
  server.gpus = gpus;
  server.tensor = t_.whole("vllm_tensor_parallel_size", 1);
  server.utilization = t_.real("vllm_gpu_memory_utilization", 0.3);
  server.longest = t_.whole("vllm_max_model_length", 0);
  server.sequences_per_gpu = t_.whole("per_device_train_batch_size", 8);
  server.steps_per_generation = t_.whole("steps_per_generation", t_.whole("gradient_accumulation_steps", 1));
  for (trainers::TrlSetting& setting : trainers::server_settings(server, vllm))
    s_.put(std::move(setting.knob), std::move(setting.value),
           setting.key.empty() ? s_.by_code(std::string(setting.source)) : s_.origin(setting.key));
}

}  // namespace oomplan::transformers
