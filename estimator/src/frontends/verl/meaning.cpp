#include "frontends/verl/meaning.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/verl/meaning_parts.hpp"
#include "job/role_names.hpp"

namespace oomplan::verl {
namespace {

class VerlMeaner {
 public:
  explicit VerlMeaner(const VerlText& text) : text_(text), t_(text.root, out_.facts, "verl's code") {}

  VerlMeaning run() {
    out_.kind = kind();
    t_.code("job.kind", out_.kind, "module");
    cluster();
    if (out_.kind == "sft") {
      sft();
      return std::move(out_);
    }
    job();
    if (out_.kind == "rl") {
      actor();
      reference();
      critic();
      reward();
    }
    out_.roles.emplace_back("rollout");
    rollout();
    if (out_.kind == "rl") teachers();
    weight_update();
    machine();
    t_.derived("job.gpus_used", out_.kind == "generation" ? std::int64_t{0} : gpus_of_pools(), "sum of pools");
    return std::move(out_);
  }

 private:
  bool since(std::string_view release) const { return text_.release >= release_named(release); }
  std::string_view module() const { return text_.arguments.module; }
  std::string kind() const {
    if (module().find("sft_trainer") != std::string_view::npos) return "sft";
    return module().find("generation") != std::string_view::npos ? "generation" : "rl";
  }
  std::string own_trainer() const {
    return module().find("fully_async") != std::string_view::npos    ? "fully_async"
           : module().find("one_step_off") != std::string_view::npos ? "one_step_off"
                                                                     : "";
  }
  /// Servers have GPUs of their own.
  bool separated() const {
    return !own_trainer().empty() || (t_.flag("trainer.use_v1") && t_.text("trainer.v1.trainer_mode") == "separate_async");
  }
  std::int64_t nodes() const { return text_.arguments.nodes.value_or(t_.whole("trainer.nnodes", 1)); }
  std::int64_t per_node() const { return text_.arguments.gpus_per_node.value_or(t_.whole("trainer.n_gpus_per_node", 8)); }
  std::int64_t world() const { return nodes() * per_node(); }
  std::int64_t gpus_of_pools() const {
    return world() + (separated() ? rollout_gpus() : 0) + gpus_of_teachers(t_) + gpus_of_rewards(t_, text_.release);
  }
  std::int64_t longest() const {
    return out_.kind == "sft" ? t_.whole("data.max_length", 1024)
                              : t_.whole("data.max_prompt_length", 512) + t_.whole("data.max_response_length", 512);
  }

  void cluster() {
    const auto tell = [&](const char* fact, const char* key, const std::optional<std::int64_t>& said, const char* flag,
                          std::int64_t n) {
      if (said)
        t_.derived(fact, *said, flag);
      else
        t_.made(fact, n, key);
    };
    tell("cluster.nodes", "trainer.nnodes", text_.arguments.nodes, "torchrun --nnodes", nodes());
    tell("cluster.gpus_per_node", "trainer.n_gpus_per_node", text_.arguments.gpus_per_node, "torchrun --nproc-per-node",
         per_node());
  }

  void job() {
    t_.take("job.algorithm", "algorithm.adv_estimator");
    t_.take("job.max_prompt_length", "data.max_prompt_length");
    t_.take("job.max_response_length", "data.max_response_length");
    step_batch();
    t_.take("job.samples_per_prompt", fmt::format("{}.rollout.n", kArr), FactValue(1));
    t_.derived("job.placement", separated() ? "separated" : "colocated", "trainer mode / entry module");
    t_.made("job.sleep_wake", !separated() && t_.flag(fmt::format("{}.rollout.free_cache_engine", kArr), true),
            fmt::format("{}.rollout.free_cache_engine", kArr));
    if (out_.kind != "rl") return;
    const bool bypass = t_.flag("algorithm.rollout_correction.bypass_mode") ||
                        t_.flag("algorithm.rollout_correction.bypass_old_logprob_for_rollout");
    t_.derived("job.old_logprob_pass", !bypass, "algorithm.rollout_correction.bypass_mode");
    const std::string rollout = fmt::format("{}.rollout", kArr);
    const RoleAt at = actor_at();
    const std::int64_t context = context_of(t_, at);
    tell_batch(t_, {"job.old_logprob_micro_batch", rollout + ".log_prob_use_dynamic_bsz",
                    rollout + ".log_prob_max_token_len_per_gpu", rollout + ".log_prob_micro_batch_size_per_gpu",
                    rollout + ".log_prob_micro_batch_size", context, data_of(at), longest(), "sp size"});
  }

  /// The asynchronous trainer takes so many from its queue, whatever data.train_batch_size says
  /// (fully_async_policy/fully_async_trainer.py, 0.7 to 0.10: required_samples).
  void step_batch() {
    t_.take("job.train_batch_prompts", "data.train_batch_size");
    const std::string mini = fmt::format("{}.actor.ppo_mini_batch_size", kArr);
    if (own_trainer() == "fully_async")
      t_.derived(kStepPrompts, t_.whole(mini, 0) * t_.whole("async_training.require_batches", 1),
                 "ppo_mini_batch_size x async_training.require_batches", mini);
  }

  std::string block_of(const std::string& path, std::string_view role, bool megatron) const {
    if (megatron) return path + ".megatron";
    if (role != "critic") return path + ".fsdp_config";
    return since("0.8.0") ? path + ".fsdp" : path + ".model.fsdp_config";
  }
  RoleAt role_at(std::string name, const std::string& path, std::string model) const {
    const std::string strategy = t_.text(path + ".strategy", t_.text(fmt::format("{}.actor.strategy", kArr), "fsdp"));
    const bool megatron = strategy == "megatron" || t_.at(path + ".megatron") != nullptr;
    return {name,     path,          std::move(model), block_of(path, name, megatron),
            megatron, name == "ref", world(),          megatron ? block_of_degrees() : ""};
  }
  /// Workers of a pool share a process, and Megatron's groups are made once, with the degrees of the engine that comes first. Up
  /// to 0.7 that is the actor's (verl/workers/megatron_workers.py, __init__). Later the critic's is built with its worker, and
  /// those of the reference and the actor, in this order, by init_model (verl/workers/engine_workers.py: TrainingWorker and
  /// ActorRolloutRefWorker; engine/megatron/transformer_impl.py _init_device_mesh).
  std::string block_of_degrees() const {
    std::string actor = fmt::format("{}.actor.megatron", kArr);
    const bool legacy = !since("0.8.0") && t_.text("trainer.use_legacy_worker_impl", "auto") != "disable";
    if (legacy) return actor;
    if (critic_is_built() && t_.at("critic.megatron") != nullptr) return "critic.megatron";
    return reference_is_built() ? fmt::format("{}.ref.megatron", kArr) : actor;
  }
  bool critic_is_built() const {
    return t_.has("critic.enable") ? t_.flag("critic.enable") : t_.text("algorithm.adv_estimator", "gae") == "gae";
  }
  bool reference_is_built() const {
    return rank_of_adapters() == 0 &&
           (t_.flag(fmt::format("{}.actor.use_kl_loss", kArr)) || t_.flag("algorithm.use_kl_in_reward"));
  }
  RoleAt actor_at() const { return role_at("actor", fmt::format("{}.actor", kArr), fmt::format("{}.model", kArr)); }
  std::int64_t data_of(const RoleAt& at) const {
    const std::int64_t context = context_of(t_, at);
    const auto degree = [&](const char* name) { return t_.whole(at.block_of_degrees() + name, 1); };
    const std::int64_t model =
        at.megatron ? degree(".tensor_model_parallel_size") * degree(".pipeline_model_parallel_size") * context : context;
    return model > 0 ? std::max<std::int64_t>(1, at.gpus / model) : 1;
  }
  std::string_view group_of(const RoleAt& at) const { return at.megatron ? "context parallel size" : "ulysses size"; }

  void actor() {
    const RoleAt at = actor_at();
    out_.roles.push_back(at.name);
    tell_engine(t_, at, text_.release);
    tell_batch(t_, {"roles.actor.micro_batch", at.path + ".use_dynamic_bsz", at.path + ".ppo_max_token_len_per_gpu",
                    at.path + ".ppo_micro_batch_size_per_gpu", at.path + ".ppo_micro_batch_size", context_of(t_, at), data_of(at),
                    longest(), group_of(at)});
    t_.code("roles.actor.placement", "own", "global_pool");
    t_.take("roles.actor.mini_batch_prompts", at.path + ".ppo_mini_batch_size");
    t_.derived("roles.actor.entropy_in_training",
               t_.real(at.path + ".entropy_coeff", 0) != 0 || t_.flag(at.path + ".calculate_entropy"),
               "entropy_coeff != 0 or calculate_entropy", at.path + ".entropy_coeff");
  }

  std::int64_t rank_of_adapters() const {
    return std::max(t_.whole(fmt::format("{}.model.lora_rank", kArr), 0), t_.whole(fmt::format("{}.model.lora.rank", kArr), 0));
  }
  void reference() {
    const bool asked = t_.flag(fmt::format("{}.actor.use_kl_loss", kArr)) || t_.flag("algorithm.use_kl_in_reward");
    if (!asked)
      return out_.absent.push_back({"ref", "no KL loss and no KL in reward", "actor.use_kl_loss, algorithm.use_kl_in_reward"});
    if (rank_of_adapters() > 0)
      return out_.absent.push_back(
          {"ref", "LoRA: the base model with the adapter disabled is the reference", "verl/trainer/ppo/v1/trainer_base.py"});
    const RoleAt at = role_at("ref", fmt::format("{}.ref", kArr), fmt::format("{}.model", kArr));
    out_.roles.push_back(at.name);
    tell_engine(t_, at, text_.release);
    tell_batch(t_, {"roles.ref.micro_batch", at.path + ".log_prob_use_dynamic_bsz", at.path + ".log_prob_max_token_len_per_gpu",
                    at.path + ".log_prob_micro_batch_size_per_gpu", at.path + ".log_prob_micro_batch_size", context_of(t_, at),
                    data_of(at), longest(), group_of(at)});
    t_.code("roles.ref.placement", "in_process:actor", "ActorRolloutRefWorker");
  }

  void critic() {
    if (!critic_is_built()) return;
    const RoleAt at = role_at("critic", "critic", "critic.model");
    out_.roles.push_back(at.name);
    tell_engine(t_, at, text_.release);
    // trainer_base.py of v1 takes a field of the dataclass that no file has, 32768
    const bool v1 = t_.flag("trainer.use_v1");
    tell_batch(t_, {"roles.critic.micro_batch", "critic.use_dynamic_bsz",
                    v1 ? "critic.ppo_infer_max_token_len_per_gpu" : "critic.ppo_max_token_len_per_gpu",
                    "critic.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size", context_of(t_, at), data_of(at),
                    longest(), group_of(at)});
    t_.code("roles.critic.placement", "in_process:actor", "one pool");
  }

  void reward() {
    if (!rewards(t_, text_.release)) return;
    out_.roles.emplace_back("reward");
    if (const RewardAt at = reward_at(t_, text_.release); at.served) out_.reward = at.path;
    tell_reward(t_, text_.release, world());
  }

  void rollout() {
    const bool own = separated();
    tell_server(t_, text_.release,
                {"roles.rollout.", fmt::format("{}.rollout", kArr), fmt::format("{}.model.path", kArr), rollout_gpus(),
                 own ? "rollout.nnodes x n_gpus_per_node" : "same GPUs as the actor", own ? "own" : "shares:actor",
                 own ? "disjoint pools" : "hybrid engine; separate server processes on the same GPUs"});
  }

  /// One alone takes the whole pool; of several each says its replicas.
  void teachers() {
    if (!distills(t_)) return;
    t_.take("job.distillation.loss_mode", "distillation.distillation_loss.loss_mode");
    const std::vector<std::string>& paths = out_.teachers = paths_of_teachers(t_);
    for (std::size_t i = 0; i < std::min(paths.size(), kMostTeachers); ++i) {  // more are refused
      const std::string name = teacher_name(i + 1), server = paths[i] + ".inference";
      const std::int64_t own = t_.whole(paths[i] + ".num_replicas", 0) * gpus_of_a_server(t_, server);
      out_.roles.push_back(name);
      tell_server(t_, text_.release,
                  {"roles." + name + ".", server, paths[i] + ".model_path", paths.size() == 1 ? gpus_of_teachers(t_) : own,
                   paths.size() == 1 ? "distillation.nnodes x n_gpus_per_node" : "num_replicas x GPUs of one", "own",
                   "the pool of the teachers"});
    }
  }

  /// GPUs of a machine: pools of equally many machines share them (trainer.n_gpus_per_node 6 beside rollout.n_gpus_per_node 2);
  /// others have machines of their own, as large as the largest share.
  void machine() {
    std::int64_t n = per_node();
    const auto beside = [&](const std::string& pool) {
      const std::int64_t others = t_.whole(pool + ".n_gpus_per_node", per_node());
      const bool fits_beside = t_.whole(pool + ".nnodes", 1) == nodes() && n + others <= 8;
      n = fits_beside ? n + others : std::max(n, others);
    };
    if (separated()) beside(own_trainer().empty() ? fmt::format("{}.rollout", kArr) : "rollout");
    if (out_.kind == "rl" && gpus_of_rewards(t_, text_.release) > 0) beside(reward_at(t_, text_.release).path);
    if (out_.kind == "rl" && distills(t_)) beside("distillation");
    t_.derived("job.gpus_of_a_machine", n, "trainer.n_gpus_per_node and rollout.n_gpus_per_node", "trainer.n_gpus_per_node");
  }
  std::int64_t rollout_gpus() const {
    if (!separated()) return world();
    const std::string top = own_trainer().empty() ? fmt::format("{}.rollout", kArr) : "rollout";
    return t_.whole(top + ".nnodes", 1) * t_.whole(top + ".n_gpus_per_node", per_node());
  }

  void weight_update() {
    if (out_.kind != "rl" && out_.kind != "generation") return;
    const std::string engine = fmt::format("{}.rollout.checkpoint_engine", kArr);
    const std::string old = fmt::format("{}.rollout.update_weights_bucket_megabytes", kArr);
    const std::string backend = t_.text(engine + ".backend", "naive");
    t_.take("weight_update.mode", engine + ".backend", FactValue("naive"), "workers of one process, or one bucket by IPC");
    const std::string key =
        t_.knows(engine + ".update_weights_bucket_megabytes") ? engine + ".update_weights_bucket_megabytes" : old;
    if (t_.knows(key)) t_.made("weight_update.buffer_bytes", t_.whole(key, 0) * kMiB, key);
    t_.code("weight_update.buffers", backend == "naive" ? 1 : 2, "naive: one IPC buffer; others: send and receive");
  }

  void sft() {
    t_.take("job.max_total_length", "data.max_length");
    t_.take("job.train_batch_sequences", "data.train_batch_size");
    const bool legacy = module().find("fsdp_sft") != std::string_view::npos;
    const std::string strategy = legacy ? t_.text("model.strategy", "fsdp") : t_.text("engine.strategy", "fsdp");
    const bool megatron =
        strategy == "megatron" || (!legacy && t_.knows("engine.tensor_model_parallel_size") && !t_.knows("engine.fsdp_size"));
    const RoleAt at{"trainer", "", "model", legacy ? "model.fsdp_config" : "engine", megatron, false, world()};
    out_.roles.push_back(at.name);
    tell_engine(t_, at, text_.release);
    tell_batch(
        t_, {"roles.trainer.micro_batch", "data.use_dynamic_bsz", "data.max_token_len_per_gpu", "data.micro_batch_size_per_gpu",
             "data.micro_batch_size", context_of(t_, at), data_of(at), longest(), group_of(at)});
    t_.code("roles.trainer.placement", "own", "");
    machine();
    t_.derived("job.gpus_used", world(), "sum of pools");
  }

  const VerlText& text_;
  VerlMeaning out_;
  Telling t_;
};

}  // namespace

bool VerlMeaning::has_role(std::string_view name) const { return std::find(roles.begin(), roles.end(), name) != roles.end(); }
std::string VerlMeaning::text(std::string_view key, std::string otherwise) const {
  const ToldFact* f = find(key);
  return f != nullptr && f->value.kind() == FactValue::Kind::text ? f->value.text() : otherwise;
}
std::int64_t VerlMeaning::whole(std::string_view key, std::int64_t otherwise) const {
  const ToldFact* f = find(key);
  return f != nullptr && f->value.is_integer() ? f->value.integer() : otherwise;
}
bool VerlMeaning::flag(std::string_view key) const {
  const ToldFact* f = find(key);
  return f != nullptr && f->value.kind() == FactValue::Kind::boolean && f->value.boolean();
}

VerlMeaning meaning_of(const VerlText& text) { return VerlMeaner(text).run(); }

}  // namespace oomplan::verl
