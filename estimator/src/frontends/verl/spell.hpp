// How a change of a Job is spelt in verl's keys.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/fact_value.hpp"
#include "frontends/verl/meaning.hpp"

namespace oomplan::verl {

/// One key with what it gets. `added`: the release's files lack it, and Hydra wants a "+".
struct Edit {
  std::string path;
  FactValue value;
  bool added = false;
};
struct Spelt {
  std::vector<Edit> edits;
  std::string why;  ///< "": done; otherwise why verl has no word for it
};
/// The change of one knob, with `job` as it is.
Spelt spell(const Job& job, const VerlText&, const VerlMeaning&, const std::string& knob, const std::string& value);
/// The key of verl's that a knob is read from; "" none.
std::string key_of_knob(const VerlText&, const VerlMeaning&, std::string_view knob);
/// "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192".
std::string override_text(const Edit&);

}  // namespace oomplan::verl
