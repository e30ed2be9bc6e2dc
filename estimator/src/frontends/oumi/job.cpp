#include "frontends/oumi/job.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/oumi/adapters.hpp"
#include "frontends/oumi/deepspeed.hpp"
#include "frontends/oumi/generator.hpp"
#include "frontends/oumi/images.hpp"
#include "frontends/oumi/mixed.hpp"
#include "frontends/oumi/server.hpp"
#include "frontends/oumi/settings.hpp"
#include "frontends/oumi/trl.hpp"
#include "frontends/oumi/undescribed.hpp"
#include "frontends/trainers/names.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

/// What comes along, the newest that pyproject.toml of a release and the ones behind it takes. TRL before 0.24 is taken as 0.24.
struct PackagesRow {
  std::string_view since, transformers, sft_head, vllm;
  bool casts_adapters;  ///< TRL from 0.26 on: SFTTrainer makes adapters of a packed base bf16
};
constexpr std::array<PackagesRow, 7> kPackages{{{"0.1.3", "4.45.2", "trl_sft", "0.6.6", false},
                                                {"0.1.9", "4.48.3", "trl_sft", "0.7.3", false},
                                                {"0.2.0", "4.51.3", "trl_sft", "0.8.5", false},
                                                {"0.4.0", "4.55.4", "trl_sft", "0.10.2", false},
                                                {"0.4.2", "4.57.1", "trl_sft", "0.10.2", false},
                                                {"0.6.0", "4.57.1", "trl_sft", "0.10.2", true},
                                                {"0.8", "newest", "trl_sft_1_3", "0.21.0", true}}};

class JobMaker {
 public:
  JobMaker(const OumiText& text, const OumiMeaning& m, const Beside& beside, std::vector<Note>& notes)
      : text_(text), m_(m), beside_(beside), notes_(notes), t_(text.root, unused_, ""), s_(text, out_), trl_(text, m, t_, s_) {}

  NativeText run() {
    if (text_.kind == FileKind::training)
      training();
    else
      server();
    return std::move(out_);
  }

 private:
  const PackagesRow& packages() const {
    const PackagesRow* found = &kPackages.front();
    for (const PackagesRow& row : kPackages)
      if (text_.release >= *find_release(row.since)) found = &row;
    return *found;
  }

  // ---- who runs

  /// The number of GPUs, told or missing.
  std::int64_t gpus(bool one_by_itself) {
    if (m_.gpus > 0) return m_.gpus;
    if (one_by_itself && !text_.world.distributed) {
      notes_.push_back({Note::Level::info, {}, "one process on one GPU: nothing says how many there are; --gpus does"});
      return 1;
    }
    Problem missing{{"command line", 0, 0, "--gpus"}, "no number of GPUs", "--gpus N", {}, "no key of Oumi's file says it"};
    out_.problems.push_back(std::move(missing));
    return 1;
  }
  void cluster(std::int64_t all) {
    const std::int64_t nodes = std::max<std::int64_t>(1, text_.world.nodes);
    const Origin by{Origin::Kind::derived, text_.world.place, "num_nodes and accelerators of the job, or --gpus", {}};
    s_.put("framework", "torch", {Origin::Kind::derived, {}, "Oumi's trainers run PyTorch as it is", {}});
    s_.put("gpus", fmt::format("{} x {}", all, beside_.gpu.empty() ? "H100-80GB" : beside_.gpu), by);
    s_.put("gpus_per_node", fmt::format("{}", std::max<std::int64_t>(1, all / nodes)), by);
  }

  // ---- trainers

  void training() {
    const bool server = trl_.has_server();
    out_.roles.push_back({server ? RoleKind::actor : RoleKind::trainer, s_.place("training.trainer_type")});
    if (!refuse_trainer()) return;
    if (server) {
      out_.roles.push_back({RoleKind::rollout, s_.place("training.grpo.use_vllm")});
      s_.call_trainer("actor");
    }
    const bool deepspeed = m_.engine == "deepspeed";
    const std::int64_t all = gpus(m_.engine != "fsdp1" && !deepspeed);
    cluster(all);
    s_.copy("trainer.model", "model.model_name");
    if (server) {
      s_.copy("rollout.model", "model.model_name");
      trl_.server(all, packages().vllm);
    }
    refuse_of_model();
    engine(all);
    batches();
    numbers();
    kernels();
    recompute();
    optimizer();
    lora();
    trl_.second_model();
  }
  bool refuse_trainer() {
    if (trl_.is_one()) return trl_.accept();
    if (m_.trainer == "TRL_SFT" || m_.trainer == "HF") return true;
    s_.refuse("training.trainer_type", fmt::format("the trainer {} of Oumi", m_.trainer));
    return false;
  }
  void refuse_model(std::string_view path) {
    const std::string_view what = undescribed(t_.text(path));
    if (!what.empty()) s_.refuse(path, std::string(what));
  }
  void refuse_of_model() {
    refuse_model("model.model_name");
    if (t_.has("model.adapter_model")) s_.refuse("model.adapter_model", "adapters that are loaded and trained further");
    const Node* frozen = t_.at("model.freeze_layers");
    refuse_packed_checkpoint();
    if (frozen != nullptr && !frozen->items.empty() && !freezes_towers_alone(text_))
      s_.refuse("model.freeze_layers", "layers that are frozen by their names");
    if (t_.flag("training.compile")) s_.refuse("training.compile", "torch.compile of Transformers' models");
    put_images(text_, s_, beside_.images, packages().transformers == "newest", notes_);
  }

  /// src/oumi/builders/models.py: mxfp4 is dequantised, other methods are passed over. Under FSDP that is one tensor after
  /// another in front of everything else, less than a unit that is built.
  void refuse_packed_checkpoint() {
    constexpr std::string_view kKey = "model.model_kwargs.quantization_config";
    const bool dequantised = t_.text("model.model_kwargs.quantization_config.quant_method") == "mxfp4";
    if (t_.at(kKey) != nullptr && !(dequantised && m_.engine == "fsdp1"))
      s_.refuse(kKey, "a model that is dequantised while it is loaded on one GPU or under DDP");
  }

  void engine(std::int64_t all) {
    s_.put("trainer.engine", m_.engine == "ddp" || m_.engine == "single" ? (all > 1 ? "ddp" : "single") : m_.engine,
           s_.origin("fsdp.enable_fsdp"));
    s_.put("trainer.layout", fmt::format("d{}", all), s_.origin("fsdp.enable_fsdp"));
    if (m_.engine == "deepspeed") return;
    if (m_.engine == "fsdp1") return fsdp(all);
    if (all == 1) return;
    if (!text_.world.distributed) {
      s_.refuse("model.device_map",
                "one process on several GPUs, over which device_map spreads the model (with torchrun each has a copy)");
      return;
    }
    // transformers/trainer.py, create_accelerator_and_postprocess: without checkpoints unused parameters are looked for
    const bool said = t_.has("training.ddp_find_unused_parameters");
    const bool find = said ? t_.flag("training.ddp_find_unused_parameters") : !t_.flag("training.enable_gradient_checkpointing");
    s_.put("trainer.find_unused_parameters", find ? "true" : "false", s_.origin("training.ddp_find_unused_parameters"));
    s_.put("trainer.gradient_as_bucket_view", "false", s_.origin("training.ddp_find_unused_parameters"));
    s_.put("trainer.gradient_sync_every_micro_batch", "false",
           s_.by_code("accelerate's no_sync in all micro-batches but the last"));
  }

  void fsdp(std::int64_t all) {
    // accelerate hands FSDP no policy where nothing is mixed: adapters in fp32 are multiplied so
    if (t_.flag("training.use_peft") && !t_.flag("peft.q_lora"))
      for (const char* knob : {"trainer.precision.cast_parameters", "trainer.precision.cast_gradients"})
        s_.put(knob, "false", s_.by_code("accelerate/accelerator.py: prepare_model, mixed_precision of the plugin"));
    const std::string strategy = t_.text("fsdp.sharding_strategy");
    const bool hybrid = strategy.starts_with("HYBRID");
    const std::int64_t groups = strategy == "NO_SHARD" ? all : hybrid ? std::max<std::int64_t>(1, text_.world.nodes) : 1;
    if (groups > 1) s_.put("trainer.replicas", fmt::format("{}", groups), s_.origin("fsdp.sharding_strategy"));
    const bool keeps = strategy == "SHARD_GRAD_OP" || strategy == "HYBRID_SHARD_ZERO2";
    s_.put("trainer.reshard_after_forward", keeps ? "false" : "true", s_.origin("fsdp.sharding_strategy"));
    if (t_.text("fsdp.auto_wrap_policy") != "TRANSFORMER_BASED_WRAP")
      s_.refuse("fsdp.auto_wrap_policy", "FSDP's units other than the model's layers");
    s_.flag("trainer.cpu_offload_policy", "fsdp.cpu_offload");
    s_.flag("trainer.forward_prefetch", "fsdp.forward_prefetch");
    const std::string back = t_.text("fsdp.backward_prefetch", "BACKWARD_PRE");
    s_.put("trainer.backward_prefetch",
           back == "BACKWARD_PRE"    ? "pre"
           : back == "BACKWARD_POST" ? "post"
                                     : "none",
           s_.origin("fsdp.backward_prefetch"));
    // src/oumi/core/distributed.py: _get_use_orig_params
    const bool original = t_.has("fsdp.use_orig_params") ? t_.flag("fsdp.use_orig_params") : !t_.flag("training.use_peft");
    s_.put("trainer.use_orig_params", original ? "true" : "false", s_.origin("fsdp.use_orig_params"));
    s_.put("trainer.gradient_sync_every_micro_batch", "false",
           s_.by_code("accelerate's no_sync in all micro-batches but the last"));
  }

  void batches() {
    const std::int64_t sequences = trl_.sequences(t_.whole("training.per_device_train_batch_size", 8));
    s_.put("trainer.sequences_per_micro_batch", fmt::format("{}", sequences), s_.origin("training.per_device_train_batch_size"));
    s_.put("trainer.micro_batches", fmt::format("{}", t_.whole("training.gradient_accumulation_steps", 1)),
           s_.origin("training.gradient_accumulation_steps"));
    const std::int64_t tokens = beside_.sequence_tokens > 0 ? beside_.sequence_tokens : longest();
    if (tokens <= 0) {
      out_.problems.push_back({{"command line", 0, 0, "--sequence-tokens"},
                               "no length of a sample",
                               "--sequence-tokens N",
                               {},
                               fmt::format("nothing caps the samples of the trainer {}", m_.trainer)});
      return;
    }
    s_.put("trainer.sequence_tokens", fmt::format("{}", tokens), s_.origin("model.model_max_length"));
    if (m_.trainer == "TRL_GRPO") trl_.completions(tokens);
    if (beside_.sequence_tokens == 0 && !t_.flag("data.train.pack"))
      notes_.push_back(
          {Note::Level::info, s_.place("model.model_max_length"),
           fmt::format(
               "samples of {} tokens are counted, the longest that there can be; --sequence-tokens says how long yours are",
               tokens)});
    // one sample has no padding: transformers drops a mask of ones
    s_.put("trainer.padding_mask", sequences > 1 && !t_.flag("data.train.pack") ? "true" : "false",
           s_.origin("training.per_device_train_batch_size"));
  }

  /// What caps a sample; 0: nothing. Of TRL_SFT without a key trl/trainer/sft_config.py does, 0.24 to 1.4.
  std::int64_t longest() const {
    constexpr std::int64_t kOfTrl = 1024;
    if (trl_.is_one()) return trl_.longest();
    const std::int64_t said = t_.whole("model.model_max_length", 0);
    if (t_.flag("data.train.pack") || (said > 0 && takes_max_length(m_.trainer))) return said;
    if (m_.trainer != "TRL_SFT") return 0;
    return t_.whole("training.trainer_kwargs.max_length", kOfTrl);
  }

  void numbers() {
    const std::string written = t_.text("model.torch_dtype_str", "auto");
    if (written == "auto")
      notes_.push_back({Note::Level::warning, s_.place("model.torch_dtype_str"),
                        "auto: taken as bf16; a checkpoint in another format has that one"});
    const std::string format = written == "auto" ? "bf16" : trainers::format_named(written);
    if (format.empty()) return s_.refuse("model.torch_dtype_str", fmt::format("parameters in {}", written));
    if (m_.engine == "deepspeed") return deepspeed_settings(text_, format, beside_.catalog, s_, notes_);
    s_.put("trainer.precision.storage", format, s_.origin("model.torch_dtype_str"));
    const Mixed mixed = mixed_precision(t_, m_);
    if (!mixed.format.empty()) put_mixed_precision(s_, mixed, format, m_, t_.flag("training.use_peft"));
  }

  void kernels() {
    const std::string attention = t_.text("model.attn_implementation");
    const std::string kernels(trainers::kernels_of_attention(attention));
    if (kernels.empty()) return s_.refuse("model.attn_implementation", fmt::format("attention by {}", attention));
    if (!attention.empty())  // what a model takes by itself: SDPA, but for a few
      s_.put("trainer.kernels", kernels, s_.origin("model.attn_implementation"));
    const bool liger = t_.flag("model.enable_liger_kernel") || t_.flag("training.trainer_kwargs.use_liger_kernel");
    if (liger) s_.put("trainer.liger", "[rope, rms_norm, swiglu]", s_.origin("model.enable_liger_kernel"));
    const std::string own = trl_.is_one() ? trl_.head() : m_.trainer == "TRL_SFT" ? std::string(packages().sft_head) : "hf_loss";
    s_.put("trainer.head", liger ? "liger_fused_ce" : own, s_.origin("model.enable_liger_kernel"));
    const bool images = packages().transformers == "newest" && has_image_collator(text_);
    s_.put("trainer.transformers", std::string(images ? kTransformersOfImages : packages().transformers),
           s_.by_code("pyproject.toml of the release"));
  }

  /// Under FSDP accelerate checkpoints the layers, without reentry (accelerate/accelerator.py prepare_model).
  void recompute() {
    const bool on = t_.flag("training.enable_gradient_checkpointing");
    s_.put("trainer.recompute", on ? "full" : "none", s_.origin("training.enable_gradient_checkpointing"));
    if (!on) return;
    // Oumi hands {} on, in which nothing is said, and torch's own default is to enter again (torch/utils/checkpoint.py, 2.13)
    const Node* said = t_.at("training.gradient_checkpointing_kwargs.use_reentrant");
    const bool otherwise = said == nullptr || said->kind != Node::Kind::boolean || said->boolean;
    const bool reentrant = m_.engine != "fsdp1" && otherwise;
    s_.put("trainer.reentrant", reentrant ? "true" : "false", s_.origin("training.gradient_checkpointing_kwargs"));
  }

  void optimizer() {
    const std::string name = t_.text("training.optimizer", "adamw_torch");
    const trainers::OptimizerName* row = trainers::find_optimizer(name);
    if (row == nullptr) return s_.refuse("training.optimizer", fmt::format("the optimizer {}", name));
    s_.put("trainer.optimizer", std::string(row->optimizer), s_.origin("training.optimizer"));
    if (!row->form.empty()) s_.put("trainer.optimizer_form", std::string(row->form), s_.origin("training.optimizer"));
    s_.put("trainer.weight_decay", fmt::format("{}", t_.real("training.weight_decay", 0)), s_.origin("training.weight_decay"));
    s_.put("trainer.clip", t_.real("training.max_grad_norm", t_.has("training.max_grad_norm") ? 1 : 0) > 0 ? "true" : "false",
           s_.origin("training.max_grad_norm"));
  }

  bool casts_adapters() const {
    return trl_.is_one() ? trl_.casts_adapters() : m_.trainer == "TRL_SFT" && packages().casts_adapters;
  }
  void lora() {
    if (t_.flag("training.use_peft")) put_adapters(s_, t_, m_, casts_adapters(), !mixed_precision(t_, m_).format.empty());
  }

  // ---- servers

  void server() {
    out_.roles.push_back({RoleKind::server, s_.place("engine")});
    const std::string at(inference_path(text_.kind)),
        key = at + (text_.kind == FileKind::evaluation ? "inference_engine" : "engine");
    if (m_.engine.empty()) return s_.elsewhere(at + "model", "no model: nothing needs a GPU");
    constexpr std::array<std::string_view, 3> kHere{"VLLM", "NATIVE", "LLAMACPP"};
    if (m_.engine == "SGLANG" || m_.engine == "REMOTE_VLLM")
      return s_.elsewhere(key, fmt::format("Oumi asks a server that was started before: oomplan estimate -- {} answers for it",
                                           m_.engine == "SGLANG" ? "python -m sglang.launch_server" : "vllm serve"));
    if (std::find(kHere.begin(), kHere.end(), m_.engine) == kHere.end())
      return s_.elsewhere(key, "the engine runs elsewhere: nothing of it needs a GPU here");
    if (m_.engine == "LLAMACPP") return s_.refuse(key, "llama.cpp, of whose GGUF files every tensor has a format of its own");
    const std::int64_t all = gpus(true);
    cluster(all);
    refuse_model(at + "model.model_name");
    if (m_.engine == "VLLM") return put_server({text_, beside_, at, key, all, packages().vllm}, t_, s_, out_, notes_);
    out_.roles.back().kind = RoleKind::generator;
    put_generator({text_, beside_, at, all, packages().transformers, trainers::format_named, trainers::kernels_of_attention}, t_,
                  s_, out_, notes_);
  }

  const OumiText& text_;
  const OumiMeaning& m_;
  const Beside& beside_;
  std::vector<Note>& notes_;
  std::vector<ToldFact> unused_;
  NativeText out_;
  Telling t_;
  OumiSettings s_;
  TrlJob trl_;
};

}  // namespace

NativeText job_of(const OumiText& text, const OumiMeaning& meaning, const Beside& beside, std::vector<Note>& notes) {
  return JobMaker(text, meaning, beside, notes).run();
}

}  // namespace oomplan::oumi
