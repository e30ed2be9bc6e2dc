#include "frontends/transformers/rules.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "units/enums.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;

constexpr std::string_view kArgumentsFile = "transformers/training_args.py", kTrainerFile = "transformers/trainer.py",
                           kSftFile = "trl/trainer/sft_trainer.py", kModelFile = "trl/trainer/model_config.py",
                           kPluginFile = "accelerate/utils/dataclasses.py";

class Rules {
 public:
  Rules(const HfText& text, const HfMeaning& m) : text_(text), m_(m), e_(m.engine), t_(text.root, unused_, "") {}

  std::vector<Problem> run() {
    counts();
    formats();
    evaluation();
    engines();
    fsdp();
    adapters();
    if (text_.trainer->name == "sft") sft();
    return std::move(out_);
  }

 private:
  void refuse(const std::string& path, std::string found, std::string expected, std::string_view file, std::string_view words) {
    Place place{{}, 0, 0, path};
    if (const Node* n = t_.at(path)) {
      place = n->origin.place;
      place.path = path;
    }
    out_.push_back({place,
                    std::move(found),
                    std::move(expected),
                    {},
                    fmt::format("{}: \"{}\"", file, words),
                    ProblemKind::refused_by_framework});
  }
  bool is(const std::string& path) const { return t_.flag(path); }

  void counts() {
    for (const char* key : {"per_device_train_batch_size", "gradient_accumulation_steps"})
      if (t_.whole(key, 1) < 1)
        refuse(key, fmt::format("{}", t_.whole(key, 1)), "1 or more", "torch/utils/data",
               "batch_size should be a positive integer value");
    if (const Node* n = t_.at("torch_empty_cache_steps"); n != nullptr && n->kind == Node::Kind::integer && n->integer < 1)
      refuse("torch_empty_cache_steps", fmt::format("{}", n->integer), "1 or more, or nothing", kArgumentsFile,
             "`torch_empty_cache_steps` must be an integer bigger than 0");
    if (t_.whole("dataloader_num_workers", 0) == 0 && t_.has("dataloader_prefetch_factor"))
      refuse("dataloader_prefetch_factor", fmt::format("{}", t_.whole("dataloader_prefetch_factor", 0)),
             "dataloader_num_workers above 0 beside it", kArgumentsFile,
             "--dataloader_prefetch_factor can only be set when data is loaded in a different process");
    if (t_.text("logging_strategy", "steps") == "steps" && t_.has("logging_steps") && t_.real("logging_steps", 1) == 0)
      refuse("logging_steps", "0", "above 0, or logging_strategy: no", kArgumentsFile,
             "logging strategy steps requires non-zero --logging_steps");
    const double ratio = t_.real("warmup_ratio", 0);
    if (ratio < 0 || ratio > 1)
      refuse("warmup_ratio", fmt::format("{}", ratio), "0 to 1", kArgumentsFile, "warmup_ratio must lie in range [0,1]");
  }

  void formats() {
    if (is("fp16") && is("bf16"))
      refuse("fp16", "true beside bf16", "one of them", kArgumentsFile, "At most one of fp16 and bf16 can be True, but not both");
    if (is("fp16_full_eval") && is("bf16_full_eval"))
      refuse("fp16_full_eval", "true beside bf16_full_eval", "one of them", kArgumentsFile,
             "At most one of fp16 and bf16 can be True for full eval, but not both");
    const bool alone = e_.name.value == "single" || e_.name.value == "ddp";
    if (e_.mixed.value == "fp16" && m_.loaded == "fp16" && alone && !m_.adapters)
      refuse(m_.loaded_by, "float16 beside fp16", "float32 beside it", "torch/amp/grad_scaler.py",
             "Attempting to unscale FP16 gradients.");
  }

  void evaluation() {
    const std::string eval = t_.text(t_.knows("eval_strategy") ? "eval_strategy" : "evaluation_strategy", "no"),
                      save = t_.text("save_strategy", "steps");
    if (is("load_best_model_at_end") && save != "best" && eval != save)
      refuse("load_best_model_at_end", fmt::format("true with eval_strategy {} and save_strategy {}", eval, save),
             "the same strategy for both", kArgumentsFile,
             "--load_best_model_at_end requires the save and eval strategy to match");
    if (t_.text("lr_scheduler_type") == "reduce_lr_on_plateau" && eval == "no")
      refuse("lr_scheduler_type", "reduce_lr_on_plateau", "an eval_strategy beside it", kArgumentsFile,
             "lr_scheduler_type reduce_lr_on_plateau requires an eval strategy");
    const bool wrapped = e_.name.value == "deepspeed" || e_.name.value.starts_with("fsdp");
    if (is("save_only_model") && wrapped && is("load_best_model_at_end"))
      refuse("save_only_model", "true", "false beside load_best_model_at_end", kTrainerFile,
             fmt::format("{} can't be used with `save_only_model` along with `load_best_model_at_end`.",
                         e_.name.value == "deepspeed" ? "DeepSpeed" : "FSDP"));
  }

  void engines() {
    const Node* file = text_.root.find("deepspeed");
    const bool deepspeed = file != nullptr && file->kind == Node::Kind::map && text_.says("deepspeed");
    const Node* fsdp = text_.root.find("fsdp");
    const bool shards = fsdp != nullptr && ((fsdp->kind == Node::Kind::text && !fsdp->text.empty() && fsdp->text != "false") ||
                                            !fsdp->items.empty() || fsdp->boolean);
    if (deepspeed && shards)
      refuse("fsdp", compose::describe(*fsdp), "either fsdp or deepspeed", kTrainerFile,
             "Using --fsdp xxx together with --deepspeed is not possible, deactivate one of those flags.");
    if (shards && !text_.world.distributed)
      refuse("fsdp", compose::describe(*fsdp), "torchrun or accelerate launch", kTrainerFile,
             "Using fsdp only works in distributed training.");
    const std::string stage = text_at(text_.root, "deepspeed.zero_optimization.stage");
    if (is("auto_find_batch_size") && e_.name.value == "deepspeed" && stage == "3")
      refuse("auto_find_batch_size", "true", "false beside ZeRO stage 3", kTrainerFile,
             "`auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3.");
    if (const Node* device = t_.at("model_init_kwargs.device_map");
        device != nullptr && device->text == "auto" && text_.world.distributed && m_.gpus > 1)
      refuse("model_init_kwargs.device_map", "'auto'", "nothing under several processes", "accelerate/accelerator.py",
             "You can't train a model that has been loaded with `device_map='auto'` in any distributed mode.");
  }

  void fsdp() {
    if (!e_.name.value.starts_with("fsdp")) return;
    const Fsdp& f = e_.fsdp;
    const std::string key = checkpointing_key(text_);
    if (f.checkpoints.on() && is(key))
      refuse(f.checkpoints.path, fmt::format("true beside {}", key), fmt::format("{}: false beside it", key), kTrainerFile,
             "The activation_checkpointing in FSDP config and the gradient_checkpointing in training arg can't be set to True "
             "simultaneously.");
    const std::vector<std::string> policies{"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"};
    if (std::find(policies.begin(), policies.end(), f.wrap.value) == policies.end()) {
      refuse(f.wrap.path, fmt::format("'{}'", f.wrap.value), list_of(policies), kPluginFile, "Invalid auto wrap policy");
      out_.back().nearest = nearest(f.wrap.value, policies);
    }
    of_first(f);
    if (f.version == 2 && f.forward.on() && f.home == "fsdp_config")
      refuse(f.forward.path, "true", "nothing beside version 2", kPluginFile,
             "forward_prefetch is not yet implemented in FSDP2, set to None or use `fsdp_version=1`");
    if (f.offload_checkpoints && f.version != 2)
      refuse(f.home + ".fsdp_activation_checkpointing_offload", "true", "fsdp_version 2 beside it", kPluginFile,
             "`activation_checkpointing_offload=True` requires `fsdp_version=2`.");
    const bool loads = text_at(text_.root, "accelerate.fsdp_config.fsdp_cpu_ram_efficient_loading") == "true";
    if (loads && text_at(text_.root, "accelerate.fsdp_config.fsdp_sync_module_states") == "false")
      refuse("accelerate.fsdp_config.fsdp_sync_module_states", "false", "true beside fsdp_cpu_ram_efficient_loading",
             "accelerate/utils/launch.py",
             "When using `--fsdp_cpu_ram_efficient_loading` set `--fsdp_sync_module_states` to `True`");
    options();
  }
  void of_first(const Fsdp& f) {
    const std::vector<std::string> strategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
    if (f.version == 1 && std::find(strategies.begin(), strategies.end(), f.strategy.value) == strategies.end()) {
      refuse(f.strategy.path, fmt::format("'{}'", f.strategy.value), list_of(strategies), "torch/distributed/fsdp",
             "no such ShardingStrategy");
      out_.back().nearest = nearest(f.strategy.value, strategies);
    }
    const std::vector<std::string> prefetch{"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"};
    if (f.version == 1 && std::find(prefetch.begin(), prefetch.end(), f.backward.value) == prefetch.end()) {
      refuse(f.backward.path, fmt::format("'{}'", f.backward.value), list_of(prefetch), "torch/distributed/fsdp",
             "no such BackwardPrefetch");
      out_.back().nearest = nearest(f.backward.value, prefetch);
    }
  }
  /// Words of --fsdp.
  void options() {
    const Node* n = text_.root.find("fsdp");
    if (n == nullptr || n->kind != Node::Kind::text || n->text.empty() || n->text == "true" || n->text == "false") return;
    const std::vector<std::string> known{"full_shard",         "shard_grad_op", "no_shard", "hybrid_shard",
                                         "hybrid_shard_zero2", "offload",       "auto_wrap"};
    bool strategy = false, second = false;
    for (std::size_t at = 0; at < n->text.size();) {
      const std::size_t end = std::min(n->text.find(' ', at), n->text.size());
      const std::string word = n->text.substr(at, end - at);
      at = end + 1;
      if (word.empty()) continue;
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        refuse("fsdp", fmt::format("'{}'", word), list_of(known), "transformers/trainer_utils.py",
               fmt::format("{} is not a valid FSDPOption", word));
        out_.back().nearest = nearest(word, known);
      } else if (word.ends_with("shard") || word == "shard_grad_op" || word.starts_with("hybrid")) {
        second = second || strategy;
        strategy = true;
      }
    }
    if (second)
      refuse("fsdp", compose::describe(*n), "one strategy", kArgumentsFile,
             "`--fsdp full_shard` is not compatible with `--fsdp shard_grad_op`.");
    if (n->text == "offload")
      refuse("fsdp", "'offload'", "full_shard or shard_grad_op beside it", kArgumentsFile,
             "`--fsdp offload` can't work on its own.");
  }

  void adapters() {
    if (is("load_in_4bit") && is("load_in_8bit"))
      refuse("load_in_8bit", "true beside load_in_4bit", "one of them", kModelFile,
             "You can't use 8 bit and 4 bit precision at the same time");
    if (m_.adapters && t_.whole("lora_r", 16) < 1)
      refuse("lora_r", fmt::format("{}", t_.whole("lora_r", 16)), "1 or more", "peft/tuners/lora",
             "`r` should be a positive integer value");
    if (m_.packed && !m_.adapters)
      refuse(is("load_in_4bit") ? "load_in_4bit" : "load_in_8bit", "true", "use_peft: true beside it", kTrainerFile,
             "You cannot perform fine-tuning on purely quantized models.");
  }

  void sft() {
    const bool first = trl_from(text_.release, "1.0.0");
    const Node* cap = t_.at(t_.has("max_seq_length") ? "max_seq_length" : "max_length");
    const bool capped = cap != nullptr && cap->kind == Node::Kind::integer;
    if (is("packing") && !capped && trl_from(text_.release, "0.17.0"))
      refuse(m_.cap, "nothing", "a length beside packing", kSftFile, "When packing is enabled, `max_length` can't be `None`.");
    if (first && is("padding_free") && !is("packing") && capped)
      refuse("padding_free", "true", "packing: true, or max_length: null", kSftFile,
             "When `padding_free=True` without packing, `max_length` is not enforced.");
    const std::string loss = t_.text("loss_type", "nll");
    if (t_.knows("loss_type")) {
      std::vector<std::string> known{"nll", "dft"};
      if (trl_from(text_.release, "1.4.0")) known.emplace_back("chunked_nll");
      if (std::find(known.begin(), known.end(), loss) == known.end()) {
        refuse("loss_type", fmt::format("'{}'", loss), list_of(known), kSftFile,
               fmt::format("Invalid `loss_type` {} passed.", loss));
        out_.back().nearest = nearest(loss, known);
      }
    }
    if (loss == "chunked_nll" && is("use_liger_kernel"))
      refuse("loss_type", "'chunked_nll'", "nll beside use_liger_kernel", kSftFile,
             "`loss_type='chunked_nll'` is not compatible with `use_liger_kernel=True`.");
  }

  const HfText& text_;
  const HfMeaning& m_;
  const Engine& e_;
  std::vector<ToldFact> unused_;
  Telling t_;
  std::vector<Problem> out_;
};

}  // namespace

std::vector<Problem> refusals_of(const HfText& text, const HfMeaning& meaning) { return Rules(text, meaning).run(); }

}  // namespace oomplan::transformers
