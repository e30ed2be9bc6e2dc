// The turns of a job: which role does what, one after another. What a GPU goes through is this list, restricted to the roles
// that sit on it.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

enum class StepKind : std::uint8_t {
  load,
  start,
  wake_weights,
  wake_cache,
  generate,
  sleep,
  step_aside,
  log_probs,
  train,
  send,
  receive,
  save
};

/// What a role is doing, as reports call it. One table of words: phase_word().
enum class PhaseKind : std::uint8_t {
  load,
  start,
  generate,
  sleep,
  wake,
  receive_weights,
  log_probs,
  values,
  forward,
  backward,
  optimizer,
  send_weights,
  save
};
std::string_view phase_word(PhaseKind);

inline constexpr std::size_t kStepKinds = 12;

struct Step {
  std::size_t role = 0;  ///< index into Job::roles
  StepKind kind = StepKind::load;
};

struct Timeline {
  std::vector<Step> init;       ///< once
  std::vector<Step> iteration;  ///< every step; the first creates optimizer states, so two of them are looked at
};
Timeline timeline_of(const Job&);

/// Has the role an optimizer?
bool learns(const Role&);
/// A role for log-probs whose weights are the actor's of the last update; "ref" keeps those that it has loaded.
bool follows_actor(const Role&);

/// Do the two roles sit on the same GPUs?
bool share_gpus(const Job&, const Role&, const Role&);

}  // namespace oomplan
