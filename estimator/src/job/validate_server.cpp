#include "job/validate_server.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "job/deepep.hpp"
#include "job/first_engine.hpp"
#include "job/stored_weights.hpp"
#include "job/validate_draft.hpp"
#include "layout/letters.hpp"

namespace oomplan {
namespace {

/// Families whose attention SGLang cuts by data-parallel groups; the others' still spans all ranks (sglang/srt/models, those that
/// read get_attention_tp_size, 0.5.2 and 0.5.10). Kimi K2.5 is DeepSeek-V3 behind a tower that is cut in the same way
/// (models/kimi_k25.py, layers/attention/vision.py, 0.5.15).
constexpr std::string_view kAttentionData[] = {
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe",    "glm4_moe_lite", "glm_moe_dsa",
    "gpt_oss",     "kimi_k2",     "llama4",       "llama4_text", "longcat_flash", "qwen2_moe",
    "qwen3",       "qwen3_moe",   "qwen3_next",   "qwen3_5_moe", "kimi_k25",
};

class Problems {
 public:
  Problems(const Role& role, const Gpu& gpu) : role_(role), s_(role.server), gpu_(gpu) {}

  std::vector<KnobProblem> run() {
    if (s_.attention_data > 1) attention_data();
    if (s_.head_by_attention && s_.attention_data == 1)
      add("head_by_attention", "true", "false", "enable_dp_lm_head needs enable_dp_attention");
    experts();
    formats();
    cache();
    if (s_.text_only && before("0.16"))
      add("text_only", "true", "false", "not supported yet: vLLM before 0.16 without its tower");
    if ((s_.no_images || s_.no_sound) && before("0.16"))
      add(s_.no_images ? "no_images" : "no_sound", "true", "false", "not supported yet: vLLM before 0.16 without its tower");
    if (s_.whole_tower) whole_tower();
    if (s_.no_images && role_.architecture != nullptr && role_.architecture->tower.audio.layers == 0)
      add("no_images", "true", "false", "of a model that does not hear the language model is left: text_only");
    if (role_.engine == EngineKind::sglang && s_.draft_tokens > 0) drafts();
    if (s_.draft_tokens == 0 && (s_.draft_steps > 0 || s_.draft_branches > 0))
      add("draft_tokens", "none", "a number of tokens", "steps and branches of a draft without one");
    for (KnobProblem& p : draft_problems(role_)) out_.push_back(std::move(p));
    if (s_.pooling) pooling();
    if (s_.first_engine && !has_both_engines(s_.version) && !before("0.8"))
      add("first_engine", "true", "false, or vllm 0.8 to 0.10.1", "not supported yet: vLLM's first engine in other releases");
    return std::move(out_);
  }

 private:
  void add(std::string knob, std::string found, std::string expected, std::string why) {
    out_.push_back({std::move(knob), std::move(found), std::move(expected), std::move(why)});
  }
  void attention_data() {
    const std::string found = fmt::format("{}", s_.attention_data);
    if (s_.lora.slots > 0) add("attention_data", found, "1", "not supported yet: LoRA slots beside data-parallel attention");
    if (s_.decode_context > 1)
      add("attention_data", found, "1", "not supported yet: shared tokens of the cache beside data-parallel attention");
    if (role_.engine != EngineKind::sglang || role_.architecture == nullptr) return;
    const std::string& type = role_.architecture->model_type;
    if (std::find(std::begin(kAttentionData), std::end(kAttentionData), type) == std::end(kAttentionData))
      add("attention_data", found, "1", fmt::format("not supported yet: data-parallel attention of {}", type));
  }

  /// vLLM makes a class that scores of any that generates (vllm/model_executor/models/adapters.py as_seq_cls_model); SGLang has
  /// some, and takes them by itself for what does not generate (sglang/srt/configs/model_config.py is_generation_model).
  void pooling() {
    const bool vllm = role_.engine == EngineKind::vllm;
    const auto refuse = [&](const char* knob, std::string found, const char* expected, const std::string& what) {
      add(knob, std::move(found), expected, "not supported yet: " + what);
    };
    if (before(vllm ? "0.12" : "0.5.6"))
      refuse("engine", s_.version, vllm ? "0.12 or later" : "0.5.6 or later", "older servers of models that score");
    if (s_.draft_tokens > 0 || s_.lora.slots > 0) refuse("pooling", "true", "false", "scores beside drafts or LoRA slots");
    if (role_.architecture == nullptr) return;
    const std::string& type = role_.architecture->model_type;
    if (!role_.architecture->tower.kind.empty())
      refuse("model", fmt::format("'{}'", role_.model), "a model without a tower", "a model with a vision tower that scores");
    constexpr std::string_view kClasses[] = {"llama", "qwen2", "qwen3"};
    if (!vllm && std::find(std::begin(kClasses), std::end(kClasses), type) == std::end(kClasses))
      refuse("engine", "sglang", "vllm", fmt::format("a model of SGLang that scores and is of type {}", type));
  }

  /// sglang/srt/models/{qwen2_5_vl,qwen3_vl}.py, 0.5.9 to 0.5.15. Classes of other towers were not read, or pass over the flag.
  void whole_tower() {
    const auto refuse = [&](std::string expected, const std::string& what) {
      add("whole_tower", "true", std::move(expected), "not supported yet: " + what);
    };
    if (before("0.5.9")) refuse("false, or sglang 0.5.9 or later", "a tower that is whole on every rank of older releases");
    if (role_.architecture == nullptr || role_.architecture->tower.kind.empty()) return;  // without effect
    const std::string& kind = role_.architecture->tower.kind;
    if (kind != "qwen2_5_vl" && kind != "qwen3_vl")
      refuse("false", fmt::format("a tower of kind {} that is whole on every rank", kind));
  }

  /// What SGLang's second worker holds is described for the model's own MTP blocks and FlashAttention's tables.
  void drafts() {
    const auto refuse = [&](std::string why) {
      add("draft_tokens", fmt::format("{}", s_.draft_tokens), "none", "not supported yet: " + std::move(why));
    };
    if (!s_.version.empty() && compare_versions(s_.version, "0.5.2") < 0) refuse("drafts of SGLang before 0.5.2");
    if (gpu_.sm != "sm90" && !s_.eager && !s_.flashinfer)
      refuse(fmt::format("graphs of SGLang's drafts on {}, whose attention kernel has other tables", gpu_.name));
    if (s_.flashinfer && s_.draft_branches > 1) refuse("FlashInfer's tables of drafts with several branches");
    if (role_.architecture == nullptr) return;
    for (const LayerRun& run : role_.architecture->runs)
      if (s_.flashinfer && run.layer.mixer.kind == MixerKind::mla)
        return refuse("FlashInfer's tables of drafts with latent attention");
      else if (run.layer.mixer.linear_value_heads > 0 || run.layer.mixer.inner > 0)
        return beside_states();
  }
  /// Those of Qwen3-Next and Qwen3.5, for which SGLang chooses a buffer beside its radix cache (_MAMBA_EXTRA_BUFFER_ARCHS of
  /// sglang/srt/arg_groups/overrides.py, 0.5.15).
  bool gated_delta() const {
    const auto& runs = role_.architecture->runs;
    return std::any_of(runs.begin(), runs.end(), [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; });
  }
  /// sglang/srt/server_args.py, _handle_mamba_radix_cache, 0.5.8 to 0.5.15.
  void beside_states() {
    const auto add_drafts = [&](std::string expected, std::string why) {
      add("draft_tokens", fmt::format("{}", s_.draft_tokens), std::move(expected), std::move(why));
    };
    const bool buffers = s_.version.empty() || compare_versions(s_.version, "0.5.14") >= 0;
    if (s_.share_prompts && buffers && s_.draft_branches <= 1 && gated_delta()) return;
    if (!s_.version.empty() && compare_versions(s_.version, "0.5.8") < 0)
      add_drafts("none", "not supported yet: drafts beside recurrent states of SGLang before 0.5.8");
    else if (s_.share_prompts && !s_.state_buffers)
      add_drafts("none, or state_buffers (mamba_scheduler_strategy=extra_buffer), or share_prompts: false (disable_radix_cache)",
                 "SGLang itself refuses drafts beside recurrent states with its radix cache alone");
    else if (!s_.share_prompts && s_.max_running == 0)
      add_drafts("none, or max_running_requests beside it", "not supported yet: their number of states where it is not stated");
  }

  void experts() {
    if (role_.architecture == nullptr) return;
    std::int64_t experts = 0;
    for (const LayerRun& run : role_.architecture->runs) experts = std::max(experts, run.layer.feed_forward.experts);
    const std::int64_t all = experts + s_.redundant_experts;
    if (s_.redundant_experts > 0 && experts == 0)
      add("redundant_experts", fmt::format("{}", s_.redundant_experts), "none", "the model has no experts");
    if (experts > 0 && role_.engine == EngineKind::sglang && all % s_.layout.expert != 0)
      add("redundant_experts", s_.redundant_experts == 0 ? "none" : fmt::format("{}", s_.redundant_experts),
          fmt::format("as many as make {} a multiple of {}", all, s_.layout.expert),
          "SGLang puts as many experts on every rank (sglang/srt/layers/moe/fused_moe_triton/layer.py, 0.5.10)");
    if (s_.exchange != ExpertExchange::collectives) deepep(experts);
  }
  /// sglang/srt/server_args.py (_handle_a2a_moe), layers/moe/ep_moe/layer.py, 0.5.10.
  void deepep(std::int64_t experts) {
    const std::string found(spelling(s_.exchange));
    const auto refuse = [&](std::string why) { add("exchange", found, "collectives", std::move(why)); };
    if (experts == 0) return refuse("the model has no experts");
    if (s_.layout.expert != s_.layout.tensor)
      add("layout", letters(s_.layout), fmt::format("e{}", s_.layout.tensor),
          "SGLang itself shares the experts out over all ranks of a tensor group where DeepEP is asked for");
    if (!deepep_serves(s_.layout.expert)) refuse(fmt::format("DeepEP itself serves no group of {}", s_.layout.expert));
    const Quantization& q = role_.architecture->quantization;
    const bool blocks = q.parts.size() == 1 && q.parts[0].format.dtype == DType::fp8 && q.parts[0].format.block == 128;
    if (!serves_as_stored(role_) || !blocks)
      refuse("not supported yet: DeepEP of a checkpoint that is not stored in fp8 with a scale for 128 x 128 elements");
  }

  bool before(const char* release) const { return !s_.version.empty() && compare_versions(s_.version, release) < 0; }
  template <class Holds>
  bool any_mixer(Holds holds) const {
    return role_.architecture != nullptr && std::any_of(role_.architecture->runs.begin(), role_.architecture->runs.end(),
                                                        [&](const LayerRun& r) { return holds(r.layer.mixer); });
  }
  bool latent() const {
    return any_mixer([](const Mixer& m) { return m.kind == MixerKind::mla; });
  }

  /// Weights that are converted while they are loaded.
  void formats() {
    if (s_.online == OnlineFormat::none) return;
    const std::string found(spelling(s_.online));
    const auto refuse = [&](std::string expected, std::string why) {
      add("online_quantization", found, std::move(expected), std::move(why));
    };
    if (s_.weights == DType::fp8) refuse("none", "weights that are fp8 already");
    if (role_.architecture != nullptr && serves_as_stored(role_) && !role_.architecture->quantization.method.empty())
      refuse("none", "the checkpoint is quantised");
    const bool vllm = role_.engine == EngineKind::vllm;
    if (!vllm && s_.online != OnlineFormat::bitsandbytes && s_.online != OnlineFormat::fp8_per_channel)
      refuse("none, bitsandbytes or fp8_per_channel", "not supported yet with SGLang");
    if (vllm && s_.online == OnlineFormat::mxfp8 && before("0.20") && !gpu_.sm.starts_with("sm10"))
      refuse("none", "the engine itself refuses it below sm100 (vllm/model_executor/layers/quantization/mxfp8.py, 0.19)");
    if (s_.online == OnlineFormat::bitsandbytes && latent())
      refuse("none", "not supported yet: latent attention in blocks of bitsandbytes");
    if (s_.online == OnlineFormat::bitsandbytes && vllm && before("0.10"))
      refuse("none", "not supported yet: vLLM before 0.10, which kept the scales quantised too");
  }

  /// vllm/config/cache.py CacheDType and v1/kv_cache_interface.py, 0.20 to 0.24: windows have 4 bits from 0.21 on, and latent
  /// attention has none of these. sglang/srt/model_executor/model_runner_kv_cache_mixin.py and mem_cache/memory_pool.py, 0.5.6 to
  /// 0.5.10.
  void cache() {
    const bool vllm = role_.engine == EngineKind::vllm;
    const bool windows = any_mixer([](const Mixer& m) { return m.span != AttentionSpan::full; });
    const auto refuse = [&](const char* knob, std::string found, std::string expected, std::string why) {
      add(knob, std::move(found), std::move(expected), std::move(why));
    };
    if (s_.kv_token_scales) {
      if (!vllm || before("0.20")) refuse("kv_token_scales", "true", "false", "vLLM 0.20 and later have it alone");
      if (s_.kv != DType::fp8) refuse("kv_token_scales", "true", "false", "it needs kv: fp8");
      if (latent()) refuse("kv_token_scales", "true", "false", "not supported yet: latent attention with them");
    }
    if (s_.kv != DType::nvfp4 && s_.kv != DType::mxfp4) return;
    const std::string found(oomplan::name(*s_.kv));
    if (vllm != (s_.kv == DType::nvfp4)) return refuse("kv", found, vllm ? "nvfp4" : "mxfp4", "the engine's cache of 4 bits");
    if (vllm && before(windows ? "0.21" : "0.20"))
      refuse("kv", found, "fp8 or bf16", "vLLM 0.20 and later have it, 0.21 for windows");
    if (vllm && latent()) refuse("kv", found, "fp8 or bf16", "not supported yet: latent attention with a cache of 4 bits");
    if (vllm && !gpu_.sm.starts_with("sm10")) refuse("kv", found, "fp8 or bf16", "the kernels for it run on sm100 alone");
    if (!vllm && before("0.5.6")) refuse("kv", found, "fp8 or bf16", "SGLang 0.5.6 and later have it");
    if (!vllm && windows) refuse("kv", found, "fp8 or bf16", "not supported yet: windows with a cache of 4 bits");
  }

  const Role& role_;
  const Server& s_;
  const Gpu& gpu_;
  std::vector<KnobProblem> out_;
};

}  // namespace

std::vector<KnobProblem> server_problems(const Role& role, const Gpu& gpu) { return Problems(role, gpu).run(); }

}  // namespace oomplan
