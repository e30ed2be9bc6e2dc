#include "frontends/transformers/job.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "frontends/trainers/names.hpp"
#include "frontends/trainers/settings.hpp"
#include "frontends/transformers/trl.hpp"
#include "frontends/transformers/zero.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;

/// Which loss TRL's SFTTrainer has.
struct HeadRow {
  std::string_view since, head;
};
constexpr std::array<HeadRow, 3> kSftHeads{{{"0.1", "trl_sft"}, {"1.3", "trl_sft_1_3"}, {"1.6", "trl_sft"}}};

/// Arguments that change memory and are not described: refused where they have another value than that.
struct RefusedRow {
  std::string_view key, quiet, what;
};
constexpr std::array<RefusedRow, 13> kRefused{{
    {"torch_compile", "false", "torch.compile of Transformers' models"},
    {"torch_compile_backend", "", "torch.compile of Transformers' models"},
    {"activation_offloading", "false", "activations that TRL keeps on the host"},
    {"neftune_noise_alpha", "", "NEFTune's noise"},
    {"tp_size", "0", "tensor parallelism of Transformers' models"},
    {"lora_target_parameters", "", "adapters of parameters"},
    {"optim_target_modules", "", "an optimizer of some modules alone"},
    {"parallelism_config", "", "accelerate's parallelism_config"},
    {"accelerate.parallelism_config", "", "accelerate's parallelism_config"},
    {"accelerator_config.split_batches", "false", "batches that are split over the processes"},
    {"fsdp_config.xla", "false", "FSDP of XLA"},
    {"accelerate.fsdp_config.fsdp_ignored_modules", "", "modules that FSDP leaves out"},
    {"accelerate.dynamo_backend", "no", "torch.compile by accelerate"},
}};

class JobMaker {
 public:
  JobMaker(const HfText& text, const HfMeaning& m, const Beside& beside, const Catalog& catalog, std::vector<Note>& notes)
      : text_(text),
        m_(m),
        e_(m.engine),
        beside_(beside),
        catalog_(catalog),
        notes_(notes),
        t_(text.root, unused_, ""),
        s_(text.root, out_, text.trl() ? "TRL's code" : "Transformers' code"),
        trl_(text, m, t_, s_) {}

  NativeText run() {
    const bool server = trl_.has_server();
    out_.roles.push_back({server ? RoleKind::actor : RoleKind::trainer, s_.place("output_dir")});
    if (!text_.trainer->described) {
      s_.refuse("", fmt::format("the trainer {} of TRL", text_.trainer->name));
      return std::move(out_);
    }
    if (trl_.is_one() && !trl_.accept()) return std::move(out_);
    if (server) {
      out_.roles.push_back({RoleKind::rollout, s_.place("use_vllm")});
      s_.call_trainer("actor");
    }
    const std::int64_t all = gpus();
    cluster(all);
    model();
    if (server) trl_.server(all);
    refuse_arguments();
    engine(all);
    batches();
    numbers();
    kernels();
    recompute();
    optimizer();
    lora();
    trl_.reference(storage_);
    return std::move(out_);
  }

 private:
  const std::string& name() const { return e_.name.value; }
  bool sharded() const { return name() == "fsdp1" || name() == "fsdp2"; }

  // ---- who runs

  std::int64_t gpus() {
    if (m_.gpus > 0) return m_.gpus;
    if (!text_.world.distributed) {
      notes_.push_back({Note::Level::info, {}, "one process on one GPU: nothing says how many there are; --gpus does"});
      return 1;
    }
    out_.problems.push_back({{"command line", 0, 0, "--gpus"}, "no number of GPUs", "--gpus N", {}, "no argument says it"});
    return 1;
  }
  void cluster(std::int64_t all) {
    const Origin by{Origin::Kind::derived, text_.world.place, "processes of the launcher, or --gpus", {}};
    s_.put("framework", "torch", {Origin::Kind::derived, {}, "these trainers run PyTorch as it is", {}});
    s_.put("gpus", fmt::format("{} x {}", all, beside_.gpu.empty() ? "H100-80GB" : beside_.gpu), by);
    s_.put("gpus_per_node", fmt::format("{}", std::max<std::int64_t>(1, all / std::max<std::int64_t>(1, text_.world.nodes))), by);
  }
  void model() {
    const std::string said = t_.text("model_name_or_path");
    if (!said.empty()) {
      if (trl_.has_server()) s_.put("rollout.model", said, "model_name_or_path");
      return s_.put("trainer.model", said, "model_name_or_path");
    }
    out_.problems.push_back(
        {s_.place("model_name_or_path"), "no model", "--model_name_or_path NAME", {}, "nothing says which is trained"});
  }

  void refuse_arguments() {
    for (const RefusedRow& row : kRefused) {
      const Node* n = t_.at(row.key);
      if (n == nullptr || n->kind == Node::Kind::null) continue;
      const std::string said = text_at(text_.root, row.key);
      const bool filled =
          n->is_container() ? !n->items.empty() || !n->entries.empty() : said != row.quiet && said != "false" && said != "NO";
      if (filled) s_.refuse(row.key, std::string(row.what));
    }
    const std::string dynamo = text_at(text_.root, "accelerate.dynamo_config.dynamo_backend");
    if (!dynamo.empty() && dynamo != "no" && dynamo != "NO" && dynamo != "false")
      s_.refuse("accelerate.dynamo_config.dynamo_backend", fmt::format("torch.compile by accelerate ({})", dynamo));
    if (const std::string loss = text_at(text_.root, "loss_type"); text_.trainer->name == "sft" && loss == "dft")
      s_.refuse("loss_type", "dynamic fine-tuning (loss_type dft)");
    if (t_.text("eval_strategy", "no") != "no" && !t_.flag("prediction_loss_only"))
      notes_.push_back(
          {Note::Level::info, s_.place("eval_strategy"),
           "evaluation is not part of the answer; without prediction_loss_only it keeps the logits of whole batches"});
  }

  // ---- engines

  void engine(std::int64_t all) {
    s_.put("trainer.layout", fmt::format("d{}", all), origin_of_name());
    if (all > 1 && !text_.world.distributed) {
      out_.problems.push_back({text_.world.place,
                               fmt::format("{} GPUs", all),
                               "torchrun or accelerate launch, or --gpus 1",
                               {},
                               "not supported yet: one process on several GPUs (nn.DataParallel, device_map)",
                               ProblemKind::not_supported});
      return;
    }
    s_.put("trainer.engine",
           name() == "ddp" && all == 1     ? "single"
           : name() == "single" && all > 1 ? "ddp"
                                           : name(),
           origin_of_name());
    if (sharded()) return fsdp(all);
    if (name() == "deepspeed") return deepspeed();
    if (all == 1) return;
    const bool said = t_.has("ddp_find_unused_parameters");
    const bool find = said ? t_.flag("ddp_find_unused_parameters") : !t_.flag(checkpointing_key(text_));
    s_.put("trainer.find_unused_parameters", find ? "true" : "false", "ddp_find_unused_parameters");
    s_.put("trainer.gradient_as_bucket_view", "false", s_.by_code("transformers/trainer.py hands no such setting on"));
    s_.put("trainer.bucket_cap_mb", text_at(text_.root, "ddp_bucket_cap_mb"), "ddp_bucket_cap_mb");
    no_sync();
  }
  Origin origin_of_name() { return e_.name.path.empty() ? s_.by_code("neither FSDP nor DeepSpeed") : s_.origin(e_.name.path); }
  void no_sync() {
    s_.put("trainer.gradient_sync_every_micro_batch", "false",
           s_.by_code("accelerate's no_sync in all micro-batches but the last"));
  }

  void fsdp(std::int64_t all) {
    const Fsdp& f = e_.fsdp;
    s_.put("trainer.cpu_offload_policy", f.offload.value, f.offload.path);
    const bool units = f.wrap.value == "TRANSFORMER_BASED_WRAP" || m_.adapters;  // peft's policy names the layers, too
    if (!units) s_.refuse(f.wrap.path, "FSDP's units other than the model's layers");
    if (f.offload_checkpoints)
      s_.refuse(f.home + ".fsdp_activation_checkpointing_offload", "checkpoints on the host by accelerate");
    no_sync();
    if (f.version == 2) return fsdp2();
    const auto model = found_model();
    if (model != nullptr && !model->tower.kind.empty() && !trainers::wraps_text_alone(f.layers.value))
      s_.refuse(f.layers.path, "blocks of a tower that are units of FSDP: name the class of the language model's layers");
    const std::string& strategy = f.strategy.value;
    const std::int64_t groups = strategy == "NO_SHARD"           ? all
                                : strategy.starts_with("HYBRID") ? std::max<std::int64_t>(1, text_.world.nodes)
                                                                 : 1;
    if (groups > 1) s_.put("trainer.replicas", fmt::format("{}", groups), f.strategy.path);
    const bool keeps = strategy == "SHARD_GRAD_OP" || strategy == "HYBRID_SHARD_ZERO2";
    s_.put("trainer.reshard_after_forward", keeps ? "false" : "true", f.strategy.path);
    s_.put("trainer.forward_prefetch", f.forward.value, f.forward.path);
    s_.put("trainer.backward_prefetch",
           f.backward.value == "BACKWARD_PRE"    ? "pre"
           : f.backward.value == "BACKWARD_POST" ? "post"
                                                 : "none",
           f.backward.path);
    s_.put("trainer.use_orig_params", f.original.value, f.original.path);
  }
  /// accelerate/utils/fsdp_utils.py, fsdp2_prepare_model: from 1.14 on embedding and final norm with the output layer are units.
  void fsdp2() {
    s_.put("trainer.reshard_after_forward", e_.fsdp.reshard.value, e_.fsdp.reshard.path);
    if (!trl_from(text_.release, "1.6.0")) return;
    const Origin by = s_.by_code("accelerate/utils/fsdp_utils.py, 1.14 and later");
    const auto architecture = found_model();
    if (architecture == nullptr || architecture->tied) return;  // one unit that stays gathered, as the root does
    for (const char* knob : {"trainer.wrap_embedding", "trainer.wrap_head", "trainer.wrap_norm"}) s_.put(knob, "true", by);
    s_.put("trainer.reshard_last", "false", by);
  }

  std::shared_ptr<const Architecture> found_model() const {
    try {
      return catalog_.model(t_.text("model_name_or_path")).architecture;
    } catch (const InputError&) {
      return nullptr;  // told where it is looked up for the job
    }
  }
  void deepspeed() {
    const auto architecture = found_model();
    zero_ = zero_of(text_, e_, architecture == nullptr ? 0 : architecture->hidden);
    for (const Problem& p : zero_.problems) out_.problems.push_back(p);
    for (const ZeroSetting& setting : zero_.settings) s_.put(setting.knob, setting.value, setting.path);
  }

  // ---- batches

  void batches() {
    const std::int64_t sequences = trl_.sequences(t_.whole("per_device_train_batch_size", 8));
    s_.put("trainer.micro_batches", fmt::format("{}", t_.whole("gradient_accumulation_steps", 1)), "gradient_accumulation_steps");
    const std::int64_t tokens = beside_.sequence_tokens > 0 ? beside_.sequence_tokens : m_.longest;
    if (tokens <= 0) {
      out_.problems.push_back(
          {{"command line", 0, 0, "--sequence-tokens"},
           "no length of a sample",
           "--sequence-tokens N",
           {},
           m_.cap.empty() ? "no argument caps the samples of this script" : fmt::format("{} caps no sample", m_.cap)});
      return;
    }
    const bool packs = t_.flag("packing") || text_.trainer->name == "run_clm";
    trl_.completions(tokens);
    if (m_.padding_free) return flattened(sequences, packs && m_.longest > 0 ? m_.longest : tokens);
    s_.put("trainer.sequences_per_micro_batch", fmt::format("{}", sequences), "per_device_train_batch_size");
    s_.put("trainer.sequence_tokens", fmt::format("{}", packs && m_.longest > 0 ? m_.longest : tokens), m_.cap);
    if (beside_.sequence_tokens == 0 && !packs) tell_longest(tokens);
    // one sample has no padding: transformers drops a mask of ones
    s_.put("trainer.padding_mask", sequences > 1 && !packs ? "true" : "false", "per_device_train_batch_size");
  }
  void tell_longest(std::int64_t tokens) {
    notes_.push_back(
        {Note::Level::info, s_.place(m_.cap),
         fmt::format("samples of {} tokens are counted, the longest that there can be; --sequence-tokens says how long yours are",
                     tokens)});
  }
  /// A batch is one row of all its samples, without padding.
  void flattened(std::int64_t sequences, std::int64_t tokens) {
    if (t_.text("attn_implementation") != "flash_attention_2")
      s_.refuse("attn_implementation", "samples in one row (packing, padding_free) without flash_attention_2");
    s_.put("trainer.tokens_per_micro_batch", fmt::format("{}", sequences * tokens), "per_device_train_batch_size");
    s_.put("trainer.sequence_tokens", fmt::format("{}", tokens), m_.cap);
    if (beside_.sequence_tokens == 0 && !t_.flag("packing")) tell_longest(tokens);
  }

  // ---- formats

  std::string loaded() {
    if (m_.loaded != "auto") return m_.loaded;
    notes_.push_back(
        {Note::Level::warning, s_.place(m_.loaded_by), "auto: taken as bf16; a checkpoint in another format has that one"});
    return "bf16";
  }
  void numbers() {
    std::string storage = loaded();
    if (storage.empty()) return s_.refuse(m_.loaded_by, "parameters in another format than 16 or 32 bits");
    const std::string& mixed = e_.mixed.value;
    if (mixed != "no" && mixed != "bf16" && mixed != "fp16")
      return s_.refuse(e_.mixed.path, fmt::format("mixed precision in {}", mixed));
    if (name() == "deepspeed")
      return s_.put("trainer.precision.storage", zero_.format == "fp32" ? "bf16" : zero_.format, e_.mixed.path);
    if (sharded() && mixed == "fp16") return s_.refuse(e_.mixed.path, "mixed precision in fp16 under FSDP");
    // what is trained is made fp32: accelerate/accelerator.py prepare_model, utils/fsdp_utils.py; up to 1.12 FSDP2 casts all
    const bool casts =
        sharded() && mixed == "bf16" && (!m_.adapters || (name() == "fsdp2" && !trl_from(text_.release, "0.29.0")));
    if (casts && !m_.packed) storage = "fp32";
    s_.put("trainer.precision.storage", storage_ = storage, m_.loaded_by);
    if (mixed == "no") return;
    const std::string computes = sharded() ? "bf16" : storage;
    for (const char* knob : {"trainer.precision.compute", "trainer.precision.reduce"}) s_.put(knob, computes, e_.mixed.path);
    s_.put("trainer.autocast", "true", e_.mixed.path);
    if (mixed == "fp16") s_.put("trainer.precision.autocast", "fp16", e_.mixed.path);
    if (name() == "fsdp2")
      s_.put("trainer.precision.output", "bf16", s_.by_code("accelerate/utils/dataclasses.py: set_mixed_precision"));
  }

  // ---- the model's layers and loss

  void kernels() {
    const std::string attention = t_.text("attn_implementation");
    const std::string kernels(trainers::kernels_of_attention(attention));
    if (kernels.empty()) s_.refuse("attn_implementation", fmt::format("attention by {}", attention));
    s_.put("trainer.kernels", kernels, "attn_implementation");
    const std::string key = t_.flag("use_liger") ? "use_liger" : "use_liger_kernel";
    const bool liger = t_.flag(key);
    if (liger) s_.put("trainer.liger", "[rope, rms_norm, swiglu]", key);
    s_.put("trainer.head", liger ? "liger_fused_ce" : head(), liger ? key : "loss_type");
    const bool fifth = transformers_from(text_.release, "5.0.0");
    s_.put("trainer.transformers", fifth ? "newest" : transformers_of(text_.release),
           s_.by_code("the newest of the release's time"));
  }
  std::string head() {
    if (trl_.is_one()) return trl_.head();
    if (text_.trainer->name != "sft") return "hf_loss";
    const std::string loss = text_at(text_.root, "loss_type");
    const bool chunks = loss == "chunked_nll" || (loss.empty() && trl_from(text_.release, "1.6.0"));
    if (chunks)
      s_.refuse("loss_type",
                "TRL's loss in chunks (loss_type chunked_nll, which 1.6 and later have without a word); nll is described");
    std::string out;
    for (const HeadRow& row : kSftHeads)
      if (trl_from(text_.release, row.since)) out = row.head;
    return out;
  }

  void recompute() {
    s_.put("trainer.recompute", m_.recompute ? "full" : "none", m_.recompute_by);
    if (!m_.recompute) return;
    const std::string kwargs = checkpointing_key(text_) + "_kwargs";
    s_.put("trainer.reentrant", m_.reentrant ? "true" : "false", kwargs);
    const Node* every = t_.at(kwargs + ".every_n_layers");
    if (every != nullptr && every->kind == Node::Kind::integer && every->integer > 1)
      s_.put("trainer.recompute_every", fmt::format("{}", every->integer), kwargs + ".every_n_layers");
    if (t_.flag(kwargs + ".offload")) s_.put("trainer.offload_checkpoints", "true", kwargs + ".offload");
  }

  // ---- the optimizer

  void optimizer() {
    s_.put("trainer.weight_decay", fmt::format("{}", t_.real("weight_decay", 0)), "weight_decay");
    s_.put("trainer.clip", t_.real("max_grad_norm", 0) > 0 ? "true" : "false", "max_grad_norm");
    if (name() == "deepspeed" && !zero_.optimizer.empty()) return optimizer_of_deepspeed();
    const std::string said = t_.text("optim", "adamw_torch");
    const trainers::OptimizerName* row = trainers::find_optimizer(said);
    if (row == nullptr) return s_.refuse("optim", fmt::format("the optimizer {}", said));
    s_.put("trainer.optimizer", std::string(row->optimizer), "optim");
    s_.put("trainer.optimizer_form", std::string(row->form), "optim");
  }
  void optimizer_of_deepspeed() {
    const std::string type = zero_.optimizer, path = "deepspeed.optimizer.type";
    if (type != "AdamW" && type != "Adam") return s_.refuse(path, fmt::format("the optimizer {} of DeepSpeed", type));
    s_.put("trainer.optimizer",
           type == "Adam" && text_at(text_.root, "deepspeed.optimizer.params.adam_w_mode") == "false" ? "adam" : "adamw", path);
    const bool torch = text_at(text_.root, "deepspeed.optimizer.params.torch_adam") == "true";
    s_.put("trainer.optimizer_form", torch ? "foreach" : "fused", path);
  }

  // ---- adapters

  void lora() {
    if (!m_.adapters) {
      if (m_.packed) s_.refuse(t_.flag("load_in_4bit") ? "load_in_4bit" : "load_in_8bit", "a packed model without adapters");
      return;
    }
    s_.put("trainer.lora.rank", fmt::format("{}", t_.whole("lora_r", 16)), "lora_r");
    s_.put("trainer.lora.alpha", fmt::format("{}", t_.whole("lora_alpha", 32)), "lora_alpha");
    if (t_.real("lora_dropout", 0) > 0)
      s_.put("trainer.lora.dropout", fmt::format("{}", t_.real("lora_dropout", 0)), "lora_dropout");
    names("trainer.lora.targets", "lora_target_modules");
    names("trainer.lora.modules_to_save", "lora_modules_to_save");
    if (t_.flag("use_dora")) s_.put("trainer.lora.dora", "true", "use_dora");
    if (name() == "deepspeed") s_.put("trainer.lora.format", "storage", s_.by_code("DeepSpeed's 16-bit mode casts adapters too"));
    if (m_.packed) packed();
  }
  void names(const char* knob, std::string_view path) {
    const Node* n = t_.at(path);
    if (n == nullptr) return;
    std::vector<std::string> all;
    for (const Node& item : n->items) all.push_back(item.text);
    if (n->kind == Node::Kind::text) all.push_back(n->text);
    if (all.empty()) return;
    const bool linear = all == std::vector<std::string>{"all-linear"};
    s_.put(knob, linear ? "all-linear" : fmt::format("[{}]", fmt::join(all, ", ")), path);
  }
  /// prepare_model_for_kbit_training up to 0.25; from 0.26 on adapters are bf16 (trl/trainer/sft_trainer.py).
  void packed() {
    const bool four = t_.flag("load_in_4bit");
    s_.put("trainer.lora.base", four ? "nf4" : "int8", four ? "load_in_4bit" : "load_in_8bit");  // fp4 packs as nf4 does
    const bool sft = text_.trainer->name == "sft" || trl_.is_one(), first = sft && !trl_from(text_.release, "0.26.0");
    if (!sft)
      s_.refuse(four ? "load_in_4bit" : "load_in_8bit", "a packed base under Transformers' own Trainer: its script prepares it");
    if (first) s_.put("trainer.lora.prepare_kbit", "true", s_.by_code("trl/trainer/sft_trainer.py, up to 0.25"));
    if (sft && !first) {
      if (m_.loaded == "fp32")
        s_.refuse(m_.loaded_by, "adapters in bf16 beside parameters in fp32; --dtype bfloat16 is described");
      s_.put("trainer.lora.format", "storage", s_.by_code(fmt::format("trl/trainer/{}_trainer.py", text_.trainer->name)));
    }
    if (!four) return;
    s_.put("trainer.lora.base_double_quant", t_.flag("use_bnb_nested_quant") ? "true" : "false", "use_bnb_nested_quant");
    s_.put("trainer.lora.base_compute", m_.loaded == "auto" || m_.loaded.empty() ? "bf16" : m_.loaded, m_.loaded_by);
    const std::string storage = text_at(text_.root, "bnb_4bit_quant_storage");
    const bool whole = storage.empty() ? trl_from(text_.release, "0.26.0") : storage == "uint8";
    if (name() == "fsdp2") s_.put("trainer.lora.base_whole", whole ? "true" : "false", "bnb_4bit_quant_storage");
    if (name() == "fsdp1" && whole)
      s_.refuse("bnb_4bit_quant_storage", "4 bits stored as uint8 under FSDP1, which flattens them with bf16");
  }

  const HfText& text_;
  const HfMeaning& m_;
  const Engine& e_;
  const Beside& beside_;
  const Catalog& catalog_;
  std::vector<Note>& notes_;
  std::vector<ToldFact> unused_;
  Zero zero_;
  std::string storage_;  ///< format of the parameters that are trained
  NativeText out_;
  Telling t_;
  trainers::TreeSettings s_;
  TrlJob trl_;
};

}  // namespace

NativeText job_of(const HfText& text, const HfMeaning& meaning, const Beside& beside, const Catalog& catalog,
                  std::vector<Note>& notes) {
  return JobMaker(text, meaning, beside, catalog, notes).run();
}

}  // namespace oomplan::transformers
