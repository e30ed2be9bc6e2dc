#include "job/validate_recompute.hpp"

#include <fmt/format.h>

#include "catalog/facts.hpp"
#include "job/kernel_sets.hpp"

namespace oomplan {
namespace {

/// The first release whose activation_checkpointing_enable was read to have every_n_layers and offload.
bool too_old(const Trainer& t) { return !t.transformers_version.empty() && compare_versions(t.transformers_version, "5.0") < 0; }

std::string why_not_spaced(const Trainer& t) {
  if (t.recompute != Recompute::full) return "it spaces out the checkpoints of recompute: full";
  if (t.compile) return "not supported yet: torch.compile of blocks of which some are checkpointed";
  if (t.kernels == Kernels::archon) return {};
  if (t.loop.of_framework) return "the RL frameworks checkpoint every layer";
  if (!of_transformers(t.kernels) && t.kernels != Kernels::torchtitan) return "LitGPT checkpoints every block";
  if (of_transformers(t.kernels) && too_old(t)) return "that release of transformers checkpoints every layer";
  return {};
}

std::string why_not_on_the_host(const Trainer& t) {
  if (t.recompute != Recompute::full) return "without checkpoints (recompute: full) there is no input that waits";
  if (t.loop.offloads_activations) return fmt::format("{} has offload_activations: verl", t.loop.name);
  if (t.loop.of_framework) return "not supported yet: offload of activations under an RL framework";
  if (!of_transformers(t.kernels)) return "it is transformers' (offload) and ArcticTraining's";
  if (too_old(t)) return "that release of transformers has no offload of checkpoints";
  return {};
}

}  // namespace

std::vector<KnobProblem> recompute_problems(const Trainer& t, EngineKind engine) {
  std::vector<KnobProblem> out;
  if (t.recompute_every > 1)
    if (std::string why = why_not_spaced(t); !why.empty())
      out.push_back({"recompute_every", fmt::format("{}", t.recompute_every), "1", std::move(why)});
  if (t.offload_checkpoints && engine != EngineKind::deepspeed)  // whose own are judged with its other settings
    if (std::string why = why_not_on_the_host(t); !why.empty())
      out.push_back({"offload_checkpoints", "true", "false", std::move(why)});
  return out;
}

}  // namespace oomplan
