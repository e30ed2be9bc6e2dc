// What Relax's loop does to its engines, and its row of slime's family.
#include "frontends/framework.hpp"

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "frontends/images.hpp"
#include "frontends/made_models.hpp"
#include "frontends/relax/guide.hpp"
#include "frontends/relax/launched.hpp"
#include "frontends/relax/loss.hpp"
#include "frontends/relax/meaning.hpp"
#include "frontends/relax/resource.hpp"
#include "frontends/relax/rules.hpp"
#include "frontends/slime/flags.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "job/placement.hpp"

namespace oomplan::relax {
namespace {

constexpr const char* kImages = "relax/utils/multimodal/image_utils.py";

std::vector<KnobProblem> problems(const Role& role) {
  std::vector<KnobProblem> out;
  const auto add = [&](const char* knob, std::string found, const char* expected, const char* why) {
    out.push_back({knob, std::move(found), expected, why});
  };
  const std::string engine(spelling(role.engine));
  if (role.serves()) return out;
  if (role.engine != EngineKind::megatron)
    add("engine", engine, "megatron", "Relax trains with Megatron alone");
  else if (role.kind == RoleKind::reference && !role.beside.empty())
    add("beside", role.beside, "nothing",
        "beside its servers Relax puts the weights of a reference into the actor's tensors: its pass is the actor's");
  else if (const MegatronLoss loss = role.trainer.megatron.loss;
           loss != MegatronLoss::slime_samples && loss != MegatronLoss::slime_sliced)
    add("cross_entropy", std::string(spelling(loss)), "slime_sliced, or slime_samples before 2026.08",
        "Relax has a loss of its own");
  return out;
}

/// SGLang of the image. 2026.09: docker/Dockerfile.cu13, de2b2b75, and docker/Dockerfile, 0cd7c4dd; 2026.08:
/// docker/patch/sglang/v0.5.15.post1.patch; before it docker/Dockerfile, 0.5.9.
std::string_view pinned_server(std::string_view version, EngineKind engine) {
  if (engine != EngineKind::sglang) return {};
  if (version_matches(version, ">=2026.09")) return "0.5.17";
  return version_matches(version, ">=2026.08") ? "0.5.15" : "0.5.9";
}

/// relax/backends/megatron/actor.py: init chooses the class by --colocate.
void derive_update(Derivation& d, Role& rollout, Role& actor) {
  constexpr const char* kWhere = "relax/backends/megatron/actor.py";
  if (anchor(d.job(), rollout) == anchor(d.job(), actor))
    d.derive("sync.by", "ipc", "Relax on shared GPUs hands weights over by CUDA IPC", kWhere);
  else
    d.derive("sync.by", "nccl", "servers on GPUs of their own get new weights over NCCL", kWhere);
  derive_bucket(d, actor.trainer, "update_weights_bucket_mib");
}

/// relax/utils/reloadable_process_group.py (redai-infra/Relax 6aac703e), around every collective
/// (_wrap_low_level_call).
Bytes emptied_below(const slime::SlimeText& t) { return t.own.on("enable_cuda_memory_check") ? 5 * kGiB : 0; }

/// relax/backends/megatron/actor.py, commit e38d4faa: _init makes the checkpoint engine's client for --fully-async, and
/// UpdateWeightFromTensor for --hybrid, whose servers on a machine of the actor map what it sends.
std::vector<slime::UpdateSetting> update(const slime::SlimeText& t) {
  if (t.own.on("hybrid")) return {{"sync.by", "ipc", "hybrid"}};
  if (t.own.on("fully_async")) return {{"sync.checkpoint_engine", "true", "fully_async"}};
  return {};
}

/// Megatron-Bridge's own settings, where the job has no others, and how large images are.
void derive_model(Derivation& d, Role& role) {
  if (role.serves() || role.engine != EngineKind::megatron || !made_by_bridge(role.trainer)) return;
  const std::string_view family = made_as(*role.architecture);
  derive_made_model(d, role, made_model(ModelMaker::megatron_bridge, family).value_or(MadeModel{}), "Relax's models are made so");
  const Tower& tower = role.architecture->tower;
  if (tower.kind.empty() || tower.patch == 0 || tower.merge == 0) return;
  if (role.trainer.vision.images > 0) return derive_image_size(d, role, kImages);
  if (role.kind == RoleKind::reference) return;
  const auto model = d.job().origins.find(key_of(role, "model"));
  d.note({Note::Level::info, model != d.job().origins.end() ? model->second.place : Place{},
          "samples are taken to be text: the tower does not run. --image-size says that they have images, and how large"});
}

/// relax/utils/training/ppo_utils.py: calculate_log_probs_and_entropy. Copies of the logits until redai-infra/Relax 0db3b6d3;
/// slime's present function in redai-studio/Relax 2854c256. Both go sample by sample (relax/backends/megatron/loss.py:
/// get_responses).
std::string_view loss(slime::Release release) { return release.since("2026.08") ? "slime_sliced" : "slime_samples"; }

const slime::FlagTable& flags() {
  static const slime::FlagTable table("frameworks/relax.json");
  return table;
}

/// Of states behind the table: redai-studio/Relax de2b2b75; scripts/training/dpo and reward_modeling of September 2026. The
/// reference of dpo takes the actor's place for a pass that keeps nothing (relax/backends/megatron/loss.py: dpo_loss_function;
/// docs/en/guide/dpo-training.md, 4108a8fd).
constexpr slime::NotYet kLater[] = {
    {"--sft-objective", "training of a reward model, which a later Relax has", "dpo"},
    {"--genrm-instances", "the generative reward models that it names", "*"},
    {"--opd-fkl-entropy-gate", "the forward divergence over the teacher's most likely tokens, and sampled tokens in advantages",
     "*"},
    {"--use-rollout-indexer-replay", "an indexer's choices that are replayed, which a later Relax has"},
    // relax/utils/mixture_lora.py, redai-infra/Relax 07d7905b: all experts' outputs of all tokens lie in one tensor
    {"--lora-num-experts", "mixtures of adapters, which a branch of Relax has", "1"},
};
/// Estimators of branches. Rewards and advantages are numbers of a sample or of a token. relax/algorithms/policy.py and
/// relax/backends/megatron/loss.py make the same log-probs of the same logits for all estimators.
constexpr slime::Branch kBranches[] = {
    {"advantage_estimator", "p3o", "--p3o-", "redai-infra/Relax a06f465d",
     "a pass in front of every step keeps nothing and needs less than the step; its loss is counted as that of grpo. Read, not "
     "executed"},
    {"advantage_estimator", "gdpo", "--gdpo-", "redai-infra/Relax 884aa1a7",
     "it normalizes each reward by itself, on no GPU; its loss is that of grpo"},
    {"advantage_estimator", "dr_grpo", "", "redai-infra/Relax 8addd562 and eb5a902e",
     "it divides the loss by another number; the rest is as with grpo"},
};
/// docs/en/guide/oom-troubleshooting.md, 02c394de.
constexpr std::string_view kTimers =
    "Relax's own names: train_log_probs is actor.log_probs, train_actor is actor.forward, backward and optimizer, update_weights "
    "is "
    "actor.send_weights";
/// Of the routers.
constexpr std::string_view kBeside[] = {"--router-", "--sglang-router-"};

}  // namespace

const slime::Family& family() {
  static const slime::Family relax{.framework = Framework::relax,
                                   .word = "relax",
                                   .name = "Relax",
                                   .code = "relax",
                                   .trainer = "relax/backends/megatron",
                                   .server = "relax/backends/sglang",
                                   .placement = "relax/core/controller.py: register_all_serve",
                                   .program = "relax/entrypoints/train.py",
                                   .flags = flags,
                                   .not_yet = not_yet(),
                                   .later = kLater,
                                   .branches = kBranches,
                                   .beside = kBeside,
                                   .second_servers = "--teacher-sglang-",
                                   .loss = loss,
                                   .timers = kTimers,
                                   .critics = true,
                                   .bridge_makes = true,
                                   .image_size = kImages,
                                   .reuses_log_probs = false,
                                   .log_prob_budget = true,
                                   .prepare = prepare,
                                   .share = share,
                                   .tell = tell,
                                   .emptied_below = emptied_below,
                                   .update = update,
                                   .learner = learner,
                                   .guide = guide_points,
                                   .guide_source = kGuide,
                                   .check = check};
  return relax;
}

// packs: relax/backends/megatron/data.py: get_data_iterator. moves_parameters: not, torch_memory_saver pauses the whole process
// (relax/backends/megatron/actor.py: sleep). pads_vocab: padded_vocab_size is Megatron's own rule
// (relax/backends/megatron/arguments.py: _set_default_megatron_args). Services start in the order of relax/core/registry.py, the
// actor first.
FrameworkRow framework_row() {
  return {.framework = Framework::relax,
          .loop = {.name = "Relax",
                   .of_framework = true,
                   .teachers_since = "2026.07",
                   .serves_rewards = true,
                   .serves_at_once = true,
                   .serves_stored = true,
                   .packs = true,
                   .facts = "relax",
                   .ipc = true,
                   .runs_megatron = true,
                   .says_loss = true,
                   .host_optimizer = true,
                   .pauses_whole = true,
                   .gathers_buckets = true,
                   .checkpoint_engine = true},
          .releases = {.newest = "2026.08", .oldest = "2026.05", .last = "2026.09"},
          .defaults = default_rows,
          .problems = problems,
          .server_version = pinned_server,
          .derive_model = derive_model,
          .derive_update = derive_update};
}

}  // namespace oomplan::relax
