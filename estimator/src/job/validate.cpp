#include "job/validate.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/catalog.hpp"
#include "catalog/engine_releases.hpp"
#include "catalog/facts.hpp"
#include "catalog/parameters.hpp"
#include "job/archon_rules.hpp"
#include "job/first_engine.hpp"
#include "job/framework_rules.hpp"
#include "job/generator_rules.hpp"
#include "job/head_rules.hpp"
#include "job/kernel_needs.hpp"
#include "job/kernel_sets.hpp"
#include "job/knobs.hpp"
#include "job/limits.hpp"
#include "job/litgpt_rules.hpp"
#include "job/names.hpp"
#include "job/placement.hpp"
#include "job/torchtune_rules.hpp"
#include "job/validate_adapters.hpp"
#include "job/validate_base.hpp"
#include "job/validate_float8.hpp"
#include "job/validate_foak.hpp"
#include "job/validate_megatron.hpp"
#include "job/validate_offload.hpp"
#include "job/validate_optimizer.hpp"
#include "job/validate_recompute.hpp"
#include "job/validate_server.hpp"
#include "job/validate_units.hpp"
#include "job/validate_vision.hpp"
#include "job/validate_zero.hpp"
#include "job/workload.hpp"
#include "layout/letters.hpp"
#include "layout/rules.hpp"

namespace oomplan {
namespace {

/// The numbers of a model that layouts divide and limits bound, largest or strictest over its layers.
struct Model {
  std::vector<ModelShape> shapes;  // one for every kind of attention
  std::int64_t heads = 0, kv_width = 0, width = 0, layers = 0, parameters = 0;
  double pairs = 0;  ///< of LoRA, of rank 1: elements beside every matrix, or more
};

void take_layer(const Architecture& a, const LayerRun& run, Model& out) {
  const Mixer& m = run.layer.mixer;
  const FeedForward& f = run.layer.feed_forward;
  const ModelShape shape{m.heads, m.kind == MixerKind::mla ? 0 : m.kv_heads, f.experts, out.layers};
  const bool known = std::any_of(out.shapes.begin(), out.shapes.end(), [&](const ModelShape& s) {
    return s.heads == shape.heads && s.kv_heads == shape.kv_heads && s.experts == shape.experts;
  });
  if (!known) out.shapes.push_back(shape);
  out.heads = std::max(out.heads, m.heads);
  out.kv_width = std::max(out.kv_width, m.kind == MixerKind::mla ? m.kv_lora_rank + m.rope_head_dim : m.k_width() + m.v_width());
  out.width =
      std::max({out.width, m.q_width(), m.out_width(), f.width + f.shared_width, f.experts_per_token * f.expert_width, a.hidden});
  // at most eight linear layers, of which none is wider; every expert has two of twice the rank
  const double linear = 16 * static_cast<double>(std::max({m.q_width() + m.k_width() + m.v_width(), m.out_width(),
                                                           2 * (f.width + f.shared_width), a.hidden}));
  const double experts = 4 * static_cast<double>(f.experts) * static_cast<double>(2 * f.expert_width + a.hidden);
  out.pairs += static_cast<double>(run.count) * (linear + experts);
}

Model model_of(const Architecture& a) {
  Model out;
  out.layers = a.layers();
  for (const auto& run : a.runs) take_layer(a, run, out);
  std::int64_t experts = 0;  // of the layers that have some: dense layers beside them do not count
  for (const auto& shape : out.shapes) experts = std::max(experts, shape.experts);
  for (auto& shape : out.shapes) shape.experts = experts;
  for (const auto& parameter : parameters(a)) out.parameters += parameter.total();
  out.pairs += 2 * static_cast<double>(a.vocab + a.hidden);
  return out;
}

/// Is there for every fact of the engine a row for this version, under some condition?
bool knows_version(const Facts& facts, std::string_view engine, std::string_view version) {
  std::map<std::string_view, bool> found;
  for (const auto& fact : facts.rows())
    if (fact.engine == engine) found[fact.fact] = found[fact.fact] || version_matches(version, fact.versions);
  return std::all_of(found.begin(), found.end(), [](const auto& entry) { return entry.second; });
}

class Validator {
 public:
  Validator(const Job& job, const Catalog& catalog, std::vector<Note>* lengths)
      : job_(job), catalog_(catalog), lengths_(lengths) {}

  std::vector<Problem> run() {
    check_cluster();
    check_roles();
    check_lengths();
    for (const auto& role : job_.roles) {
      check_place(role);
      check_layout(role);
      check_numbers(role);
      role.serves() ? check_server(role) : check_trainer(role);
      check_kernels(role);
    }
    check_gpus();
    check_sync();
    return std::move(out_);
  }

 private:
  static std::string key_of(const Role& role, std::string_view knob) { return fmt::format("{}.{}", role.name, knob); }
  Place place(const std::string& key) const {
    auto it = job_.origins.find(key);
    if (it == job_.origins.end() || it->second.place.line == 0) {  // not written: the role's own place is near enough
      const auto role = job_.origins.find(key.substr(0, key.find('.')));
      if (role != job_.origins.end() && (it == job_.origins.end() || it->second.place.file != "command line")) it = role;
    }
    Place out = it == job_.origins.end() ? Place{} : it->second.place;
    if (it == job_.origins.end() && !job_.roles.empty() && job_.origins.contains(job_.roles[0].name))
      out.file = job_.origins.at(job_.roles[0].name).place.file;
    out.path = key;
    return out;
  }
  void problem(const std::string& key, std::string found, std::string expected, std::string why = {}) {
    out_.push_back({place(key), std::move(found), std::move(expected), {}, std::move(why)});
  }
  void missing(const std::string& key, std::string expected, std::string why = {}) {
    problem(key, "nothing", std::move(expected), std::move(why));
  }
  void within(const std::string& key, std::int64_t value, Limit64 limit, std::string_view unit = "") {
    if (!limit.holds(value))
      problem(key, fmt::format("{}", value), fmt::format("{} to {}{}{}", limit.least, limit.most, unit.empty() ? "" : " ", unit));
  }

  /// ref and critic took the value over from the actor: what is wrong with it is told there.
  bool follows_actor(const Role& role, std::string_view knob) const {
    const Role* actor = job_.role("actor");
    if (actor == nullptr || actor == &role || role.engine != actor->engine || role.architecture != actor->architecture)
      return false;
    const auto it = job_.origins.find(key_of(role, knob));
    const bool own =
        it != job_.origins.end() && (it->second.kind == Origin::Kind::file || it->second.kind == Origin::Kind::override_);
    return !own && get(job_, key_of(role, knob)) == get(job_, key_of(*actor, knob));
  }

  void check_cluster() {
    const Cluster& c = job_.cluster;
    if (c.gpus == 0) {
      missing("gpus", "a number and a kind of GPU, such as 8 x H100-80GB");
      return;
    }
    within("gpus", c.gpus, kGpuLimit, "GPUs");
    within("gpus_per_node", c.gpus_per_node, kGpusPerNodeLimit, "GPUs");
    within("host_memory", c.host_memory, kMemoryLimit, "bytes");
    within("others", c.others, kMemoryLimit, "bytes");
    if (c.gpus_per_node > 0 && c.gpus > c.gpus_per_node && c.gpus % c.gpus_per_node != 0)
      problem("gpus", fmt::format("{} GPUs", c.gpus), fmt::format("a multiple of {}", c.gpus_per_node),
              "machines have that many GPUs");
    try {
      const Gpu& gpu = catalog_.gpu(c.gpu);
      if (c.others >= gpu.usable && gpu.usable > 0)
        problem("others", fmt::format("{} bytes", c.others), fmt::format("less than the {} bytes of {}", gpu.usable, gpu.name));
    } catch (const InputError& e) {
      for (auto p : e.problems) {
        p.place = place("gpus");
        out_.push_back(std::move(p));
      }
    }
  }

  void check_roles() {
    std::set<std::string> names;
    for (const auto& role : job_.roles)
      if (!names.insert(role.name).second) problem(role.name, "the role twice", "every role once");
    const Role *trainer = job_.role("trainer"), *rollout = job_.role("rollout");
    if (trainer != nullptr && rollout != nullptr && !trainer->trainer.loop.serves_at_once)
      problem("rollout", "servers beside supervised training", "no rollout",
              fmt::format("not supported yet: them under {}; of Relax they are", trainer->trainer.loop.name));
    if (job_.kind == JobKind::rl && job_.role("actor") == nullptr && !job_.roles.empty())
      missing("actor", "the role that is trained");
  }

  void check_lengths() {
    if (job_.kind != JobKind::rl) return;
    if (job_.prompt_tokens == 0) missing("prompt_tokens", "tokens of the longest prompt");
    if (job_.response_tokens == 0) missing("response_tokens", "tokens of the longest response");
    within("prompt_tokens", job_.prompt_tokens, {0, kTokenLimit.most}, "tokens");
    within("response_tokens", job_.response_tokens, {0, kTokenLimit.most}, "tokens");
    within("sequences_per_step", job_.sequences_per_step, {0, kSequenceLimit.most}, "sequences");
  }

  void check_place(const Role& role) {
    const std::string key = key_of(role, "beside");
    if (role.beside.empty()) {
      if (role.in_process)
        problem(key_of(role, "in_process"), "'true'", "false", "without 'beside' there is no process to share");
      if (role.first_gpu != 0)
        problem(key_of(role, "first_gpu"), fmt::format("{}", role.first_gpu), "0", "it counts the GPUs of the role beside it");
      return;
    }
    if (job_.role(role.beside) == nullptr) return problem(key, fmt::format("'{}'", role.beside), "a role of the job");
    const Role* on = anchor(job_, role);
    if (on == nullptr)
      return problem(key, fmt::format("'{}'", role.beside), "a role with GPUs of its own", "'beside' leads in a circle");
    const std::int64_t all = on->layout().world(), end = role.first_gpu + role.layout().world();
    if (role.serves() && !role.in_process && !on->serves()) {
      if (role.first_gpu < 0 || end > all)
        problem(key_of(role, "layout"), fmt::format("{} GPUs from {} on", role.layout().world(), role.first_gpu),
                fmt::format("a part of the {} GPUs of {}", all, on->name), "servers beside a trainer take its GPUs");
      return;
    }
    if (role.first_gpu != 0)
      problem(key_of(role, "first_gpu"), fmt::format("{}", role.first_gpu), "0", "only servers take a part of a trainer's GPUs");
    if (role.layout().world() != on->layout().world())
      problem(key_of(role, "layout"), fmt::format("{} GPUs ({})", role.layout().world(), letters(role.layout())),
              fmt::format("the {} GPUs of {}", on->layout().world(), on->name), "roles beside each other take the same GPUs");
  }

  void check_layout(const Role& role) {
    const std::string key = key_of(role, "layout");
    if (follows_actor(role, "layout") || role.kind == RoleKind::generator) return;
    std::set<std::string> said;
    std::vector<ModelShape> shapes{{}};
    if (role.architecture != nullptr) shapes = model_of(*role.architecture).shapes;
    if (shapes.empty()) shapes.push_back({});
    if (role.serves())
      for (auto& shape : shapes) shape.attention_data = role.server.attention_data;
    for (const auto& shape : shapes)
      for (auto& why : broken_rules(role.layout(), role.engine, shape))
        if (said.insert(why).second) problem(key, fmt::format("'{}'", letters(role.layout())), {}, std::move(why));
  }

  /// The bounds behind which the fold computes with plain int64.
  void check_numbers(const Role& role) {
    if (role.architecture == nullptr) return;
    const Model m = model_of(*role.architecture);
    const Trainer& t = role.trainer;
    const double tokens =
        static_cast<double>(role.serves() ? std::max(role.server.batched_tokens, role.server.max_model_len)
                                          : std::max({t.tokens_per_micro_batch, t.logprob_tokens_per_micro_batch,
                                                      t.sequences_per_micro_batch * t.sequence_tokens}));
    const std::int64_t longest = std::max(job_.prompt_tokens + job_.response_tokens, t.sequence_tokens);
    Factors f;
    // Ulysses splits the tokens, and where it has them all the heads
    f.tokens = std::max(role.serves() ? tokens : tokens / static_cast<double>(std::max<std::int64_t>(1, t.layout.context)), 1.0);
    f.sequence = static_cast<double>(role.serves() ? std::max(role.server.max_model_len, longest)
                                     : longest > 0 ? longest
                                                   : t.tokens_per_micro_batch);
    f.layers = static_cast<double>(m.layers);
    f.width = static_cast<double>(m.width);
    f.heads = !role.serves() && t.kernels == Kernels::hf_eager ? static_cast<double>(m.heads) : 0;
    f.vocabulary = static_cast<double>(role.architecture->vocab);
    f.hidden = static_cast<double>(role.architecture->hidden);
    f.requests = role.serves() ? static_cast<double>(std::max(role.server.concurrency, role.server.max_running)) : 0;
    f.parameters = static_cast<double>(m.parameters);
    f.adapters = m.pairs * static_cast<double>(role.serves() ? role.server.lora.slots * role.server.lora.rank : t.lora.rank);
    const auto large = terms_too_large(f);
    for (std::size_t i = 0; i < large.size(); ++i)
      if (large[i])
        problem(role.name, fmt::format("{} of {:.0f} TiB and more", kTermsOfARole[i].name, most_of_a_term() / 1099511627776.0),
                "a job that a machine could hold");
  }

  void check_trainer(const Role& role) {
    const Trainer& t = role.trainer;
    for (const KnobProblem& p : framework_problems(role)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const KnobProblem& p : generator_problems(job_, role)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    if (role.engine == EngineKind::megatron) {
      for (auto& p : megatron_problems(job_, role)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
      return check_longest(role);
    }
    if (t.kernels == Kernels::transformer_engine && !follows_actor(role, "kernels"))
      problem(key_of(role, "kernels"), "'transformer_engine'", "hf_flash, hf_sdpa, hf_eager or torchtitan",
              "not supported yet: Transformer Engine outside of Megatron");
    const bool padded = t.sequences_per_micro_batch > 0;
    if (padded && t.sequence_tokens == 0) missing(key_of(role, "sequence_tokens"), "tokens of a padded sequence");
    if (!padded && t.tokens_per_micro_batch == 0 && !follows_actor(role, "tokens_per_micro_batch"))
      missing(key_of(role, "tokens_per_micro_batch"), "tokens of a data-parallel rank in one micro-batch, such as 16k",
              std::string(t.loop.without_budget));
    if (t.tokens_per_micro_batch > 0)
      within(key_of(role, "tokens_per_micro_batch"), t.tokens_per_micro_batch, kTokenLimit, "tokens");
    check_longest(role);
    const std::int64_t ranks = t.layout.data * t.layout.context;
    if ((t.replicas < 1 || ranks % t.replicas != 0) && !follows_actor(role, "replicas"))
      problem(key_of(role, "replicas"), fmt::format("{} groups", t.replicas), fmt::format("a divisor of the {} ranks", ranks),
              "all shard groups are equally large");
    const std::int64_t shards = ranks / std::max<std::int64_t>(1, t.replicas);
    if (t.reshard_ranks > 0 && shards % t.reshard_ranks != 0 && !follows_actor(role, "reshard_ranks"))
      problem(key_of(role, "reshard_ranks"), fmt::format("{} ranks", t.reshard_ranks),
              fmt::format("a divisor of {} ranks", shards), "torch reshards over a divisor of the ranks");
    if (t.cpu_offload_policy && (t.offload_parameters || t.offload_optimizer) && job_.origins.contains(key_of(role, "offload")) &&
        job_.origins.at(key_of(role, "offload")).kind != Origin::Kind::derived)
      problem(key_of(role, "offload"), "an offload between phases", "[]",
              "with cpu_offload_policy everything is on the host already");
    const bool values = role.kind == RoleKind::critic || role.kind == RoleKind::reward;
    if (values != (t.head == LossHead::value))
      problem(key_of(role, "head"), fmt::format("'{}'", spelling(t.head)), values ? "value" : "a head over the vocabulary",
              fmt::format("{} {}", role.name, values ? "gives one number a token" : "gives log-probs"));
    if (role.kind == RoleKind::teacher) check_teacher(role);
    if (t.compile && role.engine != EngineKind::single && !shards_by_fsdp2(role.engine))
      problem(key_of(role, "compile"), "true", "false",
              "not supported yet: torch.compile under other engines than fsdp2 and single");
    if (values && t.lora.rank > 0)
      problem(key_of(role, "lora.rank"), fmt::format("{}", t.lora.rank), "none", "not supported yet: LoRA of a value model");
    check_liger(role);
    check_linear_attention(role);
    if (t.experts != Experts::automatic && t.experts != Experts::eager && !t.transformers_version.empty() &&
        compare_versions(t.transformers_version, "5.0") < 0)
      problem(key_of(role, "experts"), fmt::format("'{}'", spelling(t.experts)), "auto or eager",
              "up to release 4 of transformers there is the loop over experts alone");
    if (!t.transformers_version.empty() && compare_versions(t.transformers_version, "4.37") < 0)
      problem(key_of(role, "transformers"), fmt::format("'{}'", t.transformers_version), "4.37 or later",
              "not supported yet: older releases");
    for (const BaseProblem& p : base_problems(t, role.engine)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const BaseProblem& p : foak_problems(t, role.engine)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (auto& clash : archon_clashes(role))
      if (!follows_actor(role, clash.knob)) not_its_own(role, clash.knob, clash.expected, clash.why);
    for (auto& clash : litgpt_clashes(role)) not_its_own(role, clash.knob, clash.expected, clash.why);
    for (auto& clash : torchtune_clashes(role)) not_its_own(role, clash.knob, clash.expected, clash.why);
    for (auto& clash : head_clashes(role)) not_its_own(role, clash.knob, clash.expected, clash.why);
    for (const KnobProblem& p : optimizer_problems(t, role.engine)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const KnobProblem& p : offload_problems(t, role.engine))
      if (!follows_actor(role, p.knob)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const KnobProblem& p : float8_problems(t, role.engine)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const KnobProblem& p : adapter_problems(t, role.engine)) not_its_own(role, p.knob, p.expected, p.why);
    for (const KnobProblem& p : unit_problems(t, role.engine)) not_its_own(role, p.knob, p.expected, p.why);
    for (const KnobProblem& p : mixed_unit_problems(role)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const KnobProblem& p : recompute_problems(t, role.engine))
      if (!follows_actor(role, p.knob)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    for (const KnobProblem& p : vision_problems(role)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    if (t.micro_batches > 0) within(key_of(role, "micro_batches"), t.micro_batches, kMicroBatchLimit, "micro-batches");
    if (t.head == LossHead::agilerl_fused && t.lora.rank == 0)
      problem(key_of(role, "head"), "'agilerl_fused'", "another head, or lora.rank",
              "not supported yet: AgileRL's head with an output layer that is trained");
    if (t.forward_prefetch && !t.reshard_last)
      problem(key_of(role, "forward_prefetch"), "true", "false",
              "not supported yet: prefetching what reshard_last leaves gathered");
    if (t.layout.tensor > 1) check_split(role);
    if (role.engine == EngineKind::ddp) check_ddp(role);
    for (const ZeroObjection& o : zero_objections(job_, role)) {
      const std::string key = key_of(role, o.knob);
      problem(key, get(job_, key), o.expected, o.why);
    }
    if (role.engine == EngineKind::fsdp1) return check_fsdp1(role);
    if (t.backward_prefetch != BackwardPrefetch::pre) not_its_own(role, "backward_prefetch", "pre", "it is FSDP1's");
    if (!t.limit_all_gathers) not_its_own(role, "limit_all_gathers", "true", "it is FSDP1's");
    if (t.use_orig_params) not_its_own(role, "use_orig_params", "false", "it is FSDP1's");
  }

  void check_split(const Role& role) {
    const Trainer& t = role.trainer;
    if (!t.gradient_sync_every_micro_batch)
      problem(key_of(role, "gradient_sync_every_micro_batch"), "false", "true",
              "not supported yet: gradients that are not synchronised under tensor parallelism");
  }

  /// What the kernels of the role, or its engine, do not take on these GPUs.
  void check_kernels(const Role& role) {
    const Gpu* gpu = known_gpu();
    if (gpu == nullptr) return;
    for (const KernelNeed* need : broken_needs(role, gpu->sm))
      if (!follows_actor(role, need->knob)) not_its_own(role, need->knob, std::string(need->expected), need->why);
  }
  /// nullptr: the cluster's is told already.
  const Gpu* known_gpu() const {
    try {
      return &catalog_.gpu(job_.cluster.gpu);  // however it is spelled
    } catch (const InputError&) {
      return nullptr;
    }
  }

  void not_its_own(const Role& role, std::string_view knob, std::string expected, std::string_view whose) {
    const std::string key = key_of(role, knob);
    const bool listed = find_knob(job_, key).knob != nullptr;  // a job made by hand may have it on any engine
    problem(key, listed ? get(job_, key) : "a value", std::move(expected), std::string(whose));
  }

  /// What FSDP2 alone has, and what of FSDP1 is not described.
  void check_fsdp1(const Role& role) {
    const Trainer& t = role.trainer;
    constexpr std::string_view kWhose = "it is FSDP2's: FSDP1 wraps layers, and the root keeps the rest gathered";
    if (t.root_reshard) not_its_own(role, "root_reshard", "false", kWhose);
    if (t.reshard_ranks > 0) not_its_own(role, "reshard_ranks", "auto", kWhose);
    if (t.wrap_embedding) not_its_own(role, "wrap_embedding", "false", kWhose);
    if (t.wrap_head) not_its_own(role, "wrap_head", "false", kWhose);
    const bool views_stay = t.layout.data * t.layout.context <= t.replicas && (t.compute == t.storage || !t.cast_parameters);
    if (t.cpu_offload_policy && views_stay)
      problem(key_of(role, "cpu_offload_policy"), "true", "false",
              "not supported yet: NO_SHARD on the host in the format that it computes in, of which views stay on the device");
    const bool learns = role.kind != RoleKind::reference && role.kind != RoleKind::reward && role.kind != RoleKind::teacher;
    if (t.cpu_offload_policy && learns && t.micro_batches != 1 && t.gradient_sync_every_micro_batch)
      problem(key_of(role, "gradient_sync_every_micro_batch"), "true", "false, or micro_batches: 1",
              "FSDP1's CPUOffload cannot add up gradients that were reduced");
  }

  void check_teacher(const Role& role) {
    const Trainer& t = role.trainer;
    const std::string_view since = t.loop.teachers_since;
    if (since.empty())
      problem(role.name, "a teacher", "no such role",
              fmt::format("not supported yet: a teacher under {}; of AReaL and verl it is", spelling(t.framework)));
    else if (!t.framework_version.empty() && compare_versions(t.framework_version, since) < 0)
      problem(role.name, "a teacher", "no such role", fmt::format("{} has teachers from {} on", t.loop.name, since));
  }
  void check_reward_server(const Role& role) {
    if (!role.trainer.loop.serves_rewards)
      problem(
          key_of(role, "engine"), fmt::format("'{}'", spelling(role.engine)), "a training engine",
          fmt::format("not supported yet: a reward model's server under {}; of verl it is", spelling(role.trainer.framework)));
  }
  /// A teacher's server is asked for the log-probs of whole sequences.
  void check_scores(const Role& role) {
    check_teacher(role);
    const Gpu* gpu = known_gpu();
    const bool first = runs_first_engine(role.engine, role.server, gpu == nullptr ? "" : gpu->sm);
    // how SGLang is asked was read of Relax alone
    const bool other = role.engine == EngineKind::sglang && !role.trainer.loop.serves_at_once;
    if (first || other)
      problem(key_of(role, "engine"), fmt::format("'{}'", spelling(role.engine)), "vllm 0.8 or later",
              fmt::format("not supported yet: log-probs of prompts by {}", first ? "vLLM's first engine" : "SGLang"));
  }

  void check_liger(const Role& role) {
    const Trainer& t = role.trainer;
    if (!t.liger.version.empty() && compare_versions(t.liger.version, "0.3.0") < 0)
      problem(key_of(role, "liger_version"), fmt::format("'{}'", t.liger.version), "0.3.0 or later",
              "not supported yet: older releases");
    if (t.head != LossHead::liger_fused_ce) return;
    if (t.autocast && t.compute == DType::fp32)
      problem(key_of(role, "autocast"), "true", "false",
              "not supported yet: Liger's fused head with fp32 weights under autocast");
    if (shards_by_fsdp2(role.engine) && t.wrap_head)
      problem(key_of(role, "wrap_head"), "true", "false",
              "Liger's fused head reads the output layer's weight, which is then not gathered");
  }

  /// Newer releases of transformers hand queries and keys to the rule as they are, and take its functions from kernels' hub.
  void check_linear_attention(const Role& role) {
    const Trainer& t = role.trainer;
    if (t.linear_attention == LinearAttention::torch) return;
    const auto refuse = [&](const char* why) {
      problem(key_of(role, "linear_attention"), fmt::format("'{}'", spelling(t.linear_attention)), "torch", why);
    };
    if (!of_transformers(t.kernels))
      refuse("it is of transformers' models (kernels: hf_flash, hf_sdpa or hf_eager)");
    else if (!t.loop.joins_images_itself)
      refuse("not supported yet: flash-linear-attention under transformers from 5.11 on, which all frameworks but verl run");
  }

  /// DDP has plain parameters on every rank: what FSDP2 does with formats, shards and the host is not there.
  void check_ddp(const Role& role) {
    const Trainer& t = role.trainer;
    if (t.loop.pads_batches) return;  // told already
    if (t.loop.of_framework) problem(key_of(role, "engine"), "ddp", "fsdp2", "not supported yet: DDP of AReaL and verl");
    if (t.compute != t.storage)
      problem(key_of(role, "precision.compute"), std::string(spelling(t.compute)), std::string(spelling(t.storage)),
              "DDP computes in the format of the parameters, or under autocast");
    if (t.reduce != t.storage)
      problem(key_of(role, "precision.reduce"), std::string(spelling(t.reduce)), std::string(spelling(t.storage)),
              "DDP reduces gradients in the format of the parameters");
    if (t.cpu_offload_policy) problem(key_of(role, "cpu_offload_policy"), "true", "false", "it is FSDP2's");
    if (t.replicas > 1)
      problem(key_of(role, "replicas"), fmt::format("{}", t.replicas), "1", "every rank of DDP holds all parameters");
  }

  void length(const std::string& key, std::string found, std::string expected, std::string why) {
    problem(key, std::move(found), std::move(expected), std::move(why));
    if (lengths_ == nullptr) return;
    Problem p = std::move(out_.back());
    out_.pop_back();
    lengths_->push_back(
        {Note::Level::warning, p.place,
         fmt::format("{}: found {}, but the longest sequence needs {}: {}", p.place.path, p.found, p.expected, p.why)});
  }

  /// Packed sequences are not cut.
  void check_longest(const Role& role) {
    const Trainer& t = role.trainer;
    const std::int64_t least = least_budget(job_, role);
    const auto check = [&](std::string_view knob, std::int64_t budget) {
      if (budget > 0 && budget < least && !follows_actor(role, knob))
        length(key_of(role, knob), fmt::format("{} tokens", budget), fmt::format("at least {}", least),
               fmt::format("{} itself refuses a sequence that is longer than a micro-batch", t.loop.name));
    };
    check("tokens_per_micro_batch", t.tokens_per_micro_batch);
    check("logprob_tokens_per_micro_batch", t.logprob_tokens_per_micro_batch);
  }

  void check_server(const Role& role) {
    const Server& s = role.server;
    if (role.kind == RoleKind::teacher) check_scores(role);
    if (role.kind == RoleKind::reward) check_reward_server(role);
    const std::int64_t longest = job_.prompt_tokens + job_.response_tokens;
    if (s.max_model_len > 0 && s.max_model_len < longest)
      length(key_of(role, "max_model_len"), fmt::format("{} tokens", s.max_model_len), fmt::format("at least {}", longest),
             "a prompt and its response must fit in the context");
    if (job_.kind == JobKind::serving && s.max_model_len == 0 && role.architecture != nullptr &&
        role.architecture->max_positions == 0)
      missing(key_of(role, "max_model_len"), "tokens of the longest request", "the model's config names no limit");
    if (const Gpu* gpu = known_gpu(); gpu != nullptr)
      for (const KnobProblem& p : server_problems(role, *gpu)) problem(key_of(role, p.knob), p.found, p.expected, p.why);
    const auto known = catalog_.facts().known_versions(spelling(role.engine));
    const AnsweringVersion answering = answering_version(catalog_.facts(), spelling(role.engine), s.version);
    // of an unknown one remarks() says whose answer it is
    if (answering.remark.empty() && !known.empty() && !knows_version(catalog_.facts(), spelling(role.engine), answering.version))
      problem(key_of(role, "engine"), fmt::format("'{} {}'", spelling(role.engine), s.version),
              fmt::format("{} {} to {}", spelling(role.engine), known.front(), known.back()),
              "other versions have not been read");
  }

  void check_gpus() {
    for (const auto& role : job_.roles)
      if (anchor(job_, role) == nullptr) return;  // told already
    std::int64_t taken = 0;
    std::vector<std::string> parts;
    for (const auto& range : placement(job_)) {
      taken = std::max(taken, range.end());
      const Role* role = job_.role(range.role);
      if (role != nullptr && role->beside.empty()) parts.push_back(fmt::format("{} {}", range.role, range.count));
    }
    if (job_.cluster.gpus > 0 && taken > job_.cluster.gpus)
      problem("gpus", fmt::format("{} GPUs", job_.cluster.gpus), fmt::format("at least {}", taken),
              fmt::format("the roles take {}", fmt::join(parts, " + ")));
  }

  void check_sync() {
    const Role *rollout = job_.role("rollout"), *actor = job_.role("actor");
    if (job_.sync.bucket < 0 || job_.sync.bucket > kMemoryLimit.most)
      problem("sync.bucket", fmt::format("{} bytes", job_.sync.bucket), fmt::format("at most {} bytes", kMemoryLimit.most));
    if (rollout == nullptr || actor == nullptr) return;
    const bool shared = anchor(job_, *rollout) != nullptr && anchor(job_, *rollout) == anchor(job_, *actor);
    const TrainingLoop& loop = actor->trainer.loop;
    const SyncBy by = job_.sync.by;
    const auto refuse = [&](std::string expected, std::string why) {
      problem("sync.by", fmt::format("'{}'", spelling(by)), std::move(expected), std::move(why));
    };
    if (by != SyncBy::none && !loop.of_framework)
      refuse("none", "PyTorch alone brings no weight update");
    else if (by != SyncBy::none && actor->trainer.lora.rank > 0 && !loop.adapters_update && !loop.checkpoint_engine)
      refuse("none", "not supported yet: the weight update of LoRA adapters");
    else if (by == SyncBy::disk && (loop.gathers_buckets || loop.flat_buckets))
      refuse(shared ? "ipc" : "nccl", "not supported yet: a weight update through files");
    else if (actor->trainer.lora.rank > 0 && loop.summons_adapters && by != SyncBy::none && by != SyncBy::ipc)
      refuse("none", fmt::format("not supported yet: the weight update of {}'s LoRA adapters to servers on GPUs of their own",
                                 loop.name));
    else if (by == SyncBy::nccl && actor->trainer.lora.rank > 0 && rollout->engine == EngineKind::sglang && !loop.gathers_buckets)
      refuse("disk", "AReaL brings LoRA adapters to SGLang through files only");
    else if (shared && by == SyncBy::nccl)
      refuse(!loop.ipc ? "disk" : "ipc or disk", "NCCL cannot connect two processes on one GPU");
    else if (by == SyncBy::ipc && !loop.ipc)
      refuse(shared ? "disk" : "nccl or disk", fmt::format("{} has no weight update by CUDA IPC", loop.name));
    else if (by == SyncBy::ipc && !shared && !loop.checkpoint_engine)
      refuse("nccl or disk", "CUDA IPC connects processes of one GPU");
    if (job_.sync.bridge && !loop.gathers_buckets)
      problem("sync.bridge", "true", "false", fmt::format("{} does not send weights in Megatron's buckets", loop.name));
    if (job_.sync.checkpoint_engine && !loop.checkpoint_engine)
      problem("sync.checkpoint_engine", "true", "false", fmt::format("{} has no checkpoint engine", loop.name));
    else if (job_.sync.checkpoint_engine && by != SyncBy::nccl)
      problem("sync.checkpoint_engine", "true", "false, or sync.by: nccl", "the checkpoint engine sends over NCCL");
    if (by != SyncBy::none && loop.adapters_update) check_slots(actor->trainer.lora, *rollout);
  }

  /// An adapter needs a slot that is wide enough.
  void check_slots(const Lora& lora, const Role& rollout) {
    const AdapterSlots& room = rollout.server.lora;
    if (lora.rank == 0) return;
    if (room.slots == 0)
      problem(key_of(rollout, "lora.slots"), "none", "1 or more", "the server takes the actor's adapters into slots");
    if (room.rank < lora.rank)
      problem(key_of(rollout, "lora.rank"), room.rank == 0 ? "none" : fmt::format("{}", room.rank),
              fmt::format("at least {}", lora.rank), "the server refuses an adapter of a higher rank");
  }

  const Job& job_;
  const Catalog& catalog_;
  std::vector<Note>* lengths_;
  std::vector<Problem> out_;
};

}  // namespace

std::vector<Problem> problems(const Job& job, const Catalog& catalog, std::vector<Note>* lengths) {
  return Validator(job, catalog, lengths).run();
}

std::vector<Note> remarks(const Job& job, const Catalog& catalog) {
  std::vector<Note> out;
  const auto warn = [&](const std::string& key, std::string text) {
    const auto it = job.origins.find(key);
    Place place = it == job.origins.end() ? Place{} : it->second.place;
    place.path = key;
    out.push_back({Note::Level::warning, std::move(place), std::move(text)});
  };
  std::int64_t taken = 0;
  for (const auto& range : placement(job)) taken = std::max(taken, range.end());
  if (taken < job.cluster.gpus)
    warn("gpus", fmt::format("{} of {} GPUs have no role", job.cluster.gpus - taken, job.cluster.gpus));
  for (const auto& role : job.roles) {
    const std::int64_t positions = role.architecture == nullptr ? 0 : role.architecture->max_positions;
    const std::int64_t longest = std::max(job.prompt_tokens + job.response_tokens,
                                          role.serves() ? role.server.max_model_len : role.trainer.sequence_tokens);
    if (positions > 0 && longest > positions)
      warn(role.name, fmt::format("sequences of {} tokens, but {} was made for {}", longest, role.model, positions));
    if (!role.serves()) continue;
    if (std::string remark = answering_version(catalog.facts(), spelling(role.engine), role.server.version).remark;
        !remark.empty())
      warn(role.name + ".engine", std::move(remark));
    if (std::string remark = first_engine_remark(role.engine, role.server, catalog.gpu(job.cluster.gpu).sm); !remark.empty())
      warn(role.name + ".engine", std::move(remark));
    if (role.serves() && role.server.sleep_level > 0 && role.beside.empty() &&
        std::none_of(job.roles.begin(), job.roles.end(), [&](const Role& other) { return other.beside == role.name; }))
      warn(role.name + ".sleep", "the server sleeps although it has its GPUs alone");
  }
  const Role *rollout = job.role("rollout"), *actor = job.role("actor");
  const bool in_files = actor != nullptr && actor->trainer.loop.updates_by_files;
  if (rollout != nullptr && actor != nullptr && job.sync.by == SyncBy::none && !in_files)
    warn("sync.by", "no weight update is counted");
  return out;
}

}  // namespace oomplan
