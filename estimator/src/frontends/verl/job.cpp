#include "frontends/verl/job.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/verl/derive.hpp"
#include "frontends/verl/images.hpp"
#include "frontends/verl/meaning_parts.hpp"
#include "frontends/verl/megatron_job.hpp"
#include "frontends/verl/predicted.hpp"
#include "frontends/verl/server_job.hpp"
#include "frontends/verl/settings.hpp"
#include "job/role_names.hpp"
#include "units/sizes.hpp"

namespace oomplan::verl {
namespace {

class VerlTranslator {
 public:
  VerlTranslator(const VerlText& text, const VerlMeaning& m, const Beside& beside, std::vector<Note>& notes)
      : text_(text), m_(m), beside_(beside), notes_(notes), s_(text, m, out_), images_(text, m, s_, beside.images, notes) {}

  NativeText run() {
    out_.problems = text_.problems;
    refuse();
    if (!out_.problems.empty()) return std::move(out_);
    cluster();
    for (const char* name : {"rollout", "actor", "trainer", "ref", "critic"})
      if (m_.has_role(name)) role(name);
    if (m_.has_role("reward")) reward();
    teachers();
    if (m_.kind == "generation") serve_alone();
    return std::move(out_);
  }

 private:
  bool since(std::string_view release) const { return text_.release >= release_named(release); }
  std::string fact(std::string_view role, std::string_view name) const { return fmt::format("roles.{}.{}", role, name); }

  // ---- not supported yet, by name

  void refuse() {
    for (const std::string& role : m_.roles) {
      const bool teacher = kind_of_role_named(role) == RoleKind::teacher, reward = role == "reward";
      if (reward) refuse_of_rewards();
      if (role == "rollout" || teacher || (reward && !m_.reward.empty())) refuse_of_servers(role);
      if (!reward && role != "rollout" && !teacher) refuse_of_trainer(role);
    }
    if (m_.text("job.placement") == "separated" && m_.flag("job.sleep_wake"))
      s_.refuse("job.sleep_wake", "servers on GPUs of their own that sleep");
    if (by_likely_tokens() && m_.text(fact("actor", "engine")) != "megatron")
      s_.refuse("job.distillation.loss_mode", "distillation by the teacher's most likely tokens under FSDP");
    if (m_.teachers.size() > kMostTeachers)
      s_.refuse_key("distillation.teacher_models", fmt::format("more than {} teachers", kMostTeachers));
  }
  bool by_likely_tokens() const { return m_.text("job.distillation.loss_mode") == "forward_kl_topk"; }
  void refuse_of_rewards() {
    if (m_.reward.empty()) return s_.refuse("roles.reward.engine", "a reward model that is one of the workers");
    if (m_.text("job.placement") == "separated" && m_.text("roles.reward.placement") != "own")
      s_.refuse_key(m_.reward + ".enable_resource_pool", "a reward model beside a trainer whose servers have GPUs of their own");
  }
  void refuse_of_servers(const std::string& role) {
    const std::string engine = m_.text(fact(role, "engine")), degrees = fact(role, "layout.");
    if (engine.empty() && text_.root.entries.empty()) return;  // nothing was composed, and why is told
    if (engine.empty())
      s_.lacking(fact(role, "engine"), role == "rollout"  ? "actor_rollout_ref.rollout.name=vllm or sglang"
                                       : role == "reward" ? m_.reward + ".rollout.name=vllm or sglang"
                                                          : "vllm");
    else if (engine != "vllm" && engine != "sglang")
      s_.refuse(fact(role, "engine"), fmt::format("the server '{}'", engine));
    if (role == "rollout") refuse_drafts(s_, text_, engine);
    const std::int64_t experts = m_.whole(degrees + "ep", 1), data = m_.whole(degrees + "dp", 1);
    if (data > 1 && (experts == 1 || engine == "sglang"))
      s_.refuse(degrees + "dp", engine == "sglang" ? "data parallelism of verl's SGLang"
                                                   : "data parallelism of verl's servers without that of the experts");
  }
  std::string strategy_key(std::string_view role) const {
    if (role == "trainer")
      for (const char* key : {"engine.strategy", "model.strategy"})
        if (text_.root.at(key) != nullptr) return key;
    if (role == "trainer") return "engine";
    if (role == "critic") return "critic.strategy";
    const std::string own = fmt::format("{}.{}.strategy", kArr, role);
    return text_.root.at(own) != nullptr ? own : fmt::format("{}.actor.strategy", kArr);
  }
  void refuse_of_trainer(const std::string& role) {
    const std::string engine = m_.text(fact(role, "engine"));
    constexpr std::array<std::string_view, 3> kEngines{"fsdp1", "fsdp2", "megatron"};
    if (std::find(kEngines.begin(), kEngines.end(), engine) == kEngines.end())
      s_.refuse_key(strategy_key(role), fmt::format("the engine '{}'", engine));
    if (engine == "megatron" && !since("0.4.0"))  // layers of its own, and servers in its process (vllm_mode customized)
      s_.refuse(fact(role, "engine"), "Megatron before verl 0.4, whose vLLM 0.6.3 runs inside of the trainer");
    if (engine == "megatron") refuse_padded(role);
    if (engine == "megatron") refuse_predicted(s_, text_, role);
    if (m_.flag(fact(role, "fused_kernels"))) refuse_of_fused(role);
    const std::string impl = m_.text(fact(role, "optimizer_impl"), "torch.optim");
    if (impl != "torch.optim") s_.refuse(fact(role, "optimizer_impl"), fmt::format("optimizers of {}", impl));
    if (m_.whole(fact(role, "wrap_min_num_params")) > 0)
      s_.refuse(fact(role, "wrap_min_num_params"), "units of FSDP by their size (wrap_policy.min_num_params)");
    const std::string tiled = fmt::format("{}.model.tiled_mlp.enabled", kArr);
    if (role == "actor")
      if (const auto* n = text_.root.at(tiled); n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean)
        s_.refuse_key(tiled, "TiledMLP");
  }

  /// Whether Megatron packs is a setting of its own in 0.7, and from 0.8 on that of the model, which overwrites the engine's
  /// (verl/workers/engine_workers.py, 0.9: TrainingWorker). Before, it always packs.
  std::string padding_key(const std::string& role) const {
    const std::string owner = role == "critic" ? "critic." : role == "trainer" ? "" : std::string(kArr) + ".";
    const std::string own = role == "critic" || role == "trainer" ? owner : owner + role + ".";
    return (since("0.8.0") ? owner + "model" : own + "megatron") + ".use_remove_padding";
  }
  bool pads_under_megatron(const std::string& role) const {
    const auto* n = since("0.7.0") ? text_.root.at(padding_key(role)) : nullptr;
    return n != nullptr && n->kind == compose::Node::Kind::boolean && !n->boolean;
  }
  /// A budget of tokens counts sequences that are then padded to the longest of all.
  void refuse_padded(const std::string& role) {
    if (!pads_under_megatron(role)) return;
    const bool learns = role == "actor" || role == "critic";
    const std::string batch = fact(role, "micro_batch");
    const Budget b = budget_of(batch, sequences_of(learns ? "roles.actor.mini_batch_prompts" : step_prompts(), role));
    if (b.tokens > 0 && b.sequences == 0)
      s_.refuse_key(padding_key(role),
                    "padded sequences under Megatron in micro-batches of a budget of tokens (use_dynamic_bsz)");
    if (m_.flag(fact(role, "fused_kernels")) && !since("0.9.0"))  // from then on verl switches them off
      s_.refuse_key(padding_key(role), "padded sequences under Megatron with use_fused_kernels before verl 0.9");
    if (m_.whole(fact(role, "layout.cp"), 1) > 1 && !since("0.8.0"))
      s_.refuse_key(padding_key(role), "padded sequences under Megatron with context parallelism, which verl 0.7 itself refuses");
  }

  /// Without a backend verl leaves the model's forward pass as it is, and then looks for what the fused one returns
  /// (verl/models/transformers/monkey_patch.py, 0.5 to 0.10: patch_forward_with_backends).
  void refuse_of_fused(const std::string& role) {
    const bool policy = role == "actor" || role == "ref", megatron = m_.text(fact(role, "engine")) == "megatron";
    if (megatron && (policy || role == "critic")) return;  // always Triton's
    if (!policy) return s_.refuse(fact(role, "fused_kernels"), "use_fused_kernels of a " + role);
    if (const std::string backend = fused_backend(); backend != "torch" && backend != "triton")
      s_.lacking(fact(role, "fused_kernels"), std::string(kArr) + ".model.fused_kernel_options.impl_backend=torch or triton");
  }
  std::string fused_backend() const {
    const auto* n = text_.root.at(std::string(kArr) + ".model.fused_kernel_options.impl_backend");
    return n != nullptr && n->kind == compose::Node::Kind::text ? n->text : std::string();
  }

  // ---- settings

  void cluster() {
    s_.set("framework", framework(), "job.kind");
    const std::int64_t used = m_.kind == "generation" ? m_.whole("roles.rollout.gpus") : m_.whole("job.gpus_used");
    const std::int64_t machine = std::clamp<std::int64_t>(m_.whole("job.gpus_of_a_machine"), 1, std::max<std::int64_t>(used, 1));
    const std::int64_t whole_machines = (used + machine - 1) / machine * machine;
    s_.set("gpus", fmt::format("{} x {}", whole_machines, beside_.gpu.empty() ? "H100-80GB" : beside_.gpu),
           "cluster.gpus_per_node");
    if (used > 0) s_.set("gpus_per_node", fmt::format("{}", machine), "cluster.gpus_per_node");
    if (m_.kind == "sft") return;
    s_.copy("prompt_tokens", "job.max_prompt_length");
    s_.copy("response_tokens", "job.max_response_length");
    const std::int64_t samples = std::max<std::int64_t>(1, m_.whole("job.samples_per_prompt", 1));
    const std::int64_t prompts = m_.whole(step_prompts());
    if (m_.kind == "rl" && prompts > 0) s_.set("sequences_per_step", fmt::format("{}", prompts * samples), step_prompts());
    if (samples > 1 && m_.kind == "rl") s_.set("samples_per_prompt", fmt::format("{}", samples), "job.samples_per_prompt");
    if (m_.kind == "rl") {
      s_.set("sync.by",
             m_.text("weight_update.mode") == "naive" ? (m_.text("job.placement") == "separated" ? "" : "ipc") : "nccl",
             "weight_update.mode");
      if (const std::int64_t bucket = m_.whole("weight_update.buffer_bytes"); bucket > 0)
        s_.set("sync.bucket", fmt::format("{}MiB", bucket / kMiB), "weight_update.buffer_bytes");
    }
  }
  /// Before 0.7 the workers are described as those of 0.7: their settings are all stated here.
  std::string framework() {
    if (since("0.7.0")) return "verl " + name_of(text_.release);
    notes_.push_back(
        {Note::Level::warning, {}, fmt::format("the workers of verl {} are described as those of 0.7", name_of(text_.release))});
    return "verl 0.7.0";
  }

  void role(const std::string& name) {
    const auto kind = name == "rollout"   ? RoleKind::rollout
                      : name == "actor"   ? RoleKind::actor
                      : name == "trainer" ? RoleKind::trainer
                      : name == "ref"     ? RoleKind::reference
                                          : RoleKind::critic;
    out_.roles.push_back({kind, s_.place(fact(name, "engine"))});
    if (name == "rollout") return rollout();
    const bool colocated = m_.text("job.placement") == "colocated";
    if (name == "actor" && colocated) s_.set("actor.beside", "rollout", "job.placement");
    if (name == "ref" || name == "critic") s_.set(name + ".beside", "actor", fact(name, "placement"));
    in_process(name, colocated);
    s_.copy(name + ".model", fact(name, "model"));
    s_.copy(name + ".engine", fact(name, "engine"));
    if (m_.text(fact(name, "engine")) == "megatron") {
      megatron_settings(s_, m_, name, notes_);
      predicted_settings(s_, text_, m_, name, notes_);
      if (m_.flag(fact(name, "fused_kernels")) && !predicts(text_, name) && !pads_under_megatron(name)) fused_megatron(name);
      if (name == "actor" && by_likely_tokens()) likely_tokens();
    } else {
      fsdp(name);
      linear_attention(name);
    }
    budget(name);
    adapters(name);
  }

  /// Trainers of a pool are workers of one process (create_colocated_worker_cls). Up to 0.6 vLLM runs in it, too
  /// (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py: distributed_executor_backend external_launcher); SGLang never does.
  void in_process(const std::string& name, bool colocated) {
    if (name == "ref" || name == "critic") s_.set(name + ".in_process", "true", fact(name, "placement"));
    if (name == "actor" && colocated && !since("0.7.0") && m_.text("roles.rollout.engine") == "vllm")
      s_.set("actor.in_process", "true", "job.placement");
    if (m_.text(fact(name, "engine")) == "megatron") overruled_degrees(name);
  }
  void overruled_degrees(const std::string& name) {
    const std::string own = name == "critic" ? "critic.megatron" : fmt::format("{}.{}.megatron", kArr, name);
    for (const auto& [key, letter] : {std::pair{"tensor_model_parallel_size", "tp"},
                                      {"pipeline_model_parallel_size", "pp"},
                                      {"context_parallel_size", "cp"},
                                      {"expert_model_parallel_size", "ep"}}) {
      const auto* node = text_.root.at(fmt::format("{}.{}", own, key));
      const ToldFact* told = m_.find(fmt::format("roles.{}.layout.{}", name, letter));
      if (node == nullptr || told == nullptr || !told->value.is_integer()) continue;
      const FactValue said = value_of(*node);
      if (said.is_integer() && said.integer() != told->value.integer())
        notes_.push_back({Note::Level::warning, node->origin.place,
                          fmt::format("{}.{}={} is not in force: workers of one process share Megatron's groups, and {} has {}",
                                      own, key, said.integer(), told->where, told->value.integer())});
    }
  }
  /// No key says which packages are installed.
  void linear_attention(const std::string& name) {
    if (beside_.linear_attention.empty()) return;
    Origin origin;
    origin.kind = Origin::Kind::derived;
    origin.because = "that is installed";
    origin.place = {"command line", 0, 0, "--linear-attention"};
    s_.put(name + ".linear_attention", beside_.linear_attention, origin);
  }

  void fsdp(const std::string& name) {
    const std::int64_t context = m_.whole(fact(name, "layout.cp"), 1), data = m_.whole(fact(name, "layout.dp"), 1);
    s_.set(name + ".layout", context > 1 ? fmt::format("d{}c{}", data, context) : fmt::format("d{}", data),
           fact(name, "layout.cp"));
    const std::int64_t gpus = m_.whole(fact(name, "gpus"), 1), group = m_.whole(fact(name, "shard_group"), gpus);
    if (group > 0 && group < gpus) s_.set(name + ".replicas", fmt::format("{}", gpus / group), fact(name, "shard_group"));
    s_.set(name + ".precision.storage", format_named(m_.text(fact(name, "param_dtype"))), fact(name, "param_dtype"));
    s_.set(name + ".precision.compute", format_named(m_.text(fact(name, "compute_dtype"))), fact(name, "compute_dtype"));
    s_.set(name + ".precision.reduce", format_named(m_.text(fact(name, "reduce_dtype"))), fact(name, "reduce_dtype"));
    const std::string attention = m_.text(fact(name, "attention"));
    s_.set(name + ".kernels",
           attention == "sdpa"    ? "hf_sdpa"
           : attention == "eager" ? "hf_eager"
                                  : "hf_flash",
           fact(name, "attention"));
    const ToldFact* recompute = m_.find(fact(name, "recompute"));
    const FactValue* granularity = recompute != nullptr ? recompute->value.find("granularity") : nullptr;
    s_.set(name + ".recompute", granularity != nullptr ? granularity->plain() : "", fact(name, "recompute"));
    if (m_.flag(fact(name, "activation_offload")) && name != "ref") {
      s_.set(name + ".offload_activations", "verl", fact(name, "activation_offload"));
      s_.set(name + ".reentrant", "true", fact(name, "activation_offload"));
    }
    if (m_.flag(fact(name, "liger"))) s_.set(name + ".liger", "[rope, rms_norm, swiglu]", fact(name, "liger"));
    s_.copy(name + ".reshard_after_forward", fact(name, "reshard_after_forward"));
    s_.copy(name + ".forward_prefetch", fact(name, "forward_prefetch"));
    const bool fsdp2 = m_.text(fact(name, "engine")) == "fsdp2";
    const bool policy = fsdp2 && m_.flag(fact(name, "offload_policy"));
    const bool fused = m_.flag(fact(name, "fused_kernels"));
    if (fused) fused_head(name);
    if (name == "ref") return;  // forced to the host
    s_.set(name + ".cpu_offload_policy", policy ? "true" : "false", fact(name, "offload_policy"));
    s_.set(name + ".offload",
           policy ? "[]" : offloaded(m_.flag(fact(name, "param_offload")), m_.flag(fact(name, "optimizer_offload"))),
           fact(name, "param_offload"));
    s_.set(name + ".optimizer", lowered(m_.text(fact(name, "optimizer"))), fact(name, "optimizer"));
    if (name != "critic" && !fused) head(name);
    if (since("0.9.0")) {
      const auto* key = text_.root.at(fmt::format("{}.actor.fsdp_config.use_no_sync_for_gradient_accumulation", kArr));
      const bool deferred = key == nullptr || (key->kind == compose::Node::Kind::boolean && key->boolean);
      s_.set(name + ".gradient_sync_every_micro_batch", deferred ? "false" : "true", fact(name, "engine"));
    }
  }
  static std::string lowered(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  }

  /// One call of the head gives log-probs and entropy: neither chunks nor a checkpoint of the entropy are asked for, and passes
  /// without gradients run it too (verl/workers/engine/fsdp/transformer_impl.py, 0.7 to 0.10: prepare_model_outputs).
  void fused_head(const std::string& name) {
    const bool triton = fused_backend() == "triton";
    const bool entropy = name != "ref" && m_.flag(fact(name, "entropy_in_training"));
    s_.set(name + ".head",
           fmt::format("{}{}",
                       triton           ? "verl_fused_triton"
                       : since("0.8.0") ? "verl_fused"
                                        : "verl_fused_log_softmax",
                       entropy ? "_entropy" : ""),
           fact(name, "fused_kernels"));
    if (name == "actor" && !triton && !since("0.9.0") && m_.flag(fact(name, "liger")))
      notes_.push_back({Note::Level::warning, s_.place(fact(name, "fused_kernels")),
                        "up to verl 0.8 use_liger and torch's fused kernels lose the gradient of all layers "
                        "(mended in 0.9); the answer has it"});
  }

  /// A value model has none (verl/workers/engine/megatron/transformer_impl.py, 0.9: _maybe_enable_fused_kernels), and up to 0.7
  /// neither has the reference, whose configuration lacks the key that its actor is asked for
  /// (verl/workers/actor/megatron_actor.py, 0.5 to 0.7).
  void fused_megatron(const std::string& name) {
    if (name == "actor" || (name == "ref" && since("0.8.0")))
      s_.set(name + ".cross_entropy", "verl_fused", fact(name, "fused_kernels"));
  }

  /// From 0.9 on a loss that is nothing else needs no log-probs (verl/trainer/ppo/ray_trainer.py: distillation_only).
  void likely_tokens() {
    const std::string loss = "distillation.distillation_loss", topk = loss + ".topk";
    const auto flag = [&](const char* key) {
      const auto* n = text_.root.at(fmt::format("{}.{}", loss, key));
      return n == nullptr || n->kind != compose::Node::Kind::boolean || n->boolean;
    };
    const auto* n = text_.root.at(topk);
    if (n != nullptr) s_.set_at("actor.teacher_topk", fmt::format("{}", n->integer), topk);
    if (since("0.9.0") && !flag("use_task_rewards") && !flag("use_policy_gradient"))
      s_.set("actor.teacher_alone", "true", "job.distillation.loss_mode");
  }

  /// Up to 0.8 logits are divided by the temperature in place (#6935).
  void head(const std::string& name) {
    const bool entropy = m_.flag(fact(name, "entropy_in_training")), chunks = m_.flag(fact(name, "entropy_chunking")),
               again = m_.flag(fact(name, "entropy_checkpointing"));
    const auto* compiles = text_.root.at(fmt::format("{}.actor.use_torch_compile", kArr));
    const bool compiled = compiles == nullptr || compiles->kind != compose::Node::Kind::boolean || compiles->boolean;
    std::string head = since("0.9.0") ? "verl_flash_ce" : "verl_flash_ce_div_in_place";
    if (entropy)
      head = chunks && again ? "verl_entropy_chunked_checkpoint"
             : chunks        ? "verl_entropy_chunked"
             : again         ? "verl_entropy_checkpoint"
             : compiled      ? "verl_entropy_compiled"
                             : "verl_entropy_eager";
    s_.set(name + ".head", head, entropy ? fact(name, "entropy_in_training") : fact(name, "engine"));
  }

  /// Tokens of a micro-batch: packed, or so many sequences.
  struct Budget {
    std::int64_t tokens = 0, sequences = 0;
    std::string from;
  };
  /// Tokens of a sequence: what is said of them, but no more than the settings allow.
  std::int64_t length() const {
    const std::int64_t longest = m_.kind == "sft" ? m_.whole("job.max_total_length")
                                                  : m_.whole("job.max_prompt_length") + m_.whole("job.max_response_length");
    return beside_.sequence_tokens > 0 && longest > 0 ? std::min(beside_.sequence_tokens, longest) : longest;
  }
  /// `sequences`: of a data-parallel rank that are dealt to micro-batches; 0: not known.
  Budget budget_of(const std::string& batch, std::int64_t sequences) const {
    if (!m_.flag(batch + ".dynamic")) {
      const std::int64_t n = m_.whole(batch + ".sequences_per_data_parallel_rank");
      return {n * (beside_.sequence_tokens > 0 ? length() : m_.whole(batch + ".sequence_length_padded")), n,
              batch + ".sequences_per_data_parallel_rank"};
    }
    const std::int64_t budget = m_.whole(batch + ".tokens_per_micro_batch_of_group");
    const std::string from = batch + ".tokens_per_gpu";
    if (sequences <= 0 || budget <= 0 || length() <= 0) return {budget, 0, from};
    // verl/utils/seqlen_balancing.py (rearrange_micro_batches): as many micro-batches as all tokens ask for, then sequences are
    // dealt out evenly. Of sequences of one length that is exact, and may be more than the budget; of others the budget is
    // reached.
    if (beside_.sequence_tokens == 0) return {std::min(budget, sequences * length()), 0, from};
    const std::int64_t batches = std::min(sequences, ceil_div(sequences * length(), budget));
    return {ceil_div(sequences, batches) * length(), 0, from};
  }
  /// Sequences of a step, or of a mini-batch, on one data-parallel rank of a role.
  std::int64_t sequences_of(std::string_view prompts, const std::string& role) const {
    const std::int64_t all = m_.whole(prompts) * std::max<std::int64_t>(1, m_.whole("job.samples_per_prompt", 1));
    return all / std::max<std::int64_t>(1, m_.whole(fact(role, "layout.dp"), 1));
  }
  /// The fact that counts the prompts of a step.
  std::string_view step_prompts() const { return m_.find(kStepPrompts) != nullptr ? kStepPrompts : "job.train_batch_prompts"; }
  /// The fact that counts the prompts, or sequences, that a role takes at once.
  std::string_view batch_of(const std::string& role) const {
    if (role == "trainer") return "job.train_batch_sequences";
    return role == "actor" || role == "critic" ? "roles.actor.mini_batch_prompts" : step_prompts();
  }
  void budget(const std::string& name) {
    const std::string batch = fact(name, "micro_batch");
    const Budget b = budget_of(batch, sequences_of(batch_of(name), name));
    if (b.tokens == 0)
      return s_.lacking(batch + ".dynamic",
                        fmt::format("a micro-batch of {}: *_micro_batch_size_per_gpu, or use_dynamic_bsz", name));
    const bool megatron = m_.text(fact(name, "engine")) == "megatron";
    const bool packed =
        megatron ? !pads_under_megatron(name) : m_.flag(fact(name, "remove_padding")) || m_.flag(batch + ".dynamic");
    if (packed) {
      s_.set(name + ".tokens_per_micro_batch", fmt::format("{}", b.tokens), b.from);
    } else {
      s_.set(name + ".sequences_per_micro_batch", fmt::format("{}", b.sequences), b.from);
      s_.set(name + ".sequence_tokens", fmt::format("{}", b.tokens / std::max<std::int64_t>(1, b.sequences)), b.from);
    }
    images_.put(name, b.tokens, packed, length());
    if (name == "actor" && m_.flag("job.old_logprob_pass") && (packed || megatron)) forward_budget(b);
    if (name == "actor" || name == "trainer") micro_batches(name, b);
    if (name == "actor" && b.sequences > 0 && beside_.sequence_tokens == 0)
      notes_.push_back(
          {Note::Level::info, s_.place(b.from),
           fmt::format("micro-batches count sequences, which are taken to be as long as the settings allow, {} tokens; "
                       "--sequence-tokens says what the samples have",
                       length())});
    if (name == "trainer")
      s_.set("trainer.sequence_tokens", packed ? "" : fmt::format("{}", m_.whole("job.max_total_length")),
             "job.max_total_length");
  }
  /// The actor's log-probs have a budget of their own.
  void forward_budget(const Budget& training) {
    const Budget forward = budget_of("job.old_logprob_micro_batch", sequences_of(step_prompts(), "actor"));
    if (forward.tokens == 0 || forward.tokens == training.tokens) return;
    s_.set("actor.logprob_tokens_per_micro_batch", fmt::format("{}", forward.tokens), forward.from);
  }
  /// Of one mini-batch, or of a step of supervised training, with all sequences as long as they may get.
  void micro_batches(const std::string& name, const Budget& b) {
    const std::string_view all = batch_of(name);
    const std::int64_t sequences = std::max<std::int64_t>(1, sequences_of(all, name));
    const std::int64_t fit =
        b.sequences > 0 ? b.sequences : std::max<std::int64_t>(1, b.tokens / std::max<std::int64_t>(1, length()));
    if (m_.whole(all) > 0) s_.set(name + ".micro_batches", fmt::format("{}", ceil_div(sequences, fit)), all);
  }

  void adapters(const std::string& name) {
    const ToldFact* lora = m_.find(fact(name, "lora"));
    if (lora == nullptr || !lora->value.is_map() || name == "ref") return;
    if (m_.text(fact(name, "engine")) == "megatron") return adapters_of_megatron(name, *lora);
    const auto part = [&](const char* key) {
      const FactValue* v = lora->value.find(key);
      return v != nullptr ? v->plain() : std::string();
    };
    s_.set(name + ".lora.rank", part("rank"), fact(name, "lora"));
    s_.set(name + ".lora.alpha", part("alpha"), fact(name, "lora"));
    targets(name, lora->value.find("targets"));
    excluded(name);
    if (name != "actor" && name != "trainer") return;
    if (const FactValue* merges = lora->value.find("merge"); merges != nullptr && merges->boolean())
      s_.refuse(fact(name, "lora"), "lora.merge: adapters that are added to the base for the servers");
    const std::string key = fmt::format("{}.rollout.layered_summon", kArr);
    const auto* layered = text_.root.at(key);
    const bool on = layered != nullptr && layered->kind == compose::Node::Kind::boolean && layered->boolean;
    if (name != "actor" || m_.text(fact(name, "engine")) != "fsdp1") return;
    s_.set_at("actor.lora.layered_summon", on ? "true" : "false", key);
    const std::string format = m_.text("roles.rollout.load_format");
    if (on && format.find("dummy") != std::string::npos)
      out_.problems.push_back({s_.place("roles.rollout.load_format"),
                               fmt::format("'{}'", format),
                               "safetensors",
                               {},
                               "verl itself refuses it beside layered_summon: the servers need the base first",
                               ProblemKind::refused_by_framework});
  }
  /// get_peft_cls (verl/workers/config/megatron_peft.py, 0.9 and 0.10) and create_peft (megatron/bridge/peft/utils.py, 0.5.2).
  void adapters_of_megatron(const std::string& name, const ToldFact& lora) {
    const std::string own = fmt::format("{}.model.lora", kArr);
    if (name != "actor" || lora.where != own + ".rank")
      return s_.refuse_key(lora.where, "adapters under Megatron other than an actor's model.lora");
    if (!since("0.9.0")) return s_.refuse_key(lora.where, "adapters under Megatron before verl 0.9");
    if (m_.text(fact(name, "models_by")) != "megatron-bridge")
      return s_.fails(lora.where, "0, or megatron.vanilla_mbridge=False",
                      "verl itself asserts that adapters under Megatron are those of Megatron-Bridge");
    if (refuse_kinds(own)) return;
    const auto part = [&](const char* key) {
      const FactValue* v = lora.value.find(key);
      return v != nullptr ? v->plain() : std::string();
    };
    s_.set("actor.lora.rank", part("rank"), fact(name, "lora"));
    s_.set("actor.lora.alpha", part("alpha"), fact(name, "lora"));
    s_.set("actor.lora.format", "storage", fact(name, "lora"));
    targets(name, lora.value.find("targets"));
    const std::string format = m_.text("roles.rollout.load_format");
    if (format.find("dummy") == std::string::npos)
      s_.refuse("roles.rollout.load_format",
                "adapters under Megatron without a first update that sends the base (load_format dummy)");
  }
  /// Words of model.lora that change what Megatron-Bridge makes.
  bool refuse_kinds(const std::string& own) {
    constexpr std::array<std::string_view, 4> kLayers{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
    const auto* type = text_.root.at(own + ".type");
    const auto refused = [&](const std::string& key, const std::string& what) {
      s_.refuse_key(own + key, what);
      return true;
    };
    if (type != nullptr && type->text != "lora")
      return refused(".type", "adapters of the kind " + type->text + " under Megatron");
    if (const auto* merge = text_.root.at(own + ".merge"); merge != nullptr && merge->boolean)
      return refused(".merge", "adapters under Megatron that are added to the base for the servers");
    for (const char* key : {".dropout", ".exclude_modules", ".a2a_experimental", ".dtype", ".adapter_path"})
      if (const auto* n = text_.root.at(own + key); n != nullptr && is_set(*n))
        return refused(key, fmt::format("model.lora{} under Megatron", key));
    const auto* modules = text_.root.at(own + ".target_modules");
    for (const auto& item : modules != nullptr ? modules->items : std::vector<compose::Node>{})
      if (std::ranges::find(kLayers, item.text) == kLayers.end())
        return refused(".target_modules", fmt::format("adapters under Megatron beside {}", item.text));
    return false;
  }
  static bool is_set(const compose::Node& n) {
    switch (n.kind) {
      case compose::Node::Kind::null:
        return false;
      case compose::Node::Kind::boolean:
        return n.boolean;
      case compose::Node::Kind::list:
        return !n.items.empty();
      case compose::Node::Kind::integer:
        return n.integer != 0;
      case compose::Node::Kind::real:
        return n.real != 0;
      case compose::Node::Kind::text:
        return !n.text.empty();
      default:
        return true;
    }
  }
  void targets(const std::string& name, const FactValue* value) {
    const std::string knob = name + ".lora.targets";
    if (value == nullptr || value->is_null()) return;
    if (value->kind() == FactValue::Kind::list) {
      std::string all;
      for (const FactValue& one : value->items()) all += (all.empty() ? "" : ", ") + one.plain();
      return s_.set(knob, "[" + all + "]", fact(name, "lora"));
    }
    s_.set(knob, value->plain(), fact(name, "lora"));  // all-linear, or an expression
  }
  void excluded(const std::string& name) {
    const std::string key = name == "trainer" ? "model.exclude_modules" : fmt::format("{}.model.exclude_modules", kArr);
    const auto* n = text_.root.at(key);
    if (n == nullptr || name == "critic" || m_.text(fact(name, "engine")) == "megatron") return;
    if (n->kind == compose::Node::Kind::text && !n->text.empty()) s_.set_at(name + ".lora.exclude", n->text, key);
    if (n->kind != compose::Node::Kind::list || n->items.empty()) return;
    std::string all;
    for (const auto& one : n->items) all += (all.empty() ? "" : ", ") + one.text;
    s_.set_at(name + ".lora.exclude", "[" + all + "]", key);
  }
  /// vLLM has room for one adapter of the next rank that it knows (get_vllm_max_lora_rank in
  /// verl/workers/rollout/vllm_rollout/utils.py), SGLang for one of the rank (async_sglang_server.py).
  void slots(const std::string& engine) {
    const ToldFact* lora = m_.find("roles.actor.lora");
    if (lora == nullptr || !lora->value.is_map() || m_.kind != "rl") return;
    constexpr std::array<std::int64_t, 8> kRanks{8, 16, 32, 64, 128, 256, 320, 512};
    const FactValue* own = lora->value.find("rank");
    const std::int64_t rank = own != nullptr ? own->integer() : 0;
    const auto room = std::find_if(kRanks.begin(), kRanks.end(), [&](std::int64_t r) { return r >= rank; });
    if (room == kRanks.end()) return;  // refused beside the other rules
    s_.set("rollout.lora.slots", "1", "roles.actor.lora");
    s_.set("rollout.lora.rank", fmt::format("{}", engine == "vllm" ? *room : rank), "roles.actor.lora");
  }

  void rollout() {
    server_settings(s_, text_, m_, {"rollout", fmt::format("{}.rollout", kArr)}, notes_);
    const bool shares = m_.text("job.placement") == "colocated" && m_.kind == "rl";
    draft_settings(s_, text_, m_.text("roles.rollout.engine"));
    if (shares) {
      const bool drafts = drafts_ahead(text_);  // a draft's weights are not handed over whole: level 1
      const bool keeps_host_copy = m_.find("roles.actor.lora") != nullptr && m_.find("roles.actor.lora")->value.is_map();
      // SGLang's hybrid servers have it from 0.9 on (async_sglang_server.py: enable_weights_cpu_backup)
      const bool backed_up = m_.text("roles.rollout.engine") == "sglang" && since("0.9.0");
      s_.set("rollout.sleep",
             !m_.flag("roles.rollout.free_cache_engine")                 ? "0"
             : keeps_host_copy || drafts || backed_up || !since("0.6.0") ? "1"
                                                                         : "2",
             "roles.rollout.free_cache_engine");
    }
    slots(m_.text("roles.rollout.engine"));
  }

  /// On GPUs of its own it never sleeps; beside the trainer it leaves its weights on the host (vllm_async_server.py and
  /// async_sglang_server.py, 0.7.0 to 0.10: RolloutMode.COLOCATED).
  void reward() {
    out_.roles.push_back({RoleKind::reward, s_.place("roles.reward.engine")});
    server_settings(s_, text_, m_, {"reward", m_.reward + ".rollout"}, notes_);
    s_.copy("reward.pooling", "roles.reward.pooling");
    // of scores no batch is the same bit by bit (verl/experimental/reward_loop/reward_loop.py, 0.9 and 0.10)
    if (m_.flag("roles.reward.pooling") && m_.flag("roles.reward.full_determinism"))
      s_.set("reward.max_running_requests", "1", "roles.reward.full_determinism");
    if (!m_.flag("roles.reward.pooling"))
      notes_.push_back({Note::Level::info, s_.place("roles.reward.pooling"),
                        "the reward model is taken to generate, as a function of your own asks it"});
    if (m_.text("roles.reward.placement") == "own") return;
    s_.set("reward.beside", "rollout", "roles.reward.placement");
    s_.set("reward.sleep", m_.flag("roles.reward.free_cache_engine") ? "1" : "0", "roles.reward.free_cache_engine");
  }

  /// Servers that score what the rollout generated.
  void teachers() {
    const std::vector<std::string> paths = m_.teachers;
    for (std::size_t i = 0; i < std::min(paths.size(), kMostTeachers); ++i) {
      const std::string name = teacher_name(i + 1);
      out_.roles.push_back({RoleKind::teacher, s_.place(fact(name, "engine")), name});
      server_settings(s_, text_, m_, {name, paths[i] + ".inference"}, notes_);
    }
  }

  void serve_alone() {
    std::erase_if(out_.settings, [](const Setting& s) { return s.key == "framework"; });
    for (Setting& s : out_.settings)
      if (s.key.starts_with("rollout.")) s.key.replace(0, 8, "server.");
    out_.roles = {{RoleKind::server, out_.roles.front().place}};
  }

  const VerlText& text_;
  const VerlMeaning& m_;
  const Beside& beside_;
  std::vector<Note>& notes_;
  NativeText out_;
  VerlSettings s_;
  VerlImages images_;
};

}  // namespace

NativeText job_of(const VerlText& text, const VerlMeaning& m, const Beside& beside, std::vector<Note>& notes) {
  return VerlTranslator(text, m, beside, notes).run();
}

}  // namespace oomplan::verl
