// Flags that contradict each other or the model: what the engines themselves refuse before they load anything.
#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "frontends/servers/serve_draft.hpp"
#include "frontends/servers/serve_quantization.hpp"

namespace oomplan {
namespace {

class Checks {
 public:
  Checks(ServeDraft& draft, const ServeLayout& layout, const Architecture* model, DType compute)
      : d_(draft), l_(layout), model_(model), compute_(compute) {}

  void run() {
    heads();
    nodes();
    if (d_.engine == EngineKind::vllm)
      vllm();
    else
      sglang();
  }

 private:
  /// At the flag of this name; where it is not given, at the command.
  void refuse(const char* flag, std::string found, std::string expected, std::string_view source) {
    const Flag* at = d_.find(flag);
    d_.complain(at != nullptr ? at->place : Place{kCommandLine, 0, 0, "--" + std::string(flag)}, std::move(found),
                std::move(expected), fmt::format("the engine itself refuses it ({})", source));
  }
  std::optional<std::int64_t> number(const char* flag) const {
    const Flag* at = d_.find(flag);
    return at == nullptr || !at->value ? std::nullopt : count_of(*at->value, d_.engine);
  }
  std::string text(const char* flag) const {
    const Flag* at = d_.find(flag);
    return at == nullptr ? "" : at->value.value_or("");
  }
  bool has(const char* flag) const { return d_.find(flag) != nullptr; }
  bool is_off(const char* flag) const {
    const auto found = d_.off.find(flag);
    return found != d_.off.end() && found->second;
  }
  bool variable_is_on(const char* name) const {
    const auto found = d_.variables.find(name);
    if (found == d_.variables.end()) return false;
    const std::string& word = found->second.text;
    return word == "1" || word == "true" || word == "True" || word == "TRUE";
  }
  bool experts() const {
    return model_ != nullptr && std::any_of(model_->runs.begin(), model_->runs.end(),
                                            [](const auto& run) { return run.layer.feed_forward.experts > 0; });
  }

  void heads() {
    if (model_ == nullptr || l_.tensor <= 1) return;
    for (const auto& run : model_->runs) {
      const std::int64_t heads = run.layer.mixer.heads;
      if (heads == 0 || run.layer.mixer.kv_heads == 0 || heads % l_.tensor == 0) continue;
      const bool vllm = d_.engine == EngineKind::vllm;
      return refuse(vllm ? "tensor-parallel-size" : "tp-size", fmt::format("{} for {} attention heads", l_.tensor, heads),
                    "a number that divides them",
                    vllm ? "vllm/config/model.py verify_with_parallel_config, 0.19" : "sglang/srt/models, 0.5.10");
    }
  }

  void nodes() {
    const std::int64_t nodes = number("nnodes").value_or(1);
    if (nodes < 1) return refuse("nnodes", text("nnodes"), "at least 1", "a number of machines");
    const bool vllm = d_.engine == EngineKind::vllm;
    const std::int64_t world = vllm ? l_.world() : l_.tensor * l_.pipeline;
    if (world % nodes != 0)
      refuse("nnodes", fmt::format("{} for {} GPUs", nodes, world), "a number that divides them",
             vllm ? "vllm/engine/arg_utils.py create_engine_config, August 2026"
                  : "sglang/srt/server_args.py check_server_args, 0.5.10");
    const auto rank = number("node-rank");
    if (rank && (*rank < 0 || *rank >= nodes))
      refuse("node-rank", fmt::format("{} of {} nodes", *rank, nodes), fmt::format("0 to {}", nodes - 1),
             vllm ? "vllm/engine/arg_utils.py create_engine_config, August 2026" : "torch.distributed");
    if (!vllm && l_.data > 1 && nodes > 1 && !has("enable-dp-attention"))
      refuse("dp-size", fmt::format("{} replicas on {} nodes", l_.data, nodes), "one node, or --enable-dp-attention",
             "sglang/srt/server_args.py check_server_args, 0.5.10");
  }

  void longer_than_the_model(const char* flag, const char* variable, std::string_view source) {
    const auto asked = number(flag);
    if (!asked || model_ == nullptr || model_->max_positions == 0 || *asked <= model_->max_positions) return;
    if (variable_is_on(variable)) return;
    refuse(flag, fmt::format("{} tokens", *asked),
           fmt::format("at most {}, which the model was made for, or {}=1", model_->max_positions, variable), source);
  }

  void vllm() {
    const auto batched = number("max-num-batched-tokens"), sequences = number("max-num-seqs"), longest = number("max-model-len");
    const char* const scheduler = "vllm/config/scheduler.py verify_max_model_len, 0.19";
    if (batched && sequences && *batched < *sequences)
      refuse("max-num-batched-tokens", fmt::format("{} with --max-num-seqs {}", *batched, *sequences),
             fmt::format("at least {}", *sequences), scheduler);
    if (batched && longest && *batched < *longest && is_off("enable-chunked-prefill"))
      refuse("max-num-batched-tokens",
             fmt::format("{} with --max-model-len {} and --no-enable-chunked-prefill", *batched, *longest),
             fmt::format("at least {}, or chunked prefill", *longest), scheduler);
    if (const auto threshold = number("long-prefill-token-threshold"); threshold && longest && *threshold > *longest)
      refuse("long-prefill-token-threshold", fmt::format("{}", *threshold), fmt::format("at most {} (--max-model-len)", *longest),
             scheduler);
    longer_than_the_model("max-model-len", "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "vllm/config/model.py _get_and_verify_max_len, 0.19");
    if (has("enable-expert-parallel") && model_ != nullptr && !experts())
      refuse("enable-expert-parallel", "the flag for a model without experts", "none",
             "vllm/config/model.py _verify_with_expert_parallelism, 0.19");
    if (has("enable-eplb") && !has("enable-expert-parallel"))
      refuse("enable-eplb", "the flag alone", "--enable-expert-parallel beside it",
             "vllm/config/parallel.py _validate_parallel_config, 0.19");
    if (const auto local = number("data-parallel-size-local"); local && *local > l_.data)
      refuse("data-parallel-size-local", fmt::format("{} of {} replicas", *local, l_.data), "no more than there are",
             "vllm/config/parallel.py _validate_parallel_config, 0.19");
    adapters();
    quantization();
    visible_devices();
    half_precision();
  }

  void adapters() {
    constexpr std::array<std::int64_t, 9> kRanks{1, 8, 16, 32, 64, 128, 256, 320, 512};
    const auto rank = number("max-lora-rank"), most = number("max-loras"), kept = number("max-cpu-loras");
    if (rank && std::find(kRanks.begin(), kRanks.end(), *rank) == kRanks.end())
      refuse("max-lora-rank", fmt::format("{}", *rank), fmt::format("one of {}", fmt::join(kRanks, ", ")),
             "vllm/config/lora.py MaxLoRARanks, August 2026");
    if (kept && *kept < most.value_or(1))
      refuse("max-cpu-loras", fmt::format("{} with --max-loras {}", *kept, most.value_or(1)),
             fmt::format("at least {}", most.value_or(1)), "vllm/config/lora.py, 0.19");
  }

  /// A checkpoint's own method may only be named, or be named by one of its kernels (awq_marlin).
  void quantization() {
    const std::string asked = text("quantization");
    const std::string own = model_ == nullptr ? "" : model_->quantization.method;
    if (asked.empty() || asked == "None" || model_ == nullptr) return;
    if (own.empty()) return converted(asked);
    if (d_.engine != EngineKind::vllm || asked.starts_with(own) || own.starts_with(asked)) return;
    if (asked.find("marlin") != std::string::npos || asked == "moe_wna16" || asked == "modelopt_fp4") return;
    refuse("quantization", fmt::format("'{}' for a checkpoint in {}", asked, own), fmt::format("'{}', or no flag", own),
           "vllm/config/model.py _verify_quantization, 0.19");
  }

  /// A checkpoint in 16 bits.
  void converted(const std::string& asked) {
    const bool vllm = d_.engine == EngineKind::vllm;
    const std::vector<std::string> known = online_names(d_.engine, d_.version);
    const std::string expected = fmt::format("no flag, {}", fmt::join(known, ", "));
    if (std::find(known.begin(), known.end(), asked) == known.end()) {
      if (names_checkpoint_format(asked))
        return refuse("quantization", fmt::format("'{}' for a checkpoint in 16 bits", asked), expected,
                      vllm ? "vllm/model_executor/model_loader/weight_utils.py get_quant_config, 0.19"
                           : "sglang/srt/model_loader/weight_utils.py get_quant_config, 0.5.10");
      const Flag* at = d_.find("quantization");
      return d_.complain(at->place, fmt::format("'{}'", asked), expected,
                         fmt::format("not supported yet: this format with {} {}", vllm ? "vLLM" : "SGLang", d_.version),
                         nearest(asked, known));
    }
    const bool old = compare_versions(d_.version, "0.14") >= 0 && compare_versions(d_.version, "0.20") < 0;
    if (vllm && asked == "experts_int8" && old && !has("allow-deprecated-quantization"))
      refuse("quantization", "'experts_int8'", "--allow-deprecated-quantization beside it",
             "vllm/config/model.py _verify_quantization, 0.14 to 0.19");
  }

  void visible_devices() {
    const auto found = d_.variables.find("CUDA_VISIBLE_DEVICES");
    if (found == d_.variables.end() || has("nnodes") || text("distributed-executor-backend") == "ray") return;
    const std::string& list = found->second.text;
    const auto visible = list.empty() ? 0 : std::count(list.begin(), list.end(), ',') + 1;
    const std::int64_t world = l_.tensor * l_.pipeline;
    if (visible >= world) return;
    d_.complain(found->second.place, fmt::format("{} GPUs of {}", visible, world), fmt::format("at least {}", world),
                "the engine itself refuses it (vllm/config/parallel.py, 0.19.1)");
  }

  void half_precision() {
    if (compute_ != DType::fp16 || model_ == nullptr) return;
    for (const std::string_view family : {"gemma2", "gemma3", "gemma3_text", "glm4"})
      if (model_->model_type == family)
        refuse("dtype", fmt::format("{} for {}", text("dtype"), family), "bfloat16 or float32",
               "vllm/config/model.py _FLOAT16_NOT_SUPPORTED_MODELS, August 2026");
  }

  void sglang() {
    const char* const args = "sglang/srt/server_args.py check_server_args, 0.5.10";
    const auto chunk = number("chunked-prefill-size"), page = number("page-size");
    if (chunk && page && *chunk > 0 && *page > 0 && *chunk % *page != 0)
      refuse("chunked-prefill-size", fmt::format("{} with --page-size {}", *chunk, *page), "a multiple of the page", args);
    longer_than_the_model("context-length", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
                          "sglang/srt/configs/model_config.py _derive_context_length, 0.5.10");
    quantization();
    if (has("enable-hierarchical-cache") && has("disable-radix-cache"))
      refuse("disable-radix-cache", "the flag beside --enable-hierarchical-cache", "one of them",
             "sglang/srt/server_args.py _handle_cache_compatibility, 0.5.10");
    if (text("served-model-name").find(':') != std::string::npos)
      refuse("served-model-name", fmt::format("'{}'", text("served-model-name")), "a name without a colon", args);
    if (const auto slots = number("max-loras-per-batch"); slots && *slots < 1)
      refuse("max-loras-per-batch", fmt::format("{}", *slots), "at least 1",
             "sglang/srt/server_args.py check_lora_server_args, 0.5.10");
    if (has("enable-lora") && !has("lora-paths") && !(has("max-lora-rank") && has("lora-target-modules")))
      refuse("enable-lora", "the flag alone", "--lora-paths, or --max-lora-rank and --lora-target-modules",
             "sglang/srt/server_args.py check_lora_server_args, 0.5.10");
    const auto loaded = number("max-loaded-loras"), slots = number("max-loras-per-batch");
    if (loaded && *loaded < slots.value_or(8))
      refuse("max-loaded-loras", fmt::format("{}", *loaded),
             fmt::format("at least {} (--max-loras-per-batch)", slots.value_or(8)),
             "sglang/srt/server_args.py check_lora_server_args, 0.5.10");
    if (l_.pipeline > 1 && has("enable-mixed-chunk")) refuse("enable-mixed-chunk", "the flag with a pipeline", "none", args);
    if (const auto careful = text("schedule-conservativeness"); careful.starts_with('-'))
      refuse("schedule-conservativeness", careful, "0 or more", args);
  }

  ServeDraft& d_;
  const ServeLayout& l_;
  const Architecture* model_;
  DType compute_;
};

}  // namespace

void check_together(ServeDraft& draft, const ServeLayout& layout, const Architecture* model, DType compute) {
  Checks(draft, layout, model, compute).run();
}

}  // namespace oomplan
