#include "frontends/oumi/adapters.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "frontends/trainers/names.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

std::vector<std::string> items(const Telling& t, std::string_view path) {
  std::vector<std::string> out;
  if (const Node* n = t.at(path))
    for (const Node& item : n->items) out.push_back(item.text);
  return out;
}

class Adapters {
 public:
  Adapters(OumiSettings& s, const Telling& t, const OumiMeaning& m) : s_(s), t_(t), m_(m) {}

  void put(bool casts, bool mixed) {
    s_.copy("trainer.lora.rank", "peft.lora_r");
    s_.put("trainer.lora.alpha", fmt::format("{}", t_.whole("peft.lora_alpha", 8)), s_.origin("peft.lora_alpha"));
    if (t_.real("peft.lora_dropout", 0) > 0)
      s_.put("trainer.lora.dropout", fmt::format("{}", t_.real("peft.lora_dropout", 0)), s_.origin("peft.lora_dropout"));
    names("trainer.lora.targets", "peft.lora_target_modules");
    names("trainer.lora.modules_to_save", "peft.lora_modules_to_save");
    excluded();
    if (!items(t_, "peft.lora_target_parameters").empty())
      s_.refuse("peft.lora_target_parameters", "lora_target_parameters of adapters");
    if (t_.text("peft.lora_bias", "none") != "none") s_.refuse("peft.lora_bias", "biases that are trained beside adapters");
    if (t_.flag("peft.q_lora")) packed(casts, mixed);
  }

 private:
  void names(const char* knob, std::string_view path) {
    const std::vector<std::string> all = items(t_, path);
    if (all.empty()) return;
    const bool linear = all == std::vector<std::string>{"all-linear"};
    s_.put(knob, linear ? "all-linear" : fmt::format("[{}]", fmt::join(all, ", ")), s_.origin(path));
  }
  /// They become one expression for whole names (src/oumi/core/configs/params/peft_params.py to_lora).
  void excluded() {
    const std::vector<std::string> all = items(t_, "peft.lora_exclude_modules");
    if (!all.empty())
      s_.put("trainer.lora.exclude", fmt::format("({})", fmt::join(all, ")|(")), s_.origin("peft.lora_exclude_modules"));
  }
  void packed(bool casts, bool mixed) {
    const std::int64_t bits = t_.whole("peft.q_lora_bits", 4);
    if (bits != 4 && bits != 8) return s_.refuse("peft.q_lora_bits", fmt::format("a base of {} bits", bits));
    s_.put("trainer.lora.base", bits == 8 ? "int8" : "nf4", s_.origin("peft.q_lora_bits"));  // fp4 packs as nf4 does
    formats(casts, mixed);
    if (bits == 8) return;
    s_.flag("trainer.lora.base_double_quant", "peft.use_bnb_nested_quant");
    s_.put("trainer.lora.base_compute", trainers::format_named(t_.text("peft.bnb_4bit_compute_dtype", "float32")),
           s_.origin("peft.bnb_4bit_compute_dtype"));
  }
  /// Under FSDP Oumi casts everything back to the model's format before it trains; of what accelerate then casts to fp32 for
  /// mixed precision adapters are all.
  void formats(bool casts, bool mixed) {
    if (m_.engine == "fsdp1")
      return s_.put("trainer.lora.format", mixed ? "fp32" : "storage",
                    OumiSettings::by_code("src/oumi/train.py: coerce_model_to_dtype"));
    s_.put("trainer.lora.prepare_kbit", "true", OumiSettings::by_code("src/oumi/builders/models.py: build_peft_model"));
    if (casts) s_.put("trainer.lora.format", "storage", OumiSettings::by_code("trl/trainer/sft_trainer.py, 0.26 and later"));
  }

  OumiSettings& s_;
  const Telling& t_;
  const OumiMeaning& m_;
};

}  // namespace

void put_adapters(OumiSettings& s, const Telling& t, const OumiMeaning& m, bool casts, bool mixed) {
  Adapters(s, t, m).put(casts, mixed);
}

}  // namespace oomplan::oumi
