// What a configuration of verl means, fact by fact, before any of it is estimated: which roles are built, on which GPUs, by which
// engines, with which budgets. Keys and values are those of docs/verl.md ("roles.actor.layout.dp" = 4).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/telling.hpp"
#include "frontends/verl/read.hpp"

namespace oomplan::verl {

struct AbsentRole {
  std::string role, why, where;
};

struct VerlMeaning {
  std::string kind;  ///< "rl", "sft", "generation"
  std::vector<ToldFact> facts;
  std::vector<std::string> roles;  ///< built, in the order of actor, ref, critic, reward, trainer, rollout, teachers
  std::vector<AbsentRole> absent;
  std::vector<std::string> teachers;  ///< where the settings of each stand: "distillation.teacher_models.teacher_model"

  std::string reward;  ///< where the settings of a reward model's server stand; "": none

  const ToldFact* find(std::string_view key) const { return find_fact(facts, key); }
  bool has_role(std::string_view name) const;
  std::string text(std::string_view key, std::string otherwise = {}) const;
  std::int64_t whole(std::string_view key, std::int64_t otherwise = 0) const;
  bool flag(std::string_view key) const;
};

VerlMeaning meaning_of(const VerlText&);

}  // namespace oomplan::verl
