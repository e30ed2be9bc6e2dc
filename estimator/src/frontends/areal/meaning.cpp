#include "frontends/areal/meaning.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/areal/launch.hpp"
#include "frontends/areal/meaning_roles.hpp"
#include "frontends/areal/values.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kTrainer = "areal/trainer/rl_trainer.py";

class JobTeller {
 public:
  JobTeller(Teller& t, bool servers_alone) : t_(t), out_(t.out()), servers_alone_(servers_alone) {}

  void run() {
    find_kind();
    refuse_kind();
    t_.take("cluster.nodes", "cluster.n_nodes");
    t_.take("cluster.gpus_per_node", "cluster.n_gpus_per_node");
    find_roles();
    tell_job();
    const BuiltRole* actor = role("actor");
    for (const auto& r : out_.roles) {
      if (r.part.kind == PartKind::inference)
        tell_rollout(t_, r, actor);
      else
        tell_trainer(t_, r);
    }
    if (actor != nullptr && role("rollout") != nullptr) tell_weight_update(t_, *actor);
    compare_with_cluster();
  }

 private:
  const BuiltRole* role(std::string_view name) const {
    const auto it = std::find_if(out_.roles.begin(), out_.roles.end(), [&](const BuiltRole& r) { return r.name == name; });
    return it == out_.roles.end() ? nullptr : &*it;
  }

  /// The entry script names its configuration class, the file does not: what it holds tells. `train_dataset.type` is what the
  /// examples' scripts go by.
  void find_kind() {
    const std::string data = t_.text("train_dataset.type");
    if (servers_alone_)
      out_.kind = "rollout";
    else if (t_.has("rollout") || t_.has("gconfig"))
      out_.kind = "rl";
    else if (data == "dpo" || (data.empty() && t_.has("ref")))
      out_.kind = "dpo";
    else
      out_.kind = data == "rw" ? "reward_model" : "sft";
  }
  bool rl() const { return out_.kind == "rl"; }
  bool generates() const { return rl() || servers_alone_; }
  /// Entry points came with the releases, and with them their own rules (areal/api/cli_args.py: DPOConfig.__post_init__;
  /// areal/trainer/rw/rw_engine.py: compute_rw_loss takes values).
  void refuse_kind() {
    const bool dpo = out_.kind == "dpo", pairs = dpo || out_.kind == "reward_model";
    if (!pairs) return;
    const std::string_view since = dpo ? "1.0.4" : "0.3.4";
    if (!t_.since(since)) {
      const std::string found =
          t_.text("train_dataset.type").empty() ? "nothing" : fmt::format("'{}'", t_.text("train_dataset.type"));
      return refuse("train_dataset.type", found, fmt::format("AReaL {} or later", since),
                    fmt::format("AReaL {} trains {}", name_of(out_.release), dpo ? "no DPO" : "no reward models"));
    }
    const std::string path = first_path() + ".is_critic";
    if (!t_.knows(path) || t_.flag(path) != dpo) return;
    refuse(path, dpo ? "'true'" : "'false'", dpo ? "false" : "true",
           dpo ? "DPO needs log-probs, and AReaL refuses a value model"
               : "the loss of a reward model takes values, AReaL stops at the first batch");
  }
  void refuse(const std::string& path, std::string found, std::string expected, std::string why) {
    Place place = t_.at(path) != nullptr ? t_.at(path)->origin.place : Place{};
    place.path = path;
    out_.refusals.push_back({std::move(place), std::move(found), std::move(expected), {}, std::move(why)});
  }

  // ---- roles and their GPUs

  /// Where the settings of the first trained role stand: `model` in the SFT of the first releases.
  std::string first_path() const { return t_.has("actor") || !t_.has("model") ? "actor" : "model"; }

  void find_roles() {
    const std::string first = rl() ? "actor" : "trainer";
    if (t_.knows("allocation_mode") && !t_.since("1.0.3"))
      roles_of_one_string(first);
    else
      roles_of_their_strings(first);
  }

  /// From 1.0.3 on every engine has a string of its own.
  void roles_of_their_strings(const std::string& first) {
    if (servers_alone_) return add("rollout", "rollout", "");
    add(first, first_path(), "");
    if (t_.has("critic")) add("critic", "critic", beside_of("critic", first));
    if (builds_ref()) add("ref", "ref", beside_of("ref", first));
    if (rl() && t_.has("teacher")) add_teacher(first);
    if (rl()) add("rollout", "rollout", rollout_beside());
    if (!t_.text("allocation_mode").empty())
      out_.notes.push_back(
          {Note::Level::warning, t_.at("allocation_mode")->origin.place,
           fmt::format("allocation_mode is not read by AReaL {}: every engine has a 'backend'", name_of(out_.release))});
  }
  void add(const std::string& name, const std::string& path, std::string beside) {
    const std::string key = path + ".backend";
    const compose::Node* n = t_.at(key);
    if (n == nullptr || n->kind != compose::Node::Kind::text || n->text.empty()) {
      const bool old = !t_.text("allocation_mode").empty();
      return refuse_no_text(n, key, "an engine with its layout, such as fsdp:d4 or sglang:d2t2",
                            fmt::format("AReaL {} needs a backend for every engine{}", name_of(out_.release),
                                        old ? " and does not read allocation_mode" : ""));
    }
    AllocationRead read = read_engine(n->text, out_.release);
    if (!read) {
      read.problem.place = n->origin.place;
      read.problem.place.path = key;
      out_.refusals.push_back(std::move(read.problem));
      return;
    }
    const Part& part = read.allocation->parts.front();
    const bool serves = name == "rollout" || path == "teacher.rollout";
    if (serves != (part.kind == PartKind::inference)) {
      Place place = n->origin.place;
      place.path = key;
      out_.refusals.push_back({std::move(place),
                               fmt::format("'{}'", n->text),
                               serves ? "sglang or vllm with a layout" : "fsdp, megatron or archon with a layout",
                               {},
                               fmt::format("{} {}", spelling(part.backend), serves ? "serves no requests" : "trains nothing")});
      return;
    }
    out_.roles.push_back({name, path, part, std::move(beside), false, n->origin});
  }
  /// A layout that is not there, or no text.
  void refuse_no_text(const compose::Node* n, const std::string& key, std::string expected, std::string why) {
    using Kind = compose::Node::Kind;
    Place place = n != nullptr ? n->origin.place : Place{};
    place.path = key;
    const bool nothing = n == nullptr || n->kind == Kind::missing || n->kind == Kind::null || n->kind == Kind::unknown ||
                         (n->kind == Kind::text && n->text.empty());
    if (n != nullptr && n->kind == Kind::unknown) why = fmt::format("its value is not known here: {}", n->text);
    out_.refusals.push_back(
        {std::move(place), nothing ? "nothing" : compose::describe(*n), std::move(expected), {}, std::move(why)});
  }
  void add_teacher(const std::string& first) {
    const std::string way = t_.text("teacher.engine_type", "train");
    if (!t_.knows("teacher.engine_type"))
      add("teacher", "teacher", beside_of("teacher", first));
    else if (way == "rollout")
      add("teacher", "teacher.rollout", "");
    else
      add("teacher", "teacher.train", beside_of("teacher.train", first));
  }

  bool builds_ref() {
    if (!t_.has("ref")) return false;
    if (!rl()) return out_.kind == "dpo";
    const double weight = t_.real("actor.kl_ctl", 0);
    if (weight > 0) return true;
    out_.absent.push_back({"ref", fmt::format("configured but never built: actor.kl_ctl = {}", compose::python_text(weight)),
                           std::string(kTrainer)});
    return false;
  }

  bool colocates(const std::string& path, std::string_view target) const {
    return t_.text(path + ".scheduling_strategy.type") == "colocation" &&
           (target.empty() || t_.text(path + ".scheduling_strategy.target") == target);
  }
  std::string beside_of(const std::string& path, const std::string& first) const {
    if (!colocates(path, "")) return "";
    const std::string target = t_.text(path + ".scheduling_strategy.target", "actor");
    return target == "actor" ? first : target;
  }
  /// rl_trainer.py: _is_v1_awex_colocate, whatever the strategies say.
  bool awex_shares() const { return t_.text("actor.weight_update_mode") == "awex" && t_.text("actor._version", "v1") == "v1"; }
  std::string rollout_beside() const {
    return awex_shares() || colocates("rollout", "actor") || colocates("actor", "rollout") ? "actor" : "";
  }

  /// Up to 1.0.2 one string lays out all engines. Roles without a part of their own run on the actor's GPUs, in its process or
  /// beside it.
  void roles_of_one_string(const std::string& first) {
    const compose::Node* n = t_.at("allocation_mode");
    if (n->kind != compose::Node::Kind::text || n->text.empty())
      return refuse_no_text(n, "allocation_mode", "the layouts of all engines, such as sglang:d4+fsdp:d4",
                            fmt::format("AReaL {} lays out all engines by it", name_of(out_.release)));
    AllocationRead read = read_allocation(n->text, out_.release);
    if (!read) {
      read.problem.place = n->origin.place;
      read.problem.place.path = "allocation_mode";
      out_.refusals.push_back(std::move(read.problem));
      return;
    }
    const auto& parts = read.allocation->parts;
    const auto part_of = [&](std::string_view name, PartKind kind) -> const Part* {
      const Part* unnamed = nullptr;
      for (const auto& p : parts) {
        if (p.kind != kind) continue;
        if (p.name == name) return &p;
        if (unnamed == nullptr) unnamed = &p;
      }
      return unnamed;
    };
    const auto own = [&](std::string_view name) {
      return std::any_of(parts.begin(), parts.end(), [&](const Part& p) { return p.name == name; });
    };
    const Part* training = part_of(first, PartKind::training);
    const auto push = [&](const std::string& name, const std::string& path, const Part& p, std::string beside, bool in_process) {
      out_.roles.push_back({name, path, p, std::move(beside), in_process, n->origin});
    };
    if (training != nullptr) push(first, first_path(), *training, "", false);
    const std::string one_process = shares_process(t_);
    for (const std::string name : {"critic", "ref"}) {
      if (training == nullptr || !(name == "ref" ? builds_ref() : t_.has("critic"))) continue;
      const Part& p = *part_of(name, PartKind::training);
      const bool shares = !own(name) || p.anchor.has_value();
      push(name, name, p, shares ? first : "", shares && !one_process.empty());
      if (out_.roles.back().in_process) out_.roles.back().why_in_process = one_process;
    }
    const Part* serving = part_of("rollout", PartKind::inference);
    if (serving == nullptr || !rl()) return;
    const bool same = serving->anchor.has_value() ||
                      (training != nullptr && training->anchor.has_value() && &parts[*training->anchor] == serving);
    push("rollout", "rollout", *serving, same ? "actor" : "", false);
  }

  // ---- the job

  void tell_job() {
    t_.code("job.kind", out_.kind, "the configuration class");
    t_.take("job.max_prompt_length", "train_dataset.max_length");
    t_.take("job.train_batch_prompts", "train_dataset.batch_size");
    if (generates()) {
      t_.take("job.max_response_length", "gconfig.max_new_tokens");
      t_.take("job.max_total_length", "gconfig.max_tokens");
      t_.take("job.samples_per_prompt", "gconfig.n_samples");
    }
    if (rl()) tell_placement();
    if (rl() && t_.knows("enable_offload")) t_.take("job.enable_offload", "enable_offload");
    if (rl()) tell_log_probs();
    t_.derived("job.gpus_used", gpus_used(), "sum over roles that own GPUs");
  }
  void tell_placement() {
    const BuiltRole* rollout = role("rollout");
    if (rollout == nullptr) return;
    const std::string where = rollout->beside.empty() ? "separated" : "colocated";
    if (!t_.since("1.0.3"))
      t_.derived("job.placement", where, "allocation_mode", "allocation_mode");
    else if (awex_shares())
      t_.code("job.placement", where, fmt::format("{}: _is_v1_awex_colocate", kTrainer));
    else
      t_.derived("job.placement", where, "actor/rollout scheduling_strategy");
  }
  /// Whether log-probs are computed again before the update (areal/trainer/ppo/actor.py).
  void tell_log_probs() {
    if (!role("actor")) return;
    const bool decoupled = t_.flag("actor.use_decoupled_loss", true), again = t_.flag("actor.recompute_logprob");
    const std::string method = t_.text("actor.prox_logp_method", "recompute");
    const bool skips = method == "loglinear" || method == "reuse_train_logp";
    t_.derived("job.recompute_logprob_pass", decoupled ? !skips : again,
               fmt::format("use_decoupled_loss={} prox_logp_method={} recompute_logprob={}", decoupled ? "True" : "False", method,
                           again ? "True" : "False"));
  }
  std::int64_t gpus_used() const {
    std::int64_t sum = 0;
    for (const auto& r : out_.roles)
      if (r.beside.empty()) sum += r.part.layout.world();
    return sum;
  }

  /// The local scheduler hands GPUs out in turn and starts again at the first one without a word
  /// (areal/infra/scheduler/local.py 1.0.4: _allocate_gpus); Ray and Slurm wait or fail.
  void compare_with_cluster() {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;  // more is refused later; the product must not overflow
    const std::int64_t nodes = t_.whole("cluster.n_nodes", 1), each = t_.whole("cluster.n_gpus_per_node", 8);
    if (nodes < 1 || nodes > kMost || each < 1 || each > kMost) return;
    const std::int64_t have = nodes * each, used = gpus_used();
    if (used == have || out_.roles.empty()) return;
    Place place = t_.at("cluster") != nullptr ? t_.at("cluster")->origin.place : Place{};
    place.path = "cluster";
    if (used < have) {
      out_.notes.push_back({Note::Level::info, place, fmt::format("the roles use {} of {} GPUs", used, have)});
      return;
    }
    const bool local = t_.text("scheduler.type", "local") == "local";
    out_.notes.push_back(
        {Note::Level::warning, place,
         fmt::format("the roles ask for {} GPUs and the cluster has {}: {}", used, have,
                     local ? "the local scheduler starts again at the first GPU, so roles share GPUs and none of them sleeps"
                           : "the job waits for GPUs that do not come")});
  }

  Teller& t_;
  Meaning& out_;
  bool servers_alone_;
};

}  // namespace

Meaning meaning_of(const compose::Node& root, Release release, std::string_view file, bool servers_alone) {
  Meaning out;
  out.release = release;
  Teller teller(root, out);
  JobTeller(teller, servers_alone).run();
  if (auto problem = uneven_batch(teller, file)) out.refusals.push_back(std::move(*problem));
  check_values(teller, root);
  return out;
}

Meaning realhf_meaning_of(const compose::Node& root, Release release) {
  Meaning out;
  out.release = release;
  Teller teller(root, out);
  tell_realhf(teller);
  check_values(teller, root);
  return out;
}

}  // namespace oomplan::areal
