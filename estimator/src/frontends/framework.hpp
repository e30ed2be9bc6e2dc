// A framework as everything else sees it: what its training loop does, as named fields, what it refuses, what it does where a job
// is silent. One row, which stands in the framework's own folder.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "frontends/defaults.hpp"
#include "frontends/derivation.hpp"
#include "job/knob_problem.hpp"

namespace oomplan {

/// "" where the framework has no version of its own.
struct Releases {
  std::string_view newest;  ///< what a job without a version means
  std::string_view oldest;  ///< the oldest one whose defaults the rows know
  std::string_view last;    ///< the last whose defaults were read: what comes later is answered as this one, with a warning
};

struct FrameworkRow {
  Framework framework;
  TrainingLoop loop;
  Releases releases = {};
  /// Where its loop depends on the engine: the one under this engine, of `loop`; nullptr: it does not.
  TrainingLoop (*loop_under)(const TrainingLoop&, EngineKind) = nullptr;
  std::vector<DefaultRow> (*defaults)() = nullptr;
  /// What it refuses of a trainer, or is not described of it; nullptr: nothing.
  std::vector<KnobProblem> (*problems)(const Role&) = nullptr;
  /// The order in which a step's passes run; nullptr: that of the roles.
  void (*order_passes)(Job&) = nullptr;
  /// The release of a server that comes along with one of its own; "" or nullptr: the newest that is known.
  std::string_view (*server_version)(std::string_view version, EngineKind) = nullptr;
  /// The fact (models/engines) that says how many GPUs a server without a layout takes for tensor parallelism; "": one.
  std::string_view tensor_fact = "";
  // What follows from what was written; nullptr: nothing.
  void (*derive_budget)(Derivation&, Role&) = nullptr;  ///< of a trainer's tokens
  void (*derive_role)(Derivation&, Role&) = nullptr;    ///< of a trainer that is not Megatron's
  void (*derive_model)(Derivation&, Role&) = nullptr;   ///< of a role, when its model is known
  /// How weights reach the servers, and what servers take over from the actor.
  void (*derive_update)(Derivation&, Role& rollout, Role& actor) = nullptr;
};

namespace areal {
FrameworkRow framework_row();
std::vector<DefaultRow> default_rows();
}  // namespace areal
namespace verl {
FrameworkRow framework_row();
std::vector<DefaultRow> default_rows();
}  // namespace verl
namespace agilerl {
FrameworkRow framework_row();
std::vector<DefaultRow> default_rows();
}  // namespace agilerl
namespace slime {
FrameworkRow framework_row();
std::vector<DefaultRow> default_rows();
}  // namespace slime
namespace relax {
FrameworkRow framework_row();
std::vector<DefaultRow> default_rows();
}  // namespace relax
namespace torch {
FrameworkRow framework_row();
std::vector<DefaultRow> default_rows();
}  // namespace torch

std::span<const FrameworkRow> framework_rows();
const FrameworkRow& row_of(Framework);
/// By the row of the job's framework.
void order_passes(Job&);

}  // namespace oomplan
