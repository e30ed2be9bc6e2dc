#include "frontends/oumi/deepspeed.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/telling.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

/// `stages`: those for which to_deepspeed hands the key on.
struct ZeroRow {
  std::string_view key, knob;
  int first, last;
};
constexpr std::array<ZeroRow, 9> kZero{{{"reduce_bucket_size", "reduce_bucket", 1, 3},
                                        {"overlap_comm", "overlap_comm", 1, 3},
                                        {"contiguous_gradients", "contiguous_gradients", 1, 3},
                                        {"allgather_bucket_size", "allgather_bucket", 1, 2},
                                        {"stage3_prefetch_bucket_size", "prefetch_bucket", 3, 3},
                                        {"stage3_param_persistence_threshold", "persistence_threshold", 3, 3},
                                        {"stage3_max_live_parameters", "max_live", 3, 3},
                                        {"stage3_max_reuse_distance", "max_reuse_distance", 3, 3},
                                        {"sub_group_size", "sub_group", 3, 3}}};

std::string path_of(std::string_view key) { return fmt::format("deepspeed.{}", key); }

class Writer {
 public:
  Writer(const OumiText& text, const std::string& stored, const Catalog* catalog, OumiSettings& s, std::vector<Note>& notes)
      : stored_(stored), catalog_(catalog), s_(s), notes_(notes), t_(text.root, unused_, "") {}

  void run() {
    if (t_.has("deepspeed.deepspeed_config_path"))
      return s_.refuse("deepspeed.deepspeed_config_path", "a file of DeepSpeed's beside Oumi's");
    const std::string stage = t_.text("deepspeed.zero_stage", "ZERO_0");
    if (stage == "ZERO_0") return s_.refuse("deepspeed.zero_stage", "DeepSpeed with ZeRO stage 0");
    stage_ = stage.back() - '0';
    put("stage", fmt::format("{}", stage_), "deepspeed.zero_stage");
    for (const ZeroRow& row : kZero)
      if (stage_ >= row.first && stage_ <= row.last) key(row);
    offload("offload_optimizer", "offload_optimizer");
    offload("offload_param", "offload_parameters");
    formats();
  }

 private:
  void put(std::string_view knob, std::string value, std::string_view path) {
    s_.put(fmt::format("trainer.zero.{}", knob), std::move(value), s_.origin(path));
  }

  void key(const ZeroRow& row) {
    const std::string path = path_of(row.key);
    const Node* n = t_.at(path);
    if (n == nullptr) return;
    if (n->kind == Node::Kind::boolean) return put(row.knob, n->boolean ? "true" : "false", path);
    if (n->kind == Node::Kind::integer) return put(row.knob, fmt::format("{}", n->integer), path);
    if (n->text == "auto") return automatic(row, path);
    s_.refuse(path, "this number of DeepSpeed's");
  }
  /// HfTrainerDeepSpeedConfig.trainer_config_finalize
  void automatic(const ZeroRow& row, const std::string& path) {
    const std::int64_t hidden = hidden_size();
    if (hidden <= 0) return;
    const auto square = static_cast<double>(hidden) * static_cast<double>(hidden);
    const double value = row.knob == "reduce_bucket"     ? square
                         : row.knob == "prefetch_bucket" ? 0.9 * square
                                                         : 10 * static_cast<double>(hidden);
    put(row.knob, fmt::format("{}", static_cast<std::int64_t>(value)), path);
  }
  std::int64_t hidden_size() const {
    if (catalog_ == nullptr) return 0;
    try {
      return catalog_->model(t_.text("model.model_name")).architecture->hidden;
    } catch (const InputError&) {
      return 0;  // told where it is looked up for the job
    }
  }

  void offload(std::string_view key, std::string_view knob) {
    const std::string path = path_of(key);
    const Node* n = t_.at(path);
    if (n == nullptr || n->kind != Node::Kind::map) return;
    const std::string device = t_.text(path + ".device", "CPU");
    if (device != "CPU") return s_.refuse(path + ".device", fmt::format("an offload to {}", device));
    put(knob, "true", path);
  }

  /// `bf16.enabled` and `fp16.enabled` are "auto" or absent, so that mixed_precision_dtype alone decides, not `precision`: Oumi
  /// hands nothing else on as bf16 and fp16 of TrainingArguments.
  void formats() {
    const std::string mixed = t_.text("training.mixed_precision_dtype", "NONE"), by = "training.mixed_precision_dtype";
    const bool plain = mixed == "NONE";
    const std::string format = plain ? stored_ : mixed == "FP16" ? "fp16" : "bf16";
    s_.put("trainer.precision.storage", format, s_.origin(plain ? "model.torch_dtype_str" : by));
    s_.put("trainer.precision.compute", format, s_.origin(by));
    s_.put("trainer.precision.reduce", plain ? "fp32" : format, s_.origin(by));
    if (plain && format != "fp32")
      notes_.push_back(
          {Note::Level::warning, s_.place("deepspeed.precision"),
           fmt::format("DeepSpeed runs without its 16-bit mode: its bf16 and fp16 are what mixed_precision_dtype is, "
                       "NONE; gradients of the model in {} are reduced and added up in fp32",
                       format)});
    if (!plain && t_.flag("training.use_peft"))
      s_.put("trainer.lora.format", "storage", s_.by_code("DeepSpeed's 16-bit mode casts adapters too"));
    load(plain);
    if (plain) without_16_bits(format);
  }
  void without_16_bits(const std::string& format) {
    const std::string of = fmt::format("a model in {} without DeepSpeed's 16-bit mode (mixed_precision_dtype NONE)", format);
    if (format == "fp32") return s_.refuse("model.torch_dtype_str", of);
    if (stage_ == 1) s_.refuse("deepspeed.zero_stage", fmt::format("ZeRO stage 1 of {}", of));
    if (stage_ == 2 && t_.has("deepspeed.offload_optimizer"))
      s_.refuse("deepspeed.offload_optimizer", fmt::format("the optimizer of ZeRO stage 2 on the host, of {}", of));
    if (t_.flag("training.use_peft")) s_.refuse("training.use_peft", fmt::format("adapters of {}", of));
  }
  /// src/oumi/train.py builds the model in front of the trainer, whose arguments would make it in pieces.
  void load(bool plain) {
    if (stage_ < 3 || t_.text("model.device_map") != "auto") return;
    put("load", plain ? "whole" : "whole_fp32", "model.device_map");
    notes_.push_back(
        {Note::Level::info, s_.place("model.device_map"), "each GPU loads the whole model before ZeRO splits it (phase load)"});
  }

  const std::string& stored_;
  const Catalog* catalog_;
  OumiSettings& s_;
  std::vector<Note>& notes_;
  std::vector<ToldFact> unused_;
  Telling t_;
  std::int64_t stage_ = 0;
};

}  // namespace

void deepspeed_settings(const OumiText& text, const std::string& stored, const Catalog* catalog, OumiSettings& settings,
                        std::vector<Note>& notes) {
  Writer(text, stored, catalog, settings, notes).run();
}

std::vector<Problem> deepspeed_mismatches(const OumiText& text) {
  std::vector<ToldFact> unused;
  const Telling t(text.root, unused, "");
  std::vector<Problem> out;
  const auto match = [&](const char* key, std::int64_t of_trainer, const char* argument) {
    const Node* n = t.at(path_of(key));
    if (n == nullptr || n->kind != Node::Kind::integer || n->integer == of_trainer || of_trainer <= 0) return;
    Place place = n->origin.place;
    place.path = path_of(key);
    out.push_back({place,
                   fmt::format("{}", n->integer),
                   fmt::format("{}, or auto", of_trainer),
                   {},
                   fmt::format("Transformers itself stops: ds {}={} vs hf {}={}", key, n->integer, argument, of_trainer),
                   ProblemKind::refused_by_framework});
  };
  const std::int64_t sequences = t.whole("training.per_device_train_batch_size", 8),
                     steps = t.whole("training.gradient_accumulation_steps", 1);
  match("train_micro_batch_size_per_gpu", sequences, "per_device_train_batch_size");
  match("gradient_accumulation_steps", steps, "gradient_accumulation_steps");
  match("train_batch_size", text.world.gpus() * sequences * steps, "train_batch_size (calculated)");
  return out;
}

}  // namespace oomplan::oumi
