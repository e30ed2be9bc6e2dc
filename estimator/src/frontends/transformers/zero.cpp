#include "frontends/transformers/zero.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;

/// Numbers and flags that are ours by another name.
struct ZeroRow {
  std::string_view key, knob;
};
constexpr std::array<ZeroRow, 9> kSame{{
    {"allgather_bucket_size", "allgather_bucket"},
    {"reduce_bucket_size", "reduce_bucket"},
    {"stage3_prefetch_bucket_size", "prefetch_bucket"},
    {"stage3_param_persistence_threshold", "persistence_threshold"},
    {"stage3_max_live_parameters", "max_live"},
    {"stage3_max_reuse_distance", "max_reuse_distance"},
    {"sub_group_size", "sub_group"},
    {"overlap_comm", "overlap_comm"},
    {"contiguous_gradients", "contiguous_gradients"},
}};
/// Keys that change no memory of a step, or are read elsewhere.
constexpr std::array<std::string_view, 17> kQuiet{"stage",
                                                  "offload_optimizer",
                                                  "offload_param",
                                                  "reduce_scatter",
                                                  "allgather_partitions",
                                                  "stage3_gather_16bit_weights_on_model_save",
                                                  "stage3_gather_fp16_weights_on_model_save",
                                                  "load_from_fp32_weights",
                                                  "elastic_checkpoint",
                                                  "ignore_unused_parameters",
                                                  "round_robin_gradients",
                                                  "memory_efficient_linear",
                                                  "cpu_offload",
                                                  "cpu_offload_params",
                                                  "cpu_offload_use_pin_memory",
                                                  "use_multi_rank_bucket_allreduce",
                                                  "legacy_stage1"};
/// Keys of DeepSpeed that do, and are not described.
constexpr std::array<std::string_view, 12> kNotDescribed{"zero_hpz_partition_size",
                                                         "zero_quantized_weights",
                                                         "zero_quantized_nontrainable_weights",
                                                         "zero_quantized_gradients",
                                                         "zeropp_loco_param",
                                                         "mics_shard_size",
                                                         "mics_hierarchical_params_gather",
                                                         "override_module_apply",
                                                         "stage3_module_granularity_threshold",
                                                         "stage3_use_all_reduce_for_fetch_params",
                                                         "zenflow",
                                                         "super_offload"};

class Filler {
 public:
  Filler(const HfText& text, const Engine& engine, std::int64_t hidden) : text_(text), engine_(engine), hidden_(hidden) {}

  Zero run() {
    const Node* file = text_.root.find("deepspeed");
    if (file != nullptr && file->kind == Node::Kind::map)
      of_file();
    else
      of_accelerate();
    return std::move(out_);
  }

 private:
  std::string at(const std::string& path) const { return text_at(text_.root, path); }
  Place place(const std::string& path) const {
    const Node* n = text_.root.at(path);
    Place out = n == nullptr ? Place{} : n->origin.place;
    out.path = path;
    return out;
  }
  void put(std::string knob, std::string value, std::string path) {
    out_.settings.push_back({"trainer.zero." + std::move(knob), std::move(value), std::move(path)});
  }
  void refuse(const std::string& path, std::string what) {
    out_.problems.push_back({place(path),
                             at(path).empty() ? "" : fmt::format("'{}'", at(path)),
                             {},
                             {},
                             fmt::format("not supported yet: {}", what),
                             ProblemKind::not_supported});
  }
  void stop(const std::string& path, std::string found, std::string expected, std::string why) {
    out_.problems.push_back(
        {place(path), std::move(found), std::move(expected), {}, std::move(why), ProblemKind::refused_by_framework});
  }

  void set_stage(const std::string& written, const std::string& path) {
    const auto said = read_count(written);
    out_.stage = said ? *said.value : 0;
    out_.stage_path = path;
    if (out_.stage == 0)
      refuse(path, "DeepSpeed with ZeRO stage 0");
    else
      put("stage", written, path);
  }
  void offload(const std::string& path, const std::string& device, bool parameters) {
    if (device.empty() || device == "none") return;
    if (device != "cpu") return refuse(path, fmt::format("an offload to {}", device));
    if (!parameters) out_.offloads_optimizer = true;
    put(parameters ? "offload_parameters" : "offload_optimizer", "true", path);
  }

  // ---- accelerate's own keys: buckets are DeepSpeed's defaults

  void of_accelerate() {
    const std::string home = "accelerate.deepspeed_config.";
    const std::string stage = at(home + "zero_stage");
    set_stage(stage.empty() ? "2" : stage, home + "zero_stage");
    offload(home + "offload_optimizer_device", at(home + "offload_optimizer_device"), false);
    offload(home + "offload_param_device", at(home + "offload_param_device"), true);
    if (out_.stage == 3) put("overlap_comm", "true", home + "zero_stage");
    out_.format = engine_.mixed.value == "no" ? "fp32" : engine_.mixed.value;
    if (out_.format == "fp32") refuse(engine_.mixed.path, "DeepSpeed without its 16-bit mode");
  }

  // ---- a file of DeepSpeed's

  void of_file() {
    const std::string home = "deepspeed.zero_optimization.";
    const Node* zero = text_.root.at("deepspeed.zero_optimization");
    if (zero == nullptr || zero->kind != Node::Kind::map)
      return stop("deepspeed", "no zero_optimization", "a map of it",
                  "accelerate/utils/dataclasses.py: \"Please specify the ZeRO optimization config in the DeepSpeed config.\"");
    const std::string stage = at(home + "stage");
    set_stage(stage.empty() ? "0" : stage, home + "stage");
    for (const auto& entry : zero->entries) key(home + entry.key, entry.key);
    offload(home + "offload_optimizer.device", at(home + "offload_optimizer.device"), false);
    offload(home + "offload_param.device", at(home + "offload_param.device"), true);
    if (zero->find("overlap_comm") == nullptr && out_.stage == 3) put("overlap_comm", "true", home + "overlap_comm");
    formats();
    batches();
    out_.optimizer = at("deepspeed.optimizer.type");
    for (const char* section :
         {"activation_checkpointing", "autotuning", "sparse_attention", "compression_training", "tensor_parallel", "pipeline"})
      if (const Node* n = text_.root.at(fmt::format("deepspeed.{}", section)); n != nullptr && n->kind == Node::Kind::map)
        if (std::string(section) != "activation_checkpointing")
          refuse(fmt::format("deepspeed.{}", section), fmt::format("{} of DeepSpeed", section));
    for (const char* name : {"communication_data_type", "data_types.grad_accum_dtype"})
      if (!at(fmt::format("deepspeed.{}", name)).empty())
        refuse(fmt::format("deepspeed.{}", name), "another format of DeepSpeed's gradients");
  }

  void key(const std::string& path, const std::string& name) {
    const auto same = std::find_if(kSame.begin(), kSame.end(), [&](const ZeroRow& r) { return r.key == name; });
    if (same != kSame.end()) return number(path, *same);
    if (std::find(kNotDescribed.begin(), kNotDescribed.end(), name) != kNotDescribed.end()) {
      const std::string said = at(path);
      if (said != "false" && said != "1" && said != "-1" && !said.empty()) refuse(path, fmt::format("{} of DeepSpeed", name));
      return;
    }
    if (std::find(kQuiet.begin(), kQuiet.end(), name) != kQuiet.end()) return;
    std::vector<std::string> known;
    for (const ZeroRow& row : kSame) known.emplace_back(row.key);
    known.insert(known.end(), kQuiet.begin(), kQuiet.end());
    known.insert(known.end(), kNotDescribed.begin(), kNotDescribed.end());
    out_.problems.push_back(
        {place(path), "an unknown key", {}, nearest(name, known), "DeepSpeed has no such key of zero_optimization"});
  }
  void number(const std::string& path, const ZeroRow& row) {
    const std::string said = at(path);
    const bool truth = row.key == "overlap_comm" || row.key == "contiguous_gradients";
    if (said == "auto") return automatic(path, row);
    if (truth) return put(std::string(row.knob), said == "true" ? "true" : "false", path);
    const bool third = row.key.starts_with("stage3_");
    if (third && out_.stage != 3) return;
    if (row.key == "allgather_bucket_size" && out_.stage == 3) return;
    const Node* n = text_.root.at(path);
    const std::int64_t value = n->kind == Node::Kind::integer ? n->integer
                               : n->kind == Node::Kind::real  ? static_cast<std::int64_t>(n->real)
                                                              : scientific(said);
    if (value < 0) return stop(path, fmt::format("'{}'", said), "a number of elements", "DeepSpeed takes a whole number");
    put(std::string(row.knob), fmt::format("{}", value), path);
  }
  /// JSON has 5e8, and YAML reads that as a text.
  static std::int64_t scientific(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    return text.empty() || *end != '\0' || value < 0 || value > 9e18 ? -1 : static_cast<std::int64_t>(value);
  }
  /// HfTrainerDeepSpeedConfig.trainer_config_finalize
  void automatic(const std::string& path, const ZeroRow& row) {
    const bool third = row.key == "stage3_prefetch_bucket_size" || row.key == "stage3_param_persistence_threshold";
    if (third && out_.stage != 3) return;
    if (row.key != "reduce_bucket_size" && !third)
      return stop(path, "'auto'", "a value",
                  fmt::format("Transformers fills reduce_bucket_size, stage3_prefetch_bucket_size and "
                              "stage3_param_persistence_threshold alone, and DeepSpeed takes no 'auto'"));
    if (hidden_ <= 0) return;
    const std::int64_t square = hidden_ * hidden_;
    const std::int64_t value = row.key == "reduce_bucket_size" ? square
                               : row.key == "stage3_prefetch_bucket_size"
                                   ? static_cast<std::int64_t>(0.9 * static_cast<double>(hidden_) * static_cast<double>(hidden_))
                                   : 10 * hidden_;
    put(std::string(row.knob), fmt::format("{}", value), path);
  }

  bool enabled(const std::string& section, const std::string& of_trainer) const {
    const std::string said = at(fmt::format("deepspeed.{}.enabled", section));
    return said == "auto" ? engine_.mixed.value == of_trainer : said == "true";
  }
  void formats() {
    out_.format = enabled("bf16", "bf16") ? "bf16" : enabled("fp16", "fp16") ? "fp16" : "fp32";
    if (out_.format == "fp32") refuse("deepspeed", "DeepSpeed without its 16-bit mode");
    for (const auto& [section, own] : {std::pair{"bf16", "bf16"}, std::pair{"fp16", "fp16"}}) {
      const std::string path = fmt::format("deepspeed.{}.enabled", section), said = at(path);
      if (said.empty() || said == "auto") continue;
      const bool trainer = engine_.mixed.value == own && engine_.mixed.path == own;
      if ((said == "true") != trainer)
        stop(path, said, fmt::format("{}, or \"auto\"", trainer ? "true" : "false"),
             fmt::format("{}: ds {}.enabled={} vs hf {}|{}_full_eval={}", kMismatch, section, said, own, own,
                         trainer ? "True" : "False"));
    }
  }
  static constexpr std::string_view kMismatch = "Transformers itself stops: its arguments mismatch";
  void match(const std::string& key, std::int64_t of_trainer, const char* argument) {
    const std::string path = "deepspeed." + key;
    const Node* n = text_.root.at(path);
    if (n == nullptr || n->kind != Node::Kind::integer || n->integer == of_trainer) return;
    stop(path, fmt::format("{}", n->integer), fmt::format("{}, or \"auto\"", of_trainer),
         fmt::format("{}: ds {}={} vs hf {}={}", kMismatch, key, n->integer, argument, of_trainer));
  }
  void batches() {
    const auto whole = [&](const char* key, std::int64_t otherwise) {
      const Node* n = text_.root.find(key);
      return n != nullptr && n->kind == Node::Kind::integer ? n->integer : otherwise;
    };
    const std::int64_t batch = whole("per_device_train_batch_size", 8), steps = whole("gradient_accumulation_steps", 1);
    match("train_micro_batch_size_per_gpu", batch, "per_device_train_batch_size");
    match("gradient_accumulation_steps", steps, "gradient_accumulation_steps");
    if (text_.world.gpus() > 0) match("train_batch_size", text_.world.gpus() * batch * steps, "train_batch_size (calculated)");
  }

  const HfText& text_;
  const Engine& engine_;
  std::int64_t hidden_;
  Zero out_;
};

}  // namespace

Zero zero_of(const HfText& text, const Engine& engine, std::int64_t hidden) { return Filler(text, engine, hidden).run(); }

}  // namespace oomplan::transformers
