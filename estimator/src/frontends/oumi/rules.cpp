#include "frontends/oumi/rules.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/oumi/deepspeed.hpp"
#include "frontends/trainers/names.hpp"
#include "units/enums.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

constexpr std::string_view kConfigFile = "training_config.py", kTrainingFile = "params/training_params.py",
                           kDeepSpeedFile = "params/deepspeed_params.py", kGrpoFile = "params/grpo_params.py";

class Rules {
 public:
  Rules(const OumiText& text, const OumiMeaning& m) : text_(text), m_(m), t_(text.root, unused_, "") {}

  std::vector<Problem> run() {
    const std::string at(inference_path(text_.kind));
    if (!t_.has(at + "model.model_name") && (at.empty() || t_.has("inference_config")))
      refuse(at + "model.model_name", "nothing", "a model", "Oumi asks for it");
    dtype();
    if (text_.kind != FileKind::training) return std::move(out_);
    training();
    engines();
    precision();
    packed();
    kernels();
    grpo();
    return std::move(out_);
  }

 private:
  void refuse(std::string_view path, std::string found, std::string expected, std::string why) {
    Place place{{}, 0, 0, std::string(path)};
    if (const Node* n = t_.at(path)) {
      place = n->origin.place;
      place.path = path;
    }
    out_.push_back({place, std::move(found), std::move(expected), {}, std::move(why), ProblemKind::refused_by_framework});
  }
  std::string as_written(std::string_view path) const {
    const Node* n = t_.at(path);
    return n == nullptr ? "nothing" : compose::describe(*n);
  }
  static std::string in(std::string_view file) { return fmt::format("Oumi itself asks for it (src/oumi/core/configs/{})", file); }
  bool trl() const { return m_.trainer.starts_with("TRL_"); }

  void dtype() {
    constexpr std::array<std::string_view, 11> kNames{"auto",    "float32", "f32",  "float",   "bfloat16", "bf16",
                                                      "float16", "f16",     "half", "float64", "f64"};
    const std::string written = t_.text("model.torch_dtype_str", "auto");
    if (std::find(kNames.begin(), kNames.end(), written) != kNames.end()) return;
    const std::vector<std::string> names(kNames.begin(), kNames.end());
    refuse("model.torch_dtype_str", fmt::format("'{}'", written), list_of(names),
           "no format of that name (src/oumi/utils/torch_utils.py: get_torch_dtype)");
    out_.back().nearest = nearest(written, names);
  }

  void training() {
    if (t_.whole("training.gradient_accumulation_steps", 1) < 1)
      refuse("training.gradient_accumulation_steps", as_written("training.gradient_accumulation_steps"), "1 or more",
             in(kTrainingFile));
    if (t_.real("training.max_grad_norm", 1) < 0)
      refuse("training.max_grad_norm", as_written("training.max_grad_norm"), "0 or more", in(kTrainingFile));
    if (t_.whole("training.max_steps", -1) <= 0 && t_.whole("training.num_train_epochs", 3) <= 0)
      refuse("training.max_steps", as_written("training.max_steps"), "max_steps or num_train_epochs above 0", in(kTrainingFile));
    if (t_.whole("training.per_device_train_batch_size", 8) < 1)
      refuse("training.per_device_train_batch_size", as_written("training.per_device_train_batch_size"), "1 or more",
             "a batch has a sample at least");
    if (t_.flag("model.compile")) refuse("model.compile", "true", "training.compile in place of it", in(kConfigFile));
    if (m_.trainer == "VERL_GRPO") {
      const Node* sets = t_.at("data.validation.datasets");
      if (sets == nullptr || sets->items.empty())
        refuse("data.validation", "no dataset", "one at least, beside trainer_type VERL_GRPO", in(kConfigFile));
    }
  }

  void engines() {
    const bool fsdp = t_.flag("fsdp.enable_fsdp"), deepspeed = t_.flag("deepspeed.enable_deepspeed");
    if (fsdp && deepspeed) refuse("deepspeed.enable_deepspeed", "true", "false beside fsdp.enable_fsdp", in(kConfigFile));
    const Node* original = t_.at("fsdp.use_orig_params");
    if (t_.flag("training.compile") && original != nullptr && original->kind == Node::Kind::boolean && !original->boolean)
      refuse("fsdp.use_orig_params", "false", "true beside training.compile", in(kConfigFile));
    if (deepspeed && trl() && t_.text("deepspeed.train_batch_size") != "auto")
      refuse("deepspeed.train_batch_size", as_written("deepspeed.train_batch_size"), "auto beside a trainer of TRL",
             in(kConfigFile));
    if (deepspeed)
      for (Problem& p : deepspeed_mismatches(text_)) out_.push_back(std::move(p));
    const std::string stage = t_.text("deepspeed.zero_stage", "ZERO_0");
    if (t_.has("deepspeed.offload_param") && stage != "ZERO_3")
      refuse("deepspeed.offload_param", "an offload", "zero_stage ZERO_3 beside it", in(kDeepSpeedFile));
    if (t_.has("deepspeed.offload_optimizer") && stage == "ZERO_0")
      refuse("deepspeed.offload_optimizer", "an offload", "zero_stage ZERO_1, ZERO_2 or ZERO_3 beside it", in(kDeepSpeedFile));
  }

  void precision() {
    const std::string mixed = t_.text("training.mixed_precision_dtype", "NONE"),
                      stored = t_.text("model.torch_dtype_str", "auto");
    if (mixed != "NONE" && stored != "float32" && stored != "f32" && stored != "float")
      refuse("model.torch_dtype_str", fmt::format("'{}'", stored), "float32 beside training.mixed_precision_dtype",
             "Oumi itself asks for it: a model is loaded in fp32 for mixed precision (src/oumi/core/configs/training_config.py)");
    const std::string policy = t_.text("fsdp.mixed_precision");
    if (t_.flag("fsdp.enable_fsdp") && !policy.empty() && policy != "bf16" && policy != "fp16")
      refuse("fsdp.mixed_precision", fmt::format("'{}'", policy), "bf16 or fp16", "src/oumi/core/distributed.py knows no other");
  }

  /// A packed base under FSDP is flattened with the rest of the model.
  void packed() {
    if (!t_.flag("fsdp.enable_fsdp") || !t_.flag("peft.q_lora") || m_.trainer == "OUMI") return;
    const std::string model = t_.text("model.torch_dtype_str", "auto"), stored = t_.text("peft.bnb_4bit_quant_storage", "uint8");
    constexpr std::string_view kWhy = "Oumi itself asks for it (src/oumi/train.py)";
    if (model == "auto")
      refuse("model.torch_dtype_str", "'auto'", "a format beside fsdp.enable_fsdp and peft.q_lora", std::string(kWhy));
    else if (trainers::format_named(model) != trainers::format_named(stored))
      refuse("peft.bnb_4bit_quant_storage", fmt::format("'{}'", stored),
             fmt::format("model.torch_dtype_str's '{}' beside fsdp.enable_fsdp", model), std::string(kWhy));
  }

  void kernels() {
    if (t_.flag("model.enable_liger_kernel") && (m_.trainer == "TRL_KTO" || m_.trainer == "VERL_GRPO"))
      refuse("model.enable_liger_kernel", "true", fmt::format("false beside trainer_type {}", m_.trainer), in(kConfigFile));
  }

  void grpo() {
    for (const std::string_view path :
         {"training.grpo.max_prompt_length", "training.grpo.max_completion_length", "training.grpo.num_generations"})
      if (t_.has(path) && t_.whole(path, 1) <= 0) refuse(path, as_written(path), "1 or more", in(kGrpoFile));
    const double heat = t_.real("training.grpo.temperature", 0.9);
    if (heat < 0 || heat > 1)
      refuse("training.grpo.temperature", as_written("training.grpo.temperature"), "0 to 1", in(kGrpoFile));
  }

  const OumiText& text_;
  const OumiMeaning& m_;
  std::vector<ToldFact> unused_;
  Telling t_;
  std::vector<Problem> out_;
};

}  // namespace

std::vector<Problem> refusals_of(const OumiText& text, const OumiMeaning& meaning) { return Rules(text, meaning).run(); }

}  // namespace oomplan::oumi
