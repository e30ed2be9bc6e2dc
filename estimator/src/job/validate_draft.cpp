#include "job/validate_draft.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "job/draft_method.hpp"

namespace oomplan {
namespace {

/// Classes of drafts that both engines build from Llama's layers (vllm/model_executor/models/registry.py, 0.19; EntryClass of
/// sglang/srt/models/llama_eagle.py and llama_eagle3.py, 0.5.10).
constexpr std::string_view kClasses[] = {"", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle3",
                                         "Eagle3LlamaForCausalLM"};

class DraftProblems {
 public:
  explicit DraftProblems(const Role& role) : role_(role), s_(role.server), vllm_(role.engine == EngineKind::vllm) {}

  std::vector<KnobProblem> run() {
    if (s_.draft_model.empty()) {
      if (s_.draft_method == DraftMethod::eagle || s_.draft_method == DraftMethod::eagle3)
        add("draft_model", "none", "the head's folder or config.json", "EAGLE drafts with a checkpoint of its own");
      if (s_.draft_method != DraftMethod::auto_ && s_.draft_tokens == 0) no_tokens("a method");
      return std::move(out_);
    }
    if (s_.draft_tokens == 0) no_tokens("a draft");
    method();
    settings();
    if (out_.empty() && s_.draft.architecture != nullptr) itself(*s_.draft.architecture);
    if (out_.empty() && s_.draft.architecture != nullptr && role_.architecture != nullptr)
      beside(*s_.draft.architecture, *role_.architecture);
    return std::move(out_);
  }

 private:
  void add(std::string knob, std::string found, std::string expected, std::string why) {
    out_.push_back({std::move(knob), std::move(found), std::move(expected), std::move(why)});
  }
  void no_tokens(std::string_view what) {
    add("draft_tokens", "none", "a number of tokens", fmt::format("{} without tokens that are guessed ahead", what));
  }
  void refuse(std::string why) { add("draft_model", fmt::format("'{}'", s_.draft_model), "none", "not supported yet: " + why); }
  void wrong(std::string expected, std::string why) {
    add("draft_model", fmt::format("'{}'", s_.draft_model), std::move(expected), std::move(why));
  }

  void method() {
    const DraftMethod method = draft_method(s_);
    if (method == DraftMethod::mtp) return refuse("MTP blocks of another checkpoint");
    if (method == DraftMethod::auto_ && s_.draft.architecture != nullptr)
      add("draft_method", "auto", "eagle or eagle3",
          "the draft's config.json names no class of a draft; not supported yet: whole models as drafts");
  }

  void settings() {
    if (role_.kind != RoleKind::server) refuse("drafts of another checkpoint beside training");
    if (s_.attention_data > 1) refuse("drafts of another checkpoint under data-parallel attention");
    if (s_.decode_context > 1) refuse("drafts of another checkpoint where ranks share the tokens of the cache");
    if (s_.lora.slots > 0) refuse("drafts of another checkpoint beside LoRA slots");
    if (s_.layout.pipeline > 1) refuse("drafts of another checkpoint on a pipeline, which vLLM 0.19.1 and SGLang 0.5.10 refuse");
    const bool loads_fp8 = s_.weights != DType::bf16 && s_.weights != DType::fp16 && s_.weights != DType::fp32;
    if (loads_fp8 && !vllm_) refuse("drafts of another checkpoint where SGLang quantises weights as it loads them");
    if (vllm_ && older("0.9")) refuse("drafts of another checkpoint in vLLM before 0.9");
    const bool stored = role_.architecture != nullptr && !role_.architecture->quantization.method.empty();
    if (vllm_ && older("0.12") && (loads_fp8 || stored))
      refuse("drafts of another checkpoint beside a quantised model in vLLM before 0.12");
  }
  bool older(std::string_view than) const { return !s_.version.empty() && compare_versions(s_.version, than) < 0; }

  /// What is described: Llama's layers in 16 bits, with full attention.
  void itself(const Architecture& d) {
    const std::string_view name = d.draft.class_name;
    if (d.model_type != "llama" || std::find(std::begin(kClasses), std::end(kClasses), name) == std::end(kClasses))
      return refuse(fmt::format("drafts of class {}", name.empty() ? std::string_view(d.model_type) : name));
    if (!d.quantization.method.empty()) return refuse("drafts that are stored quantised");
    for (const LayerRun& run : d.runs)
      if (run.layer.mixer.span != AttentionSpan::full) return refuse("drafts with sliding windows");
    if (draft_method(s_) != DraftMethod::eagle3) return;
    if (d.draft.states != 3 && d.draft.states != 0)
      return refuse(fmt::format("drafts that read the states of {} layers", d.draft.states));
    if (!vllm_ && d.layers() != 1)
      wrong("a head of one layer", "SGLang itself refuses others (sglang/srt/models/llama_eagle3.py, 0.5.10)");
    if (!vllm_ && d.draft.states == 0) refuse("EAGLE-3 drafts of SGLang that read the last layer's states alone");
    if (vllm_ && d.draft.states == 0 && older("0.12"))
      refuse("drafts that read the last layer's states alone in vLLM before 0.12");
  }

  void beside(const Architecture& d, const Architecture& model) {
    const bool eagle3 = draft_method(s_) == DraftMethod::eagle3;
    const std::int64_t read = eagle3 && d.draft.target_hidden > 0 ? d.draft.target_hidden : d.hidden;
    if (read != model.hidden)
      return wrong(fmt::format("a head that reads states of width {}", model.hidden), fmt::format("it reads {}", read));
    if (d.vocab != model.vocab && d.hidden == model.hidden)
      return refuse(fmt::format("drafts with an embedding of {} rows beside the model's {}", d.vocab, model.vocab));
    cache(d, model);
  }

  /// Pages of vLLM and pools of SGLang are described for drafts beside layers that all keep every token, or of the size of those
  /// that do.
  void cache(const Architecture& d, const Architecture& model) {
    const auto width = [](const Mixer& m) { return m.kv_heads * m.head_dim; };
    const std::int64_t own = width(d.runs.front().layer.mixer);
    bool windows = false, differs = false;
    for (const LayerRun& run : model.runs) {
      const Mixer& m = run.layer.mixer;
      if (m.kind != MixerKind::attention)
        return refuse("drafts of another checkpoint beside latent attention or recurrent states");
      windows = windows || m.span != AttentionSpan::full;
      differs = differs || width(m) != own;
    }
    if (differs && windows) return refuse("a draft whose keys and values are of another size, beside sliding windows");
    if (differs && vllm_ && older("0.11")) refuse("a draft whose keys and values are of another size in vLLM before 0.11");
  }

  const Role& role_;
  const Server& s_;
  bool vllm_;
  std::vector<KnobProblem> out_;
};

}  // namespace

DraftMethod draft_method(const Server& server) {
  if (server.draft_method != DraftMethod::auto_) return server.draft_method;
  if (server.draft_model.empty()) return DraftMethod::mtp;
  const Architecture* const draft = server.draft.architecture.get();
  const std::string_view name = draft == nullptr ? std::string_view() : std::string_view(draft->draft.class_name);
  if (name.find("agle3") != std::string_view::npos) return DraftMethod::eagle3;
  return name.empty() ? DraftMethod::auto_ : DraftMethod::eagle;
}

std::vector<KnobProblem> draft_problems(const Role& role) { return DraftProblems(role).run(); }

}  // namespace oomplan
