#include "frontends/verl/rules.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "frontends/telling.hpp"
#include "frontends/verl/choices.hpp"
#include "frontends/verl/meaning_parts.hpp"
#include "frontends/verl/rules_rewards.hpp"
#include "frontends/verl/rules_teachers.hpp"
#include "units/enums.hpp"

namespace oomplan::verl {
namespace {

using compose::Node;
using Words = std::vector<std::string>;

constexpr std::string_view kActor = "actor_rollout_ref.actor", kRef = "actor_rollout_ref.ref",
                           kRollout = "actor_rollout_ref.rollout", kModel = "actor_rollout_ref.model";

std::string below(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

Words split(std::string_view text) {
  Words out;
  while (!text.empty()) {
    const auto end = text.find(' ');
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

/// A word that a script leaves open is judged where the answer rests on it.
bool is_open(const Node& node) {
  return node.kind == Node::Kind::unknown || node.kind == Node::Kind::broken ||
         (node.kind == Node::Kind::text &&
          (node.text.find("unknownvalue") != std::string::npos || node.text.find("unknownothervalue") != std::string::npos));
}
bool is_null(const Node& node) {
  return node.kind == Node::Kind::null || node.kind == Node::Kind::missing ||
         (node.kind == Node::Kind::text && node.text == "None");
}

class Judge {
 public:
  explicit Judge(const VerlText& text) : text_(text), t_(text.root, facts_, "") {}

  std::vector<Problem> run() {
    if (!sections()) return std::move(out_);
    for (const Choice& choice : kChoices) judge(choice);
    switches(text_.root, "");
    shares();
    nulls();
    if (!text_.problems.empty() || !out_.empty()) return std::move(out_);
    for (const Rule& rule : kRules) {
      if (text_.release < release_named(rule.first) || text_.release > release_named(rule.last)) continue;
      if (rule.of != Of::all && rule.of != kind()) continue;
      source_ = rule.source;
      (this->*rule.check)();
    }
    return std::move(out_);
  }

 private:
  enum class Of : std::uint8_t { all, rl, sft, generation };
  /// `rl`: trainers; those that do not call validate_config leave its checks out themselves.
  struct Rule {
    std::string_view first, last;
    Of of;
    void (Judge::*check)();
    std::string_view source;
  };
  static const std::array<Rule, 29> kRules;

  // ---- what the configuration says

  /// 0.4 and 0.5 write "None" for null.
  bool given(std::string_view key) const {
    const Node* n = t_.at(key);
    return n != nullptr && !is_null(*n);
  }

  std::string_view module() const { return text_.arguments.module; }
  bool since(std::string_view release) const { return text_.release >= release_named(release); }
  Of kind() const {
    if (module().find("sft_trainer") != std::string_view::npos) return Of::sft;
    return module().find("generation") != std::string_view::npos ? Of::generation : Of::rl;
  }
  /// Trainers that call validate_config; before 0.6 RayPPOTrainer did, which the recipes' trainers are, too.
  bool validates() const {
    if (kind() != Of::rl) return false;
    if (!since("0.6.0")) return true;
    return module().starts_with("verl.trainer.main_ppo") || module().ends_with("one_step_off_policy.main_ppo") ||
           module().starts_with("recipe.transfer_queue") || module().starts_with("recipe.prime");
  }
  bool separated() const {
    return module().find("_async") != std::string_view::npos || module().find("one_step_off") != std::string_view::npos ||
           (t_.flag("trainer.use_v1") && t_.text("trainer.v1.trainer_mode") == "separate_async");
  }
  std::int64_t world() const {
    return text_.arguments.nodes.value_or(t_.whole("trainer.nnodes", 1)) *
           text_.arguments.gpus_per_node.value_or(t_.whole("trainer.n_gpus_per_node", 8));
  }
  bool critic_is_built() const {
    if (given("critic.enable")) return t_.flag("critic.enable");
    return t_.text("algorithm.adv_estimator", "gae") == "gae";
  }
  bool reference_is_built() const { return t_.flag(below(kActor, "use_kl_loss")) || t_.flag("algorithm.use_kl_in_reward"); }
  std::int64_t samples() const { return std::max<std::int64_t>(1, t_.whole(below(kRollout, "n"), 1)); }
  bool megatron(std::string_view role) const { return t_.knows(below(role, "megatron")); }
  std::string block(std::string_view role) const {
    if (role.empty()) return "engine";
    if (megatron(role)) return below(role, "megatron");
    if (role != "critic") return below(role, "fsdp_config");
    return since("0.8.0") ? "critic.fsdp" : "critic.model.fsdp_config";
  }
  std::int64_t ulysses(std::string_view role) const {
    const std::string own = below(role, "ulysses_sequence_parallel_size");
    const std::int64_t n = t_.whole(own, 1);
    return std::max<std::int64_t>(1, n > 1 ? n : t_.whole(below(block(role), "ulysses_sequence_parallel_size"), n));
  }
  std::string ulysses_key(std::string_view role) const {
    const std::string own = below(role, "ulysses_sequence_parallel_size");
    return t_.whole(own, 1) > 1 ? own : below(block(role), "ulysses_sequence_parallel_size");
  }
  std::int64_t degree(std::string_view role, std::string_view name) const {
    return std::max<std::int64_t>(1, t_.whole(below(block(role), name), 1));
  }
  /// GPUs that hold one copy of a model.
  std::int64_t model_size(std::string_view role) const {
    return megatron(role) ? degree(role, "tensor_model_parallel_size") * degree(role, "pipeline_model_parallel_size") *
                                degree(role, "context_parallel_size")
                          : ulysses(role);
  }
  std::int64_t ranks(std::string_view role) const { return std::max<std::int64_t>(1, world() / model_size(role)); }
  std::vector<std::string_view> trained() const {
    if (kind() == Of::sft) return {""};
    std::vector<std::string_view> out{kActor};
    if (critic_is_built()) out.push_back("critic");
    return out;
  }
  std::vector<std::string_view> engines() const {
    auto out = trained();
    if (kind() == Of::rl && reference_is_built()) out.push_back(kRef);
    return out;
  }

  // ---- telling

  std::string found(const std::string& key) const {
    const Node* n = t_.at(key);
    return n == nullptr || is_null(*n) ? "nothing" : compose::describe(*n);
  }
  void tell(const std::string& key, std::string what, std::string expected, std::string near, std::string why, ProblemKind kind) {
    const Node* n = t_.at(key);
    Place place = n != nullptr ? n->origin.place : Place{};
    if (n != nullptr && n->origin.kind == Origin::Kind::default_) place = {};
    place.path = key;
    out_.push_back({std::move(place), std::move(what), std::move(expected), std::move(near), std::move(why), kind});
  }
  /// Before 0.6 RayPPOTrainer made the checks of the configuration's classes.
  std::string refusal() const {
    const bool moved =
        !since("0.6.0") && (source_.starts_with("verl/utils/config.py") || source_.starts_with("verl/workers/config"));
    return fmt::format("verl itself refuses it ({})", moved ? "verl/trainer/ppo/ray_trainer.py" : source_);
  }
  void refuse(const std::string& key, std::string what, std::string expected) {
    tell(key, std::move(what), std::move(expected), {}, refusal(), ProblemKind::refused_by_framework);
  }
  void refuse(const std::string& key, std::string expected) { refuse(key, found(key), std::move(expected)); }

  // ---- values

  /// "path:Qwen" is one word to YAML, and stands where a section was.
  bool sections() {
    const std::size_t before = out_.size();
    constexpr std::array<std::string_view, 10> kSections{
        "actor_rollout_ref", kActor, kRef, kRollout, kModel, "critic", "data", "trainer", "algorithm", "engine"};
    for (const std::string_view key : kSections)
      if (const Node* n = t_.at(key); n != nullptr && n->kind != Node::Kind::map && !is_null(*n) && !is_open(*n))
        tell(std::string(key), compose::describe(*n), "a map of keys, each with a colon and a blank behind it", {}, {},
             ProblemKind::malformed);
    return out_.size() == before;
  }

  bool here(const Choice& c) const { return text_.release >= release_named(c.first) && text_.release <= release_named(c.last); }
  void judge(const Choice& c) {
    if (!here(c)) return;
    if (c.under.empty()) return judge(c, std::string(c.key));
    std::vector<std::string_view> roles = engines();
    for (const std::string_view role : roles) {
      if (c.under == "megatron" && !role.empty() && megatron(role)) judge(c, below(block(role), c.key));
      if (c.under == "optim" && role != kRef && !megatron(role) && of_fsdp(role)) judge(c, below(below(role, "optim"), c.key));
    }
  }
  bool of_fsdp(std::string_view role) const {
    if (!role.empty()) return t_.text(below(role, "strategy"), "fsdp").starts_with("fsdp");
    return module().find("fsdp_sft") == std::string_view::npos && t_.text("engine.strategy", "fsdp").starts_with("fsdp");
  }
  void judge(const Choice& c, const std::string& key) {
    const Node* n = t_.at(key);
    if (n == nullptr || is_open(*n)) return;
    if (key.starts_with("critic.") && !critic_is_built()) return;
    if (kind() != Of::rl && !key.starts_with("optim") && !key.starts_with(kRollout)) return;
    if (c.key == "algorithm.adv_estimator" && !module().starts_with("verl.trainer.main_ppo")) return;
    if (c.key.ends_with("attn_implementation") && n->kind == Node::Kind::text && n->text.find('/') != std::string::npos) return;
    Words words = split(c.words);
    const bool may_lack = std::find(words.begin(), words.end(), "null") != words.end();
    if (is_null(*n)) {
      if (may_lack || c.key.ends_with("attn_implementation") || c.key.ends_with("dtype")) return;
    } else if (n->kind == Node::Kind::text && (std::find(words.begin(), words.end(), n->text) != words.end() ||
                                               (c.key.ends_with("strategy") && n->text.starts_with("mindspeed")))) {
      return;
    }
    if (c.key.ends_with("rollout.name")) std::erase(words, "null");
    const std::string near = n->kind == Node::Kind::text ? nearest(n->text, words) : "";
    std::string why = fmt::format("verl itself refuses it ({})", c.source);
    if (!c.source.starts_with("verl/")) why = fmt::format("refused behind verl ({})", c.source);
    tell(key, is_null(*n) ? "nothing" : compose::describe(*n), list_of(words), near, std::move(why),
         ProblemKind::refused_by_framework);
  }

  void switches(const Node& node, const std::string& path) {
    for (const auto& entry : node.entries) {
      const std::string here = below(path, entry.key);
      const Node& n = entry.value;
      if (n.kind == Node::Kind::map) {
        switches(n, here);
        continue;
      }
      if (n.kind != Node::Kind::text || is_open(n) || is_null(n) || !n.via.empty()) continue;
      if (std::find(kSwitches.begin(), kSwitches.end(), entry.key) == kSwitches.end()) continue;
      tell(here, compose::describe(n), "true or false", {}, "Python takes every other word as true", ProblemKind::malformed);
    }
  }

  void shares() {
    const std::string key = below(kRollout, "gpu_memory_utilization");
    const Node* n = t_.at(key);
    if (n == nullptr || is_open(*n) || is_null(*n)) return;
    const double share = n->kind == Node::Kind::integer ? static_cast<double>(n->integer)
                         : n->kind == Node::Kind::real  ? n->real
                                                        : std::nan("");
    if (share > 0 && share <= 1) return;
    tell(key, compose::describe(*n), "a share of the GPU's memory above 0 and up to 1", {},
         share >= 2 && share <= 100 ? fmt::format("{} % is {}", share, share / 100) : "", ProblemKind::malformed);
  }

  /// Arithmetic is done with these.
  void nulls() {
    std::vector<std::string> keys;
    if (kind() != Of::sft) keys = {"trainer.nnodes", "trainer.n_gpus_per_node"};
    if (kind() == Of::rl)
      keys.insert(keys.end(), {"data.max_prompt_length", "data.max_response_length", below(kRollout, "n"),
                               below(kRollout, "tensor_model_parallel_size"), below(kActor, "ppo_mini_batch_size")});
    for (const std::string& key : keys)
      if (const Node* n = t_.at(key); n != nullptr && is_null(*n))
        tell(key, "null", "a whole number", {}, {}, ProblemKind::malformed);
    const std::string model = below(kModel, "path");
    if (const Node* n = t_.at(model); n != nullptr && (is_null(*n) || (n->kind == Node::Kind::text && n->text.empty())))
      tell(model, is_null(*n) ? "nothing" : "an empty text", "a model's hub id or folder", {}, {}, ProblemKind::malformed);
  }

  // ---- rules

  bool dynamic() const { return t_.flag(below(kActor, "use_dynamic_bsz")); }

  void divides_batch() {
    if (!validates() || (dynamic() && since("0.6.0"))) return;
    std::int64_t least = world();
    std::string what = fmt::format("{} GPUs", world());
    if (megatron(kActor)) {
      const std::int64_t micro = t_.whole(below(kActor, "ppo_micro_batch_size_per_gpu"), 0);
      if (micro < 1 || world() % model_size(kActor) != 0) return;
      least = ranks(kActor) * micro;
      what = fmt::format("{} data-parallel ranks x {} sequences of a micro-batch", ranks(kActor), micro);
    }
    const std::int64_t batch = t_.whole("data.train_batch_size", 0);
    if (batch * samples() % least != 0)
      refuse("data.train_batch_size", fmt::format("{} prompts x {} samples", batch, samples()),
             least == world() ? fmt::format("a product that {} divide", what)
                              : fmt::format("a product that {} divide ({})", what, least));
  }

  /// Exactly one of a deprecated key for all GPUs and one for each GPU.
  void one_micro_batch(std::string_view role, const std::string& name, const std::string& otherwise) {
    const std::string all = below(role, name), each = all + "_per_gpu";
    if (given(all) && given(each))
      refuse(all, fmt::format("{} beside {}", found(all), each), "one of them: this one is deprecated");
    if (!given(all) && !given(each)) refuse(each, fmt::format("a number{}", otherwise));
  }
  void micro_batch_of_actor() {
    if (!dynamic())
      one_micro_batch(kActor, "ppo_micro_batch_size", fmt::format(", or {}=True", below(kActor, "use_dynamic_bsz")));
  }
  void micro_batch_of_log_probs() {
    if (!validates() || dynamic()) return;
    if (reference_is_built() || !since("0.4.0"))
      one_micro_batch(kRef, "log_prob_micro_batch_size", fmt::format(", or {}=True", below(kActor, "use_dynamic_bsz")));
    one_micro_batch(kRollout, "log_prob_micro_batch_size", fmt::format(", or {}=True", below(kActor, "use_dynamic_bsz")));
  }
  void micro_batch_of_critic() {
    if (critic_is_built() && !t_.flag("critic.use_dynamic_bsz"))
      one_micro_batch("critic", "ppo_micro_batch_size", ", or critic.use_dynamic_bsz=True");
  }
  /// Workers of 0.8 read only those for each GPU.
  void micro_batch_for_each_gpu() {
    if (dynamic()) return;
    for (const std::string& key : {below(kActor, "ppo_micro_batch_size"), below(kRollout, "log_prob_micro_batch_size")})
      if (given(key) && !given(key + "_per_gpu"))
        refuse(key + "_per_gpu", fmt::format("nothing beside {}", key), "a number: the key for all GPUs is no longer read");
  }

  void mini_batch(std::string_view role) {
    const std::string mini = below(role, "ppo_mini_batch_size");
    const std::int64_t batch = t_.whole("data.train_batch_size", 0), n = t_.whole(mini, 0);
    if (n > batch) refuse(mini, fmt::format("at most the {} prompts of data.train_batch_size", batch));
  }
  void mini_batch_of_actor() {
    if (validates() && !dynamic()) mini_batch(kActor);
  }
  void mini_batch_of_critic() {
    if (validates() && critic_is_built() && !t_.flag("critic.use_dynamic_bsz")) mini_batch("critic");
  }

  void deprecated_micro_batch(std::string_view role, std::string_view name) {
    const std::string key = below(role, "ppo_micro_batch_size"), mini = below(role, "ppo_mini_batch_size");
    const std::int64_t micro = t_.whole(key, 0);
    if (micro < 1) return;
    if (t_.whole(mini, 0) % micro != 0) refuse(key, fmt::format("a number that divides the {} of {}", t_.whole(mini, 0), mini));
    const std::int64_t context = std::max<std::int64_t>(1, t_.whole(below(role, "ulysses_sequence_parallel_size"), 1));
    if (micro * context < world())
      refuse(key, fmt::format("{} for all GPUs together", found(key)),
             fmt::format("at least the {} GPUs{}: {}", world(), context > 1 ? fmt::format(", Ulysses {} counted", context) : "",
                         name));
  }
  void deprecated_of_actor() {
    if (validates() && !dynamic()) deprecated_micro_batch(kActor, "the actor's key for each GPU is ppo_micro_batch_size_per_gpu");
  }
  void deprecated_of_critic() {
    if (validates() && critic_is_built() && !t_.flag("critic.use_dynamic_bsz") && !megatron("critic"))
      deprecated_micro_batch("critic", "the critic's key for each GPU is ppo_micro_batch_size_per_gpu");
  }

  void padding_of_actor() {
    if (!validates() || megatron(kActor)) return;
    std::string key = below(kActor, "ulysses_sequence_parallel_size");
    if (!since("0.6.0") && t_.whole(key, 1) <= 1) key = below(kRef, "ulysses_sequence_parallel_size");
    if (t_.whole(key, 1) > 1 && !t_.flag(below(kModel, "use_remove_padding")))
      refuse(below(kModel, "use_remove_padding"), fmt::format("true beside {}={}", key, t_.whole(key, 1)));
  }
  void padding_of_critic() {
    const std::string key = "critic.ulysses_sequence_parallel_size";
    if (!validates() || !critic_is_built() || megatron("critic") || t_.whole(key, 1) <= 1) return;
    if (!t_.flag("critic.model.use_remove_padding"))
      refuse("critic.model.use_remove_padding", fmt::format("true beside {}={}", key, t_.whole(key, 1)));
  }

  void temperature() {
    if (validates() && t_.flag(below(kRollout, "val_kwargs.do_sample")) && t_.real(below(kRollout, "temperature"), 1) <= 0)
      refuse(below(kRollout, "temperature"),
             fmt::format("a number above 0 beside {}=True", below(kRollout, "val_kwargs.do_sample")));
  }

  void rank() {
    if (!validates() || t_.text(below(kRollout, "name")) != "vllm" || t_.flag(below(kModel, "lora.merge"))) return;
    const std::string own = below(kModel, "lora.rank");
    const std::string key = since("0.7.1") && t_.whole(own, 0) > 0 ? own : below(kModel, "lora_rank");
    constexpr std::int64_t kMost = 512;
    if (t_.whole(key, 0) > kMost) refuse(key, fmt::format("at most {}, the highest rank of vLLM", kMost));
  }

  void mode() {
    if (t_.text(below(kRollout, "mode")) == "sync")
      refuse(below(kRollout, "mode"), "async, or no such key: sync was removed in 0.7.0");
  }
  void experts_of_server() {
    const std::int64_t experts = t_.whole(below(kRollout, "expert_parallel_size"), 1),
                       gpus = t_.whole(below(kRollout, "tensor_model_parallel_size"), 1) *
                              t_.whole(below(kRollout, "data_parallel_size"), 1);
    if (t_.text(below(kRollout, "name")) != "trtllm" && experts > 1 && experts != gpus)
      refuse(below(kRollout, "expert_parallel_size"),
             fmt::format("1, or tensor_model_parallel_size x data_parallel_size ({})", gpus));
  }
  void stages_of_server() {
    if (t_.whole(below(kRollout, "pipeline_model_parallel_size"), 1) > 1)
      refuse(below(kRollout, "pipeline_model_parallel_size"), "1: servers have no stages");
  }
  void server_divides_gpus() {
    const std::string key = below(kRollout, "tensor_model_parallel_size");
    const std::int64_t one = std::max<std::int64_t>(1, t_.whole(key, 1)) *
                             std::max<std::int64_t>(1, t_.whole(below(kRollout, "data_parallel_size"), 1)) *
                             std::max<std::int64_t>(1, t_.whole(below(kRollout, "pipeline_model_parallel_size"), 1));
    if (!separated() && world() % one != 0)
      refuse(key, one == t_.whole(key, 1) ? found(key) : fmt::format("{} GPUs of one server", one),
             fmt::format("a number that divides the {} GPUs", world()));
  }

  /// The blocks of an engine are there only if its group was chosen.
  void strategy() {
    for (const std::string_view role : trained()) {
      const std::string key = below(role, "strategy");
      const bool asked = t_.text(key) == "megatron", there = megatron(role);
      if (asked == there) continue;
      const std::string group = since("0.8.0") ? "model_engine=megatron" : "--config-name=ppo_megatron_trainer";
      if (asked)
        refuse(key, fmt::format("{} without the keys of Megatron", found(key)), fmt::format("{}, which brings them", group));
      else if (t_.text(key).starts_with("fsdp"))
        refuse(key, fmt::format("{} among the keys of Megatron", found(key)), fmt::format("megatron, or no {}", group));
    }
  }

  void ulysses_divides_gpus() {
    for (const std::string_view role : engines())
      if (!megatron(role) && of_fsdp(role) && world() % ulysses(role) != 0)
        refuse(ulysses_key(role), fmt::format("a number that divides the {} GPUs", world()));
  }
  void shards_divide_gpus() {
    for (const std::string_view role : engines()) {
      const std::string key = below(block(role), "fsdp_size");
      const std::int64_t size = t_.whole(key, -1);
      if (!megatron(role) && of_fsdp(role) && size > 0 && size < world() && world() % size != 0)
        refuse(key, fmt::format("-1, or a number that divides the {} GPUs", world()));
    }
  }
  void megatron_divides_gpus() {
    for (const std::string_view role : engines()) {
      if (role.empty() || !megatron(role)) continue;
      const std::int64_t tensor = degree(role, "tensor_model_parallel_size"),
                         stages = degree(role, "pipeline_model_parallel_size"), context = degree(role, "context_parallel_size");
      if (world() % (tensor * stages * context) != 0) {
        refuse(below(block(role), "tensor_model_parallel_size"),
               fmt::format("tensor {} x pipeline {} x context {}", tensor, stages, context),
               fmt::format("a product that divides the {} GPUs", world()));
        continue;
      }
      const std::int64_t experts = degree(role, "expert_model_parallel_size");
      const std::string own = below(block(role), "expert_tensor_parallel_size");
      const std::int64_t expert_tensor = given(own) ? degree(role, "expert_tensor_parallel_size") : tensor;
      if (experts > 1 && world() % (expert_tensor * experts * stages) != 0)
        refuse(below(block(role), "expert_model_parallel_size"),
               fmt::format("expert tensor {}{} x expert {} x pipeline {}", expert_tensor,
                           given(own) ? "" : " (as tensor_model_parallel_size)", experts, stages),
               fmt::format("a product that divides the {} GPUs", world()));
    }
  }

  /// A rank's part of a mini-batch, in whole micro-batches.
  void parts_of_mini_batch() {
    if (since("0.8.0") ? dynamic() : megatron(kActor)) return;
    const std::string key = below(kActor, "ppo_mini_batch_size"), each = below(kActor, "ppo_micro_batch_size_per_gpu");
    const std::int64_t sequences = t_.whole(key, 0) * samples(), micro = t_.whole(each, 0), of = ranks(kActor);
    const std::string what = fmt::format("{} prompts x {} samples on {} data-parallel ranks", t_.whole(key, 0), samples(), of);
    if (sequences < 1) return;
    if (since("0.8.0") && sequences % of != 0)
      refuse(key, what, "a number of sequences that they divide");
    else if (sequences / of < 1)
      refuse(key, what, "a sequence for each");
    else if (micro > 0 && sequences / of % micro != 0)
      refuse(each, fmt::format("a number that divides the {} sequences of a rank ({})", sequences / of, what));
  }

  void dynamic_alike() {
    const std::string key = below(kRollout, "log_prob_use_dynamic_bsz");
    if (t_.knows(key) && t_.flag(key) != dynamic())
      refuse(key, fmt::format("{}, as {}", dynamic() ? "true" : "false", below(kActor, "use_dynamic_bsz")));
  }

  /// Batches are padded to the longest prompt and response that may be.
  void budget_holds_a_sequence() {
    if (!dynamic()) return;
    const std::int64_t longest = t_.whole("data.max_prompt_length", 512) + t_.whole("data.max_response_length", 512);
    const std::string key = below(kActor, "ppo_max_token_len_per_gpu");
    const std::int64_t context = megatron(kActor) ? degree(kActor, "context_parallel_size") : ulysses(kActor);
    if (t_.whole(key, 0) > 0 && t_.whole(key, 0) * context < longest)
      refuse(key, fmt::format("{}{}", found(key), context > 1 ? fmt::format(" x {}", context) : ""),
             fmt::format("at least the {} tokens of one sequence (data.max_prompt_length + data.max_response_length)", longest));
  }

  void length_of_sglang() {
    const std::string key = below(kRollout, "max_model_len");
    const std::int64_t longest = t_.whole("data.max_prompt_length", 512) + t_.whole("data.max_response_length", 512);
    if (t_.text(below(kRollout, "name")).starts_with("sglang") && given(key) && t_.whole(key, longest) < longest)
      refuse(key, fmt::format("at least {} tokens (data.max_prompt_length + data.max_response_length)", longest));
  }
  void batched_tokens() {
    const std::string key = below(kRollout, "max_num_batched_tokens"), length = below(kRollout, "max_model_len");
    if (t_.text(below(kRollout, "name")) != "vllm" || t_.flag(below(kRollout, "enable_chunked_prefill"), true) || !given(length))
      return;
    if (text_.release != release_named("0.7.0") && t_.whole(key, 8192) < t_.whole(length, 0))
      tell(key, found(key),
           fmt::format("at least {}={}, or {}=True", length, t_.whole(length, 0), below(kRollout, "enable_chunked_prefill")), {},
           fmt::format("vLLM itself refuses it ({})", source_), ProblemKind::refused_by_framework);
  }

  /// getattr(torch.optim, name): "adamw" is a module there, and no class.
  void optimizer() {
    for (const std::string_view role : trained()) {
      const std::string optim = below(role, "optim"), key = below(optim, "optimizer");
      if (megatron(role) || !of_fsdp(role) || t_.text(below(optim, "optimizer_impl")) != "torch.optim" || !given(key)) continue;
      const Words words = split(kOptimizers);
      const std::string name = t_.text(key);
      if (name.find("unknown") != std::string::npos || std::find(words.begin(), words.end(), name) != words.end()) continue;
      tell(key, found(key), "a class of torch.optim", nearest(name, words), refusal(), ProblemKind::refused_by_framework);
    }
  }

  void batch_of_old_sft() {
    if (module().find("fsdp_sft") == std::string_view::npos) return;
    const std::int64_t batch = t_.whole("data.train_batch_size", 0), micro = t_.whole("data.micro_batch_size_per_gpu", 0),
                       context = std::max<std::int64_t>(1, t_.whole("ulysses_sequence_parallel_size", 1)),
                       of = std::max<std::int64_t>(1, world() / context);
    if (batch % of != 0)
      refuse("data.train_batch_size", fmt::format("a number that {} data-parallel ranks divide", of));
    else if (micro > 0 && batch / of % micro != 0)
      refuse("data.micro_batch_size_per_gpu", fmt::format("a number that divides the {} sequences of a rank", batch / of));
    if (context > 1 && !t_.flag("use_remove_padding"))
      refuse("use_remove_padding", fmt::format("true beside ulysses_sequence_parallel_size={}", context));
  }

  const VerlText& text_;
  std::vector<ToldFact> facts_;
  Telling t_;
  std::string_view source_;
  std::vector<Problem> out_;
};

const std::array<Judge::Rule, 29> Judge::kRules{{
    {kFirst, kLast, Of::rl, &Judge::divides_batch, "verl/utils/config.py"},
    {kFirst, kLast, Of::rl, &Judge::micro_batch_of_actor, "verl/workers/config/actor.py"},
    {kFirst, kLast, Of::rl, &Judge::micro_batch_of_log_probs, "verl/utils/config.py"},
    {kFirst, kLast, Of::rl, &Judge::micro_batch_of_critic, "verl/workers/config/critic.py"},
    {"0.8.0", kLast, Of::rl, &Judge::micro_batch_for_each_gpu, "verl/workers/engine_workers.py"},
    {kFirst, kLast, Of::rl, &Judge::mini_batch_of_actor, "verl/workers/config/actor.py"},
    {kFirst, kLast, Of::rl, &Judge::mini_batch_of_critic, "verl/workers/config/critic.py"},
    {kFirst, kLast, Of::rl, &Judge::deprecated_of_actor, "verl/workers/config/actor.py"},
    {kFirst, kLast, Of::rl, &Judge::deprecated_of_critic, "verl/workers/config/critic.py"},
    {kFirst, kLast, Of::rl, &Judge::padding_of_actor, "verl/workers/config/actor.py"},
    {kFirst, "0.7.1", Of::rl, &Judge::padding_of_critic, "verl/workers/config/critic.py"},
    {kFirst, kLast, Of::rl, &Judge::temperature, "verl/utils/config.py"},
    {"0.6.1", kLast, Of::rl, &Judge::rank, "verl/utils/config.py"},
    {"0.7.0", kLast, Of::rl, &Judge::mode, "verl/workers/config/rollout.py"},
    {"0.6.0", kLast, Of::rl, &Judge::experts_of_server, "verl/workers/config/rollout.py"},
    {"0.6.0", kLast, Of::rl, &Judge::stages_of_server, "verl/workers/config/rollout.py"},
    {kFirst, kLast, Of::rl, &Judge::server_divides_gpus, "its workers' world_size % infer_tp"},
    {kFirst, kLast, Of::rl, &Judge::strategy, "its workers look for other keys"},
    {kFirst, kLast, Of::all, &Judge::ulysses_divides_gpus, "torch.distributed's mesh of ranks"},
    {kFirst, kLast, Of::all, &Judge::shards_divide_gpus, "torch.distributed's mesh of ranks"},
    {kFirst, kLast, Of::rl, &Judge::megatron_divides_gpus, "megatron/core/parallel_state.py"},
    {kFirst, "0.7.1", Of::rl, &Judge::parts_of_mini_batch, "verl/workers/fsdp_workers.py"},
    {"0.8.0", kLast, Of::rl, &Judge::parts_of_mini_batch, "verl/workers/engine_workers.py"},
    {"0.8.0", kLast, Of::rl, &Judge::dynamic_alike, "verl/workers/engine_workers.py"},
    {kFirst, "0.7.1", Of::rl, &Judge::budget_holds_a_sequence, "verl/utils/seqlen_balancing.py"},
    {"0.5.0", "0.6.1", Of::rl, &Judge::length_of_sglang, "verl/workers/rollout/sglang_rollout/sglang_rollout.py"},
    {kFirst, kLast, Of::rl, &Judge::batched_tokens, "vllm/config/scheduler.py"},
    {"0.6.1", kLast, Of::all, &Judge::optimizer, "verl/workers/config/optimizer.py"},
    {kFirst, "0.7.0", Of::sft, &Judge::batch_of_old_sft, "verl/trainer/fsdp_sft_trainer.py"},
}};

}  // namespace

std::vector<Problem> refusals_of(const VerlText& text) {
  std::vector<Problem> out = Judge(text).run();
  if (!out.empty() || !text.problems.empty()) return out;
  out = refusals_of_rewards(text);
  for (Problem& p : refusals_of_teachers(text)) out.push_back(std::move(p));
  return out;
}

}  // namespace oomplan::verl
