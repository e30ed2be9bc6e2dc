#include "frontends/oumi/guide.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "frontends/oumi/spell.hpp"

namespace oomplan::oumi {
namespace {

constexpr const char* kOn = "it is so already";

class GuideReader {
 public:
  GuideReader(const OumiText& text, const OumiMeaning& m) : m_(m), t_(text.root, unused_, "") {}

  std::vector<GuidePoint> run() {
    section_ = "1. training";
    batch();
    turn_on("gradient checkpointing", "training.enable_gradient_checkpointing", "every layer is computed again",
            {{"training.gradient_checkpointing_kwargs.use_reentrant", false}});
    fused_optimizer();
    mixed_precision();
    half_precision();
    point("empty the cache of the GPU more often", {},
          "what the allocator holds unused between steps is given back; what tensors need stays as it is");
    point("settings of the allocator", {},
          "they change how blocks are split, and no tensor; PYTORCH_CUDA_ALLOC_CONF is a variable of the job, and no key");
    paged_optimizer();
    section_ = "2. model";
    attention();
    point("compile the model", {}, "not supported yet: torch.compile of Transformers' models");
    turn_on("Liger's kernels", "model.enable_liger_kernel", "nothing");
    length();
    point("freeze layers", {}, "which ones is for you to say: model.freeze_layers takes their names");
    point("ring attention", {}, "Oumi has none: its guide announces it");
    section_ = "3. adapters";
    adapters();
    section_ = "4. FSDP";
    sharding();
    fsdp("parameters on the host", "fsdp.cpu_offload", true, "parameters, gradients and states cross the bus in every step");
    fsdp("no forward prefetch", "fsdp.forward_prefetch", false, "gathers no longer overlap");
    backward_prefetch();
    return std::move(out_);
  }

 private:
  void point(std::string text, std::vector<Edit> edits, std::string why) {
    GuidePoint& p = out_.emplace_back();
    p.section = section_;
    p.text = std::move(text);
    for (const Edit& edit : edits) p.overrides.push_back(argument_of(edit));
    p.why = std::move(why);
  }
  void turn_on(std::string text, std::string path, std::string cost, std::vector<Edit> beside = {}) {
    if (t_.flag(path)) return point(std::move(text), {}, kOn);
    beside.insert(beside.begin(), Edit{std::move(path), true});
    point(std::move(text), std::move(beside), std::move(cost));
  }

  void batch() {
    const std::string text = "a smaller batch, with as many more steps accumulated";
    const std::int64_t now = t_.whole("training.per_device_train_batch_size", 8),
                       steps = t_.whole("training.gradient_accumulation_steps", 1);
    if (now < 2) return point(text, {}, "it is one sample already");
    if (now % 2 != 0)
      return point(
          text,
          {{"training.per_device_train_batch_size", std::int64_t{1}}, {"training.gradient_accumulation_steps", steps * now}},
          "more micro-batches: a longer step");
    point(text, {{"training.per_device_train_batch_size", now / 2}, {"training.gradient_accumulation_steps", steps * 2}},
          "more micro-batches: a longer step");
  }
  void fused_optimizer() {
    const std::string name = t_.text("training.optimizer", "adamw_torch");
    if (name == "adamw_torch_fused") return point("a fused optimizer", {}, kOn);
    if (name != "adamw_torch") return point("a fused optimizer", {}, fmt::format("{} has no fused form", name));
    point("a fused optimizer", {{"training.optimizer", "adamw_torch_fused"}}, "nothing");
  }
  bool in_full() const {
    const std::string format = t_.text("model.torch_dtype_str", "auto");
    return format == "float32" || format == "f32" || format == "float";
  }
  void mixed_precision() {
    if (t_.text("training.mixed_precision_dtype", "NONE") != "NONE") return point("mixed precision", {}, kOn);
    if (!in_full()) return point("mixed precision", {}, "the model is in 16 bits, which needs less; Oumi takes either");
    point("mixed precision", {{"training.mixed_precision_dtype", "BF16"}}, "products in 16 bits");
  }
  void half_precision() {
    if (!in_full()) return point("a model in 16 bits", {}, kOn);
    std::vector<Edit> edits{{"model.torch_dtype_str", "bfloat16"}};
    if (t_.text("training.mixed_precision_dtype", "NONE") != "NONE") edits.push_back({"training.mixed_precision_dtype", "NONE"});
    point("a model in 16 bits", std::move(edits), "parameters, gradients and states in 16 bits: coarser updates");
  }
  void paged_optimizer() {
    const std::string name = t_.text("training.optimizer", "adamw_torch");
    if (name.starts_with("paged")) return point("Adam in pages", {}, kOn);
    point("Adam in pages", {{"training.optimizer", "paged_adamw_32bit"}},
          "states in 32 bits, which CUDA moves to the host where the GPU is full");
  }
  void attention() {
    const std::string now = t_.text("model.attn_implementation", "sdpa");
    if (now != "eager") return point("flash attention", {}, kOn);
    point("flash attention", {{"model.attn_implementation", "sdpa"}}, "nothing");
  }
  void length() {
    const std::int64_t now = t_.whole("model.model_max_length", 0);
    if (!takes_max_length(m_.trainer))
      return point("shorter samples", {}, fmt::format("the trainer {} passes model_max_length over", m_.trainer));
    if (now < 2) return point("shorter samples", {{"model.model_max_length", std::int64_t{512}}}, "what is longer is cut off");
    point("shorter samples", {{"model.model_max_length", now / 2}}, "what is longer is cut off");
  }
  void adapters() {
    if (t_.flag("training.use_peft")) return point("LoRA", {}, kOn);
    point("LoRA", {{"training.use_peft", true}, {"peft.lora_r", std::int64_t{16}}, {"peft.lora_alpha", std::int64_t{32}}},
          "another training: adapters in place of all parameters");
  }

  /// Nothing: FSDP's keys act. Otherwise why not.
  std::string no_fsdp() const {
    if (m_.engine == "fsdp1") return {};
    if (m_.engine == "deepspeed") return "DeepSpeed shards here";
    return "fsdp.enable_fsdp is off";
  }
  void sharding() {
    const std::string text = "FSDP with sharding_strategy FULL_SHARD";
    const bool whole = t_.text("fsdp.sharding_strategy") == "FULL_SHARD";
    const bool wraps = t_.text("fsdp.auto_wrap_policy") == "TRANSFORMER_BASED_WRAP";
    if (m_.engine == "deepspeed") return point(text, {}, no_fsdp());
    if (m_.gpus < 2) return point(text, {}, "there is one GPU: nobody to share with");
    if (m_.engine == "fsdp1" && whole && wraps) return point(text, {}, kOn);
    point(text,
          {{"fsdp.enable_fsdp", true},
           {"fsdp.sharding_strategy", "FULL_SHARD"},
           {"fsdp.auto_wrap_policy", "TRANSFORMER_BASED_WRAP"}},
          "every layer is gathered for its pass; without auto_wrap_policy, which the guide leaves out, all are gathered at once");
  }
  void fsdp(const char* text, const char* path, bool wanted, const char* cost) {
    if (const std::string why = no_fsdp(); !why.empty()) return point(text, {}, why);
    if (t_.flag(path) == wanted) return point(text, {}, kOn);
    point(text, {{path, wanted}}, cost);
  }
  void backward_prefetch() {
    const char* text = "no backward prefetch";
    if (const std::string why = no_fsdp(); !why.empty()) return point(text, {}, why);
    if (t_.text("fsdp.backward_prefetch", "BACKWARD_PRE") == "NO_PREFETCH") return point(text, {}, kOn);
    point(text, {{"fsdp.backward_prefetch", "NO_PREFETCH"}}, "gathers no longer overlap");
  }

  const OumiMeaning& m_;
  std::vector<ToldFact> unused_;
  Telling t_;
  std::string section_;
  std::vector<GuidePoint> out_;
};

}  // namespace

std::vector<GuidePoint> guide_points(const OumiText& text, const OumiMeaning& meaning) {
  if (text.kind != FileKind::training) return {};
  return GuideReader(text, meaning).run();
}

}  // namespace oomplan::oumi
