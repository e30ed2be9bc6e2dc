// Teachers of on-policy distillation: servers in a pool of their own, which score what the rollout generated and never sleep
// (verl/workers/config/distillation.py, verl/experimental/teacher_loop, 0.8 to 0.10).
#include "frontends/compose/node.hpp"
#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {
namespace {

constexpr std::string_view kTeachers = "distillation.teacher_models", kOfDefaults = "teacher_model";

}  // namespace

bool distills(const Telling& t) { return t.flag("distillation.enabled"); }

std::int64_t gpus_of_teachers(const Telling& t) {
  return distills(t) ? t.whole("distillation.nnodes", 0) * t.whole("distillation.n_gpus_per_node", 8) : 0;
}

std::vector<std::string> paths_of_teachers(const Telling& t) {
  std::vector<std::string> out;
  const compose::Node* all = t.at(kTeachers);
  if (all == nullptr) return out;
  const bool alone = all->entries.size() == 1;
  for (const auto& entry : all->entries)
    if (alone || entry.key != kOfDefaults) out.push_back(std::string(kTeachers) + "." + entry.key);
  return out;
}

}  // namespace oomplan::verl
