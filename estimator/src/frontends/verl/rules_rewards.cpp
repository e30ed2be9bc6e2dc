// Checks of verl/experimental/reward_loop, verl/workers/config/rollout.py and the trainers' pools, 0.7.0 to 0.10.
#include "frontends/verl/rules_rewards.hpp"

#include <fmt/format.h>

#include "frontends/telling.hpp"
#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {
namespace {

class RewardJudge {
 public:
  explicit RewardJudge(const VerlText& text)
      : text_(text), t_(text.root, facts_, ""), at_(reward_at(t_, text.release)), server_(at_.path + ".rollout") {}

  std::vector<Problem> run() {
    pool();
    if (!t_.has(at_.model)) refuse(at_.model, "the reward model", "verl/workers/config/model.py");
    if (t_.flag(server_ + ".skip_tokenizer_init")) refuse(server_ + ".skip_tokenizer_init", "False", kManager);
    degrees();
    if (out_.empty()) share();
    return std::move(out_);
  }

 private:
  static constexpr std::string_view kManager = "verl/experimental/reward_loop/reward_model.py";

  void refuse(const std::string& key, std::string expected, std::string_view source, std::string found = {}) {
    const compose::Node* n = t_.at(key);
    Place place = n != nullptr && n->origin.kind != Origin::Kind::default_ ? n->origin.place : Place{};
    if (place.path.empty()) place.path = key;
    if (found.empty()) found = t_.has(key) ? compose::describe(*n) : "nothing";
    out_.push_back({std::move(place),
                    std::move(found),
                    std::move(expected),
                    {},
                    fmt::format("verl itself refuses it ({})", source),
                    ProblemKind::refused_by_framework});
  }

  bool since(std::string_view release) const { return text_.release >= release_named(release); }
  bool own_pool() const { return t_.flag(at_.path + ".enable_resource_pool"); }
  bool fully_async() const { return text_.arguments.module.find("fully_async") != std::string::npos; }
  std::int64_t gpus() const {
    if (own_pool()) return gpus_of_rewards(t_, text_.release);
    return text_.arguments.nodes.value_or(t_.whole("trainer.nnodes", 1)) *
           text_.arguments.gpus_per_node.value_or(t_.whole("trainer.n_gpus_per_node", 8));
  }

  void pool() {
    if (own_pool())
      for (const char* key : {".nnodes", ".n_gpus_per_node"})
        if (t_.whole(at_.path + key, 0) <= 0) refuse(at_.path + key, "1 or more", "its trainer's pools of GPUs");
    if (own_pool()) return;
    const std::string key = at_.path + ".enable_resource_pool";
    if (fully_async() && since("0.8.0")) refuse(key, "True", "verl/experimental/fully_async_policy/fully_async_rollouter.py");
    if (since("0.9.0") && t_.flag("trainer.use_v1") && t_.text("trainer.v1.trainer_mode") == "separate_async")
      refuse(key, "True", "verl/trainer/ppo/v1/trainer_separate_async.py");
  }

  void degrees() {
    constexpr std::string_view kConfig = "verl/workers/config/rollout.py";
    const std::int64_t experts = t_.whole(server_ + ".expert_parallel_size", 1);
    const std::int64_t ranks =
        t_.whole(server_ + ".tensor_model_parallel_size", 2) * t_.whole(server_ + ".data_parallel_size", 1);
    if (experts > 1 && experts != ranks && t_.text(server_ + ".name") != "trtllm")
      refuse(server_ + ".expert_parallel_size", fmt::format("1, or tensor_model_parallel_size x data_parallel_size ({})", ranks),
             kConfig);
    if (t_.whole(server_ + ".pipeline_model_parallel_size", 1) > 1)
      refuse(server_ + ".pipeline_model_parallel_size", "1: servers have no stages", kConfig);
  }

  /// A pool is split among the servers; without one, in the fully asynchronous trainer, what is left over stays idle.
  void share() {
    const std::string key = server_ + ".tensor_model_parallel_size";
    const std::int64_t one = gpus_of_a_server(t_, server_), all = gpus();
    if (one > 0 && (fully_async() ? all >= one : all % one == 0)) return;
    refuse(key, fmt::format("a number that divides the {} GPUs{}", all, own_pool() ? " of its pool" : ""),
           "verl/single_controller/ray/base.py", fmt::format("{} GPUs of one server", one));
  }

  const VerlText& text_;
  std::vector<ToldFact> facts_;
  Telling t_;
  RewardAt at_;
  std::string server_;
  std::vector<Problem> out_;
};

}  // namespace

std::vector<Problem> refusals_of_rewards(const VerlText& text) {
  std::vector<ToldFact> none;
  const Telling t(text.root, none, "");
  return rewards(t, text.release) && reward_at(t, text.release).served ? RewardJudge(text).run() : std::vector<Problem>{};
}

}  // namespace oomplan::verl
