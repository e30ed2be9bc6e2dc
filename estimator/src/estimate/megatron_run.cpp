#include "estimate/megatron_run.hpp"

#include <algorithm>

#include <oomplan/units/errors.hpp>

#include "estimate/megatron_update.hpp"
#include "job/names.hpp"
#include "training/megatron.hpp"
#include "training/megatron_fsdp.hpp"

namespace oomplan {
namespace {

int compute_capability(const std::string& sm) { return sm.starts_with("sm") ? std::stoi(sm.substr(2)) : 0; }

/// pytorch/quantization.py: check_fp8_support, check_fp8_block_scaling_support, check_mxfp8_support (2.17.1).
struct Capabilities {
  int least = 89, below = 1000;
  const char* words = "none, or a GPU from Ada on";
  const char* why = "Transformer Engine itself refuses it: products in 8 bits need compute capability 8.9";
};
Capabilities needed_for(Fp8Recipe recipe) {
  if (recipe == Fp8Recipe::blockwise)
    return {90, 1000, "tensorwise, or a GPU from Hopper on", "Transformer Engine itself refuses it: compute capability 9.0"};
  if (recipe == Fp8Recipe::mxfp8)
    return {100, 120, "blockwise, or a Blackwell GPU of a data centre",
            "Transformer Engine itself refuses it: compute capability 10.0 to 11.0"};
  return {};
}

/// transformer_engine/common/transformer_engine.cpp (2.17.1): nvte_is_non_tn_fp8_gemm_supported
bool needs_transposes(int capability) { return capability < 100 || (capability >= 120 && capability < 130); }

/// transformer_engine/pytorch/cpp_extensions/gemm.py (2.9): get_cublas_workspace_size_bytes
void shrink_workspace(MegatronStage& stage, const Gpu& gpu) {
  constexpr Bytes kBefore = 4 * kMiB;
  if ((gpu.sm.starts_with("sm7") || gpu.sm.starts_with("sm8")) && stage.workspace > 0) stage.workspace = kBefore;
}

}  // namespace

Trainer megatron_on_gpu(const Role& role, const Gpu& gpu) {
  Trainer out = role.trainer;
  const int capability = compute_capability(gpu.sm);
  const Capabilities needed = needed_for(out.megatron.fp8);
  if (out.megatron.fp8 != Fp8Recipe::none && (capability < needed.least || capability >= needed.below))
    throw InputError(Problem{{"", 0, 0, role.name + ".fp8_recipe"},
                             std::string(spelling(out.megatron.fp8)) + " on " + gpu.name,
                             needed.words,
                             "",
                             needed.why});
  out.megatron.fp8_transposes = needs_transposes(capability);
  out.megatron.fp8_on_blackwell = capability >= 100;
  return out;
}

void resolve_megatron(RoleRun& run, const Job& job, const Catalog& catalog) {
  const Role& role = *run.role;
  run.plan.micro_batches = micro_batches_of(job, role.trainer);
  run.plan.trains = run.trains;
  run.megatron.clear();
  const MegatronUse use{.trains = run.trains,
                        .log_probs = job.kind == JobKind::rl || !run.trains,
                        .supervised = role.kind == RoleKind::trainer,
                        .critic = run.critic,
                        .sequence = job.prompt_tokens + job.response_tokens};
  const Gpu& gpu = catalog.gpu(job.cluster.gpu);
  const Trainer trainer = megatron_on_gpu(role, gpu);
  for (std::int64_t stage = 0; stage < trainer.layout.pipeline; ++stage) {
    run.megatron.push_back(make_megatron_stage(*role.architecture, trainer, stage, run.plan.micro_batches, use));
    shrink_workspace(run.megatron.back(), gpu);
  }
  resolve_saver(run, catalog);
}

namespace {

template <class Engine>
void play_two_steps(const MegatronStage& stage, TrainingFigures& out) {
  PeakRecorder r;
  Engine engine(r, stage, "");
  Bytes level = 0;
  Bytes* highest = &out.load;  // then of the second step; the first one has no states
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
}

}  // namespace

TrainingFigures megatron_figures(const TrainingCase& c) {
  MegatronStage stage =
      make_megatron_stage(*c.architecture, c.trainer, c.stage, c.micro_batches, {.critic = c.trainer.head == LossHead::value});
  if (c.gpu != nullptr) shrink_workspace(stage, *c.gpu);
  TrainingFigures out;
  out.parameters = stage.weights + stage.weights_in_8_bits;
  out.states = stage.masters + stage.states;
  if (stage.fsdp != nullptr)
    play_two_steps<MegatronFsdpEngine<PeakRecorder>>(stage, out);
  else
    play_two_steps<MegatronEngine<PeakRecorder>>(stage, out);
  out.peak = std::max({out.forward, out.backward, out.optimizer});
  return out;
}

}  // namespace oomplan
