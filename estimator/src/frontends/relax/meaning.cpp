#include "frontends/relax/meaning.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/relax/resource.hpp"
#include "frontends/relax/servers.hpp"

namespace oomplan::relax {
namespace {

using Json = nlohmann::json;
using slime::Forward;
using slime::Own;
using slime::Served;
using slime::SlimeMeaning;
using slime::SlimeText;

constexpr const char* kArguments = "relax/utils/arguments.py";
constexpr const char* kController = "relax/core/controller.py: register_all_serve";
constexpr const char* kForward = "relax/utils/utils.py: process_args";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

/// A role for log-probs alone: the actor's arguments, those of --ref-actor-config instead. Its budget is that of log-probs
/// whatever max_tokens_per_gpu stands there.
Forward forward_of(const SlimeText& t, std::string name, std::int64_t gpus) {
  Forward out;
  out.name = std::move(name);
  out.gpus = std::max<std::int64_t>(1, gpus);
  out.arguments = t.megatron;
  out.tokens = t.own.whole_or("log_probs_max_tokens_per_gpu", t.own.whole_or("max_tokens_per_gpu", 0));
  if (const auto config = object_of(t, "ref_actor_config"))
    for (const auto& [key, value] : config->items()) {
      if (key == "log_probs_max_tokens_per_gpu" && value.is_number_integer()) out.tokens = value.get<std::int64_t>();
      if (megatron::flag_named(key) != nullptr && value.is_primitive()) out.arguments.set(key, value, "--ref-actor-config");
    }
  out.tokens = std::clamp<std::int64_t>(out.tokens, 0, kMostTokens);
  megatron::Complaints unheard;  // told by rules
  out.run = megatron::derive(out.arguments, out.gpus, megatron::Built::by_arguments, unheard);
  return out;
}

class Teller {
 public:
  Teller(SlimeText& text, SlimeMeaning& m) : t_(text), m_(m), r_(resource_of(text)) {}

  void run() {
    again("cluster.nodes", nullptr, ToldBy::derived, "of the GPUs of --resource");
    again("cluster.gpus_per_node", t_.own.whole_or("num_gpus_per_node", 8),
          t_.own.given("num_gpus_per_node") ? ToldBy::stated : ToldBy::defaults, kArguments);
    again("job.mode", std::string(mode()), ToldBy::derived, "--colocate, --fully-async, --hybrid");
    // docker/patch/megatron/20260915-4a4de8657.patch
    if (t_.release.since("2026.09") && m_.trains)
      t_.told.note(
          Note::Level::warning, "--framework-version",
          "layers are counted as those of Megatron 85bced0ae, which 2026.08 has: the Megatron of 2026.09, 4a4de8657, was "
          "not executed");
    learner();
    for (const Forward& role : m_.apart) forward(role);
    if (m_.critic) critic();
    genrm();
    teacher();
    rollout();
    if (t_.own.has("autoscaler_config"))
      t_.told.note(Note::Level::info, t_.own.place("autoscaler_config"),
                   "engines that are added later have GPUs of their own, each as the first ones: they are not counted");
    if (m_.trains && !m_.supervised && mode() == "fully_async")
      t_.told.note(Note::Level::info, "--fully-async",
                   "the actor runs no pass for log-probs: they are those of actor_fwd, or of the training pass: actor.log_probs "
                   "is not there");
  }

 private:
  std::string_view mode() const {
    if (t_.own.on("hybrid")) return "hybrid";
    if (t_.own.on("fully_async")) return "fully_async";
    return m_.colocated ? "colocated" : "separated";
  }

  // ---- telling

  void again(std::string key, FactValue value, ToldBy by, std::string where, std::string flag = {}) {
    const auto old = std::find_if(m_.facts.begin(), m_.facts.end(), [&](const ToldFact& f) { return f.key == key; });
    const auto kind = by == ToldBy::stated ? Origin::Kind::file : Origin::Kind::derived;
    ToldFact fact{
        std::move(key), std::move(value), by, where, {kind, {t_.told.file, 0, 0, std::move(flag)}, {}, std::move(where)}};
    if (old != m_.facts.end())
      *old = std::move(fact);
    else
      m_.facts.push_back(std::move(fact));
  }
  void flag(std::string key, FactValue value, const char* name) {
    const std::string spelt = t_.own.place(name);
    again(std::move(key), std::move(value), t_.own.given(name) ? ToldBy::stated : ToldBy::defaults,
          t_.own.given(name) ? spelt : kArguments, spelt);
  }
  void gone(std::string_view role) {
    const std::string begin = fmt::format("roles.{}.", role);
    std::erase_if(m_.facts, [&](const ToldFact& f) { return f.key.starts_with(begin); });
  }

  // ---- parts

  void learner() {
    const std::string r = fmt::format("roles.{}.", m_.learner());
    again(r + "gpus", m_.actor_gpus, ToldBy::derived, "--resource, actor", "--resource");
    const std::int64_t rank = t_.own.whole_or("lora_rank", 0);
    if (rank > 0) adapters(r + "lora", rank);
    if (m_.offload_train && t_.own.on("selective_offload")) flag(r + "offload_kind", "selective", "selective_offload");
    if (t_.own.on("dynamic_context_parallel")) {
      again(r + "layout.cp", fmt::format("dynamic 1..{}", m_.run.context), ToldBy::code,
            "relax/backends/megatron/arguments.py: _validate_dynamic_context_parallel", "--dynamic-context-parallel");
      again(r + "micro_batch.tokens_per_micro_batch_of_cp_group", t_.own.whole_or("max_tokens_per_gpu", 0), ToldBy::derived,
            "of one rank: the degree follows the sequences", "--max-tokens-per-gpu");
    }
  }
  void adapters(std::string key, std::int64_t rank) {
    FactValue out = FactValue::map(), targets = FactValue::list();
    for (const Json& target : t_.own.value("lora_target_modules")) targets.push_back(target.get<std::string>());
    out["rank"] = rank;
    out["alpha"] = t_.own.whole_or("lora_alpha", 32);
    out["targets"] = std::move(targets);
    out["mode"] = t_.own.on("lora_adapter_mode") ? "adapter" : "merge";
    flag(std::move(key), std::move(out), "lora_rank");
  }

  /// A role for log-probs that is a service of its own. What --ref-actor-config says of it is told as it stands there.
  void forward(const Forward& role) {
    const std::string r = fmt::format("roles.{}.", role.name), l = r + "layout.";
    const auto config = object_of(t_, "ref_actor_config");
    const auto said = [&](const char* key) { return config != nullptr && config->contains(key); };
    const auto degree = [&](const char* letter, std::int64_t n, const char* name) {
      again(l + letter, n, said(name) ? ToldBy::stated : ToldBy::interpolated, said(name) ? "--ref-actor-config" : "the actor's",
            "--ref-actor-config");
    };
    flag(r + "model", t_.own.text("hf_checkpoint"), "hf_checkpoint");
    again(r + "engine", "megatron", ToldBy::code, "relax/components/actor_fwd.py");
    again(r + "gpus", role.gpus, ToldBy::stated, "--resource", "--resource");
    again(r + "placement", "own", ToldBy::code, kController);
    again(r + "starts", role.starts, ToldBy::derived,
          role.starts ? kController : "a rollout is one global batch, whose log-probs are those of the training pass");
    again(l + "dp", role.run.data, ToldBy::derived, "GPUs / (tensor x pipeline x context)", "--resource");
    degree("tp", role.run.tensor, "tensor_model_parallel_size");
    degree("pp", role.run.pipeline, "pipeline_model_parallel_size");
    degree("cp", role.run.context, "context_parallel_size");
    degree("ep", role.run.expert, "expert_model_parallel_size");
    degree("etp", role.run.expert_tensor, "expert_tensor_parallel_size");
    again(r + "sequence_parallel",
          said("sequence_parallel") ? (*config)["sequence_parallel"] == true : t_.megatron.on("sequence_parallel"),
          said("sequence_parallel") ? ToldBy::stated : ToldBy::interpolated, "--ref-actor-config", "--ref-actor-config");
    again(r + "weights_only", true, ToldBy::code, kForward, "--ref-actor-config");
    const std::int64_t stated = said("max_tokens_per_gpu") && (*config)["max_tokens_per_gpu"].is_number_integer()
                                    ? (*config)["max_tokens_per_gpu"].get<std::int64_t>()
                                    : role.tokens;
    again(r + "micro_batch.tokens_per_gpu", stated, said("max_tokens_per_gpu") ? ToldBy::stated : ToldBy::interpolated,
          "--ref-actor-config", "--ref-actor-config");
    again(r + "micro_batch.logprob_tokens_per_gpu", role.tokens, ToldBy::code, kForward, "--log-probs-max-tokens-per-gpu");
    if (stated != role.tokens)
      t_.told.note(Note::Level::warning, "--ref-actor-config",
                   fmt::format("max_tokens_per_gpu {} of {} has no effect: Relax puts --log-probs-max-tokens-per-gpu, {}, in its "
                               "place (process_args)",
                               stated, role.name, role.tokens));
  }

  /// Synchronous: no service has a reference, and the actor leaves its pass out (relax/backends/megatron/actor.py).
  void critic() {
    std::vector<ToldFact> layout;
    for (const ToldFact& f : m_.facts)
      if (f.key.starts_with("roles.actor.layout.")) layout.push_back(f);
    for (ToldFact& f : layout) {
      f.key.replace(0, std::string_view("roles.actor").size(), "roles.critic");
      m_.facts.push_back(std::move(f));
    }
    again("roles.critic.head", "value head of 1", ToldBy::code, "relax/utils/training/ppo_utils.py");
    gone("ref");
    again("absent_roles.ref", "with a critic Relax computes no log-probs of a reference", ToldBy::code,
          "relax/utils/arguments.py: _normalize_sync_ppo_kl_args");
    m_.reference = false;
  }

  void genrm() {
    if (t_.own.has("genrm_instances")) return judges();
    if (!t_.own.has("genrm_model_path")) return;
    if (!r_.has("genrm"))
      return t_.told.note(Note::Level::warning, t_.own.place("genrm_model_path"),
                          "--resource has no genrm: Relax starts no generative reward model");
    flag("roles.genrm.model", t_.own.text("genrm_model_path"), "genrm_model_path");
    again("roles.genrm.engine", "sglang", ToldBy::code, "relax/components/genrm.py");
    flag("roles.genrm.gpus", t_.own.whole_or("genrm_num_gpus", 1), "genrm_num_gpus");
    flag("roles.genrm.layout.tp", t_.own.whole_or("genrm_num_gpus_per_engine", 1), "genrm_num_gpus_per_engine");
    again("roles.genrm.placement", m_.colocated ? "shares:actor" : "own", ToldBy::code, kController);
  }
  void judges() {
    for (const Served& server : m_.beside) {
      if (server.kind != RoleKind::reward) continue;
      const std::string r = fmt::format("roles.{}.", server.name);
      flag(r + "model", server.model, "genrm_instances");
      again(r + "engine", "sglang", ToldBy::code, "relax/components/genrm.py");
      flag(r + "gpus", server.gpus, "genrm_instances");
      flag(r + "layout.tp", server.engine_gpus, "genrm_instances");
      again(r + "placement", m_.colocated ? "shares:actor" : "own", ToldBy::code, kController);
    }
  }
  void teacher() {
    if (!starts_teacher(t_, r_)) return;
    for (const Served& server : m_.beside) {
      if (server.kind != RoleKind::teacher) continue;
      const std::string r = fmt::format("roles.{}.", server.name);
      flag(r + "model", server.model, t_.own.has("opd_teacher_routes") ? "opd_teacher_routes" : "teacher_hf_checkpoint");
      again(r + "engine", "sglang", ToldBy::code, "relax/utils/opd/opd_utils.py");
      again(r + "gpus", server.gpus, ToldBy::stated, "--resource", "--resource");
      again(r + "layout.tp", std::max<std::int64_t>(1, server.engine_gpus / server.stages), ToldBy::derived,
            "GPUs of an engine / its stages", server.engine_flag);
      again(r + "placement", m_.colocated ? "shares:actor" : "own", ToldBy::code, kController);
    }
  }

  /// The actor is built first, and sleeps when servers start; without --sft-predict-interval supervised training starts none.
  void rollout() {
    if (!m_.serves) return;
    if (m_.colocated && m_.supervised)
      again("roles.rollout.placement", fmt::format("shares:{}", m_.learner()), ToldBy::code, kController);
    if (m_.colocated)
      again("roles.rollout.memory_fraction_meaning",
            "SGLang mem_fraction_static: weights + KV share of the memory free at server start (the trainer sleeps there then)",
            ToldBy::code, kController);
    if (!m_.supervised || t_.own.has("sft_predict_interval")) return;
    again("roles.rollout.starts", false, ToldBy::code, "relax/core/optional_roles.py: register_sft_rollout");
    m_.serves = m_.colocated = false;
    m_.rollout_gpus = 0;
    m_.used_gpus = m_.actor_gpus;
  }

  SlimeText& t_;
  SlimeMeaning& m_;
  const Resource r_;
};

}  // namespace

void share(SlimeText& t, SlimeMeaning& m) {
  const Own& o = t.own;
  const Resource r = resource_of(t);
  const bool hybrid = o.on("hybrid"), apart = o.on("fully_async") && !hybrid;
  if (m.supervised) {
    m.reference = m.teacher = m.critic = false;
    m.serves = m.serves && r.has("rollout");
  }
  const bool shares = o.on("colocate") && !hybrid && m.serves && m.trains;
  m.colocated = shares;
  m.rollout_gpus = m.serves ? m.rollout_gpus : 0;
  const auto asked = [&](const char* name, bool otherwise) { return o.has(name) ? o.on(name) : o.on("offload") || otherwise; };
  m.offload_train = asked("offload_train", o.on("colocate") && !hybrid) || m.critic;
  m.offload_rollout = asked("offload_rollout", shares);
  m.used_gpus = !m.trains ? m.rollout_gpus : shares ? std::max(m.actor_gpus, m.rollout_gpus) : m.actor_gpus + m.rollout_gpus;
  // relax/utils/opd/opd_utils.py: maybe_enable_sglang_weights_cpu_backup
  m.backs_up = m.backs_up || (t.release.since("2026.08") && o.on("use_opd") && m.offload_rollout);
  if (m.critic && !t.release.since("2026.07")) m.odd_critic = "critics of 2026.05, which were not read";
  if (m.critic && r.has("critic") && t.release.since("2026.08") && !critic_shares(t, r))
    m.odd_critic = "a critic on GPUs of its own, which has not as many as the actor beside --colocate";
  m.beside = servers_beside(t, m);
  for (const Served& server : m.beside)
    if (!server.shares) m.used_gpus += server.gpus;
  if (!apart || m.supervised || !m.trains) return;
  m.swaps = false;
  if (m.reference && r.has("reference")) m.apart.push_back(forward_of(t, "ref", r.gpus("reference")));
  if (r.has("actor_fwd")) {
    m.apart.push_back(forward_of(t, "actor_fwd", r.gpus("actor_fwd")));
    m.apart.back().starts = !trains_on_policy(t);
  }
  for (const Forward& role : m.apart)
    if (role.starts) m.used_gpus += role.gpus;
}

void tell(SlimeText& t, SlimeMeaning& m) { Teller(t, m).run(); }

}  // namespace oomplan::relax
