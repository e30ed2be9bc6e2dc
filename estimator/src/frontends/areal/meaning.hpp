// What an AReaL configuration means, fact by fact, before any of it is estimated: which roles are built, on which GPUs, in which
// formats, with which budgets. Every fact says who told it: the file, an interpolation, the release's default, AReaL's code.
//
// Keys and values are those of docs/areal.md ("roles.actor.layout.dp" = 4). What an estimate can use of them is frontends/areal/
// job.hpp's business; facts exist for Megatron and Archon, DPO and LoRA too.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/areal/allocation.hpp"
#include "frontends/compose/node.hpp"
#include "frontends/fact_value.hpp"
#include "frontends/telling.hpp"

namespace oomplan::areal {

using Fact = ToldFact;

/// A role that the file mentions and the job does not have.
struct AbsentRole {
  std::string role, why, where;
};

/// A role that is built.
struct BuiltRole {
  std::string name;    ///< "actor", "trainer" (SFT, DPO, reward model), "ref", "critic", "teacher", "rollout"
  std::string path;    ///< where its settings stand: "actor", "teacher.train"
  Part part;           ///< its engine and layout
  std::string beside;  ///< the role whose GPUs it shares; "" its own
  bool in_process = false;
  Origin allocation;                ///< of the string that gives the part
  std::string why_in_process = {};  ///< in words
};

struct Meaning {
  Release release;
  std::string kind;  ///< "rl", "sft", "dpo", "reward_model", "rollout" (servers alone)
  std::vector<Fact> facts;
  std::vector<BuiltRole> roles;
  std::vector<AbsentRole> absent;
  std::vector<Note> notes;
  std::vector<Problem> refusals;  ///< what the framework itself would refuse, with its reason

  const Fact* find(std::string_view key) const { return find_fact(facts, key); }
};

/// `root`: composed, merged over the release's defaults, resolved. `file`: the configuration's name. `servers_alone`: nothing is
/// trained, whatever the class has.
Meaning meaning_of(const compose::Node& root, Release, std::string_view file = {}, bool servers_alone = false);
/// The same of a file of the realhf trainer.
Meaning realhf_meaning_of(const compose::Node& root, Release);

}  // namespace oomplan::areal
