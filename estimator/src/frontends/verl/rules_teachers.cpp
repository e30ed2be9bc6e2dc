// Checks of verl/workers/config/distillation.py and verl/trainer/distillation/losses.py, 0.8 to 0.10.
#include "frontends/verl/rules_teachers.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "frontends/telling.hpp"
#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {
namespace {

constexpr std::array<std::string_view, 8> kLosses{"forward_kl_topk", "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"};
constexpr std::string_view kLoss = "distillation.distillation_loss";

class TeacherJudge {
 public:
  explicit TeacherJudge(const VerlText& text) : t_(text.root, facts_, ""), paths_(paths_of_teachers(t_)) {}

  std::vector<Problem> run() {
    pool();
    loss();
    for (const std::string& path : paths_) teacher(path);
    if (out_.empty()) shares();
    return std::move(out_);
  }

 private:
  void refuse(const std::string& key, std::string expected, std::string_view source = "verl/workers/config/distillation.py") {
    const compose::Node* n = t_.at(key);
    Place place = n != nullptr && n->origin.kind != Origin::Kind::default_ ? n->origin.place : Place{};
    place.path = key;
    out_.push_back({std::move(place),
                    t_.has(key) ? compose::describe(*n) : "nothing",
                    std::move(expected),
                    {},
                    fmt::format("verl itself refuses it ({})", source),
                    ProblemKind::refused_by_framework});
  }

  void pool() {
    for (const std::string key : {"distillation.nnodes", "distillation.n_gpus_per_node"})
      if (t_.whole(key, 0) <= 0) refuse(key, "1 or more", "its trainer's pools of GPUs");
  }
  void loss() {
    const std::string loss(kLoss), mode = t_.text(loss + ".loss_mode", "k3");
    if (std::find(kLosses.begin(), kLosses.end(), mode) == kLosses.end())
      refuse(loss + ".loss_mode", fmt::format("{}", fmt::join(kLosses, ", ")), "verl/trainer/distillation/losses.py");
    if (mode == "k1" && !t_.flag(loss + ".use_policy_gradient"))
      refuse(loss + ".loss_mode", "another loss, or distillation_loss.use_policy_gradient=True");
    // compute_topk_loss knows the strategies fsdp, veomni and megatron
    if (mode == "forward_kl_topk" && t_.text("actor_rollout_ref.actor.strategy") == "fsdp2")
      refuse(loss + ".loss_mode", "actor.strategy=fsdp or megatron, or another loss", "verl/trainer/distillation/losses.py");
    if (mode == "forward_kl_topk" && !t_.has(loss + ".topk")) refuse(loss + ".topk", "how many tokens");
    if (t_.text(loss + ".policy_loss_mode", "vanilla") != "vanilla") refuse(loss + ".policy_loss_mode", "vanilla");
  }
  void teacher(const std::string& path) {
    if (!t_.has(path + ".model_path")) refuse(path + ".model_path", "the teacher's model");
    if (paths_.size() > 1 && !t_.has(path + ".key")) refuse(path + ".key", "the value of teacher_key that it answers");
    if (paths_.size() > 1 && t_.has(path + ".key") && !keys_.insert(t_.text(path + ".key")).second)
      refuse(path + ".key", "a key that no other teacher has");
    const std::string server = path + ".inference";
    // the dataclass has 512 for each where a teacher is added by hand
    const std::int64_t needed = t_.whole(server + ".prompt_length", 512) + t_.whole(server + ".response_length", 512) + 1;
    if (t_.has(server + ".max_model_len") && t_.whole(server + ".max_model_len", needed) < needed)
      refuse(server + ".max_model_len", fmt::format("at least {}: the student's prompt and response, and one token", needed));
  }
  /// The replicas of all teachers fill their pool.
  void shares() {
    const std::int64_t pool = gpus_of_teachers(t_);
    if (paths_.size() == 1) {
      const std::int64_t one = gpus_of_a_server(t_, paths_[0] + ".inference");
      if (one <= 0 || pool % one != 0)
        refuse("distillation.n_gpus_per_node", fmt::format("a pool that servers of {} GPUs fill", one));
      return;
    }
    std::int64_t all = 0;
    for (const std::string& path : paths_) all += t_.whole(path + ".num_replicas", 0) * gpus_of_a_server(t_, path + ".inference");
    if (all != pool)
      refuse("distillation.n_gpus_per_node", fmt::format("a pool of the {} GPUs that the teachers' replicas take", all));
  }

  std::vector<ToldFact> facts_;
  Telling t_;
  std::vector<std::string> paths_;
  std::set<std::string> keys_;
  std::vector<Problem> out_;
};

}  // namespace

std::vector<Problem> refusals_of_teachers(const VerlText& text) {
  std::vector<ToldFact> none;
  return distills(Telling(text.root, none, "")) ? TeacherJudge(text).run() : std::vector<Problem>{};
}

}  // namespace oomplan::verl
