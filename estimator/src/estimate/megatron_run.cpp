#include "estimate/megatron_run.hpp"

#include <algorithm>

#include "training/megatron.hpp"

namespace oomplan {

void resolve_megatron(RoleRun& run, const Job& job, const Catalog& catalog) {
  const Role& role = *run.role;
  run.plan.micro_batches = micro_batches_of(job, role.trainer);
  run.plan.trains = true;
  run.megatron.clear();
  // transformer_engine/pytorch/cpp_extensions/gemm.py (2.9): get_cublas_workspace_size_bytes
  const std::string& sm = catalog.gpu(job.cluster.gpu).sm;
  const bool before_hopper = sm.starts_with("sm7") || sm.starts_with("sm8");
  constexpr Bytes kBefore = 4 * kMiB;
  for (std::int64_t stage = 0; stage < role.trainer.layout.pipeline; ++stage) {
    run.megatron.push_back(make_megatron_stage(*role.architecture, role.trainer, stage, run.plan.micro_batches));
    if (before_hopper) run.megatron.back().workspace = kBefore;
  }
}

TrainingFigures megatron_figures(const TrainingCase& c) {
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, c.stage, c.micro_batches);
  TrainingFigures out;
  out.parameters = stage.weights;
  out.states = stage.masters + stage.states;
  PeakRecorder r;
  MegatronEngine<PeakRecorder> engine(r, stage, "");
  Bytes level = 0;
  Bytes* highest = nullptr;  // of the second step; the first one has no states
  const auto cut = [&](Bytes* next) {
    if (highest != nullptr) *highest = std::max(*highest, level + r.span().peak);
    level += r.span().net;
    r = PeakRecorder();
    highest = next;
  };
  const std::int64_t played = played_micro_batches(stage.micro_batches, stage.stages, std::ssize(stage.chunks), stage.group);
  engine.load();
  for (const bool second : {false, true}) {
    engine.passes(played, [&](bool backward) { cut(!second ? nullptr : backward ? &out.backward : &out.forward); });
    cut(second ? &out.optimizer : nullptr);
    engine.optimizer_step();
  }
  cut(nullptr);
  out.optimizer = std::max(out.optimizer, level);
  out.peak = std::max({out.forward, out.backward, out.optimizer});
  return out;
}

}  // namespace oomplan
