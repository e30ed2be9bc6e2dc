// What slime's loop does to its engines, and what of a trainer is not described yet.
#include "frontends/framework.hpp"

#include <fmt/format.h>

#include "catalog/facts.hpp"
#include "frontends/slime/flags.hpp"
#include "frontends/slime/fsdp.hpp"
#include "frontends/slime/guide.hpp"
#include "frontends/slime/rules.hpp"
#include "job/names.hpp"
#include "job/placement.hpp"
#include "job/training_loop.hpp"

namespace oomplan::slime {
namespace {

constexpr std::string_view kFsdpFile = "slime/backends/fsdp_utils/actor.py";
constexpr std::string_view kFsdpReleases = ">=0.2.0,<0.2.3";

std::vector<KnobProblem> problems_of_fsdp(const Role& role) {
  std::vector<KnobProblem> out;
  const Trainer& t = role.trainer;
  if (!version_matches(t.framework_version, kFsdpReleases))
    out.push_back({"engine", "fsdp2", "megatron, or slime 0.2.0 to 0.2.2", "these releases alone have the FSDP backend"});
  if (role.kind != RoleKind::actor && role.kind != RoleKind::reference)
    out.push_back({"engine", "fsdp2", "an actor, and its reference", "slime's FSDP backend has no other roles"});
  if (t.head != LossHead::slime_fsdp)
    out.push_back({"head", std::string(spelling(t.head)), "slime_fsdp", "the FSDP backend has a loss of its own"});
  if (t.layout.tensor > 1 || t.layout.context > 1)
    out.push_back(
        {"layout", "split sequences or matrices", "data parallelism alone", "slime's FSDP backend shards parameters alone"});
  return out;
}

std::vector<KnobProblem> problems(const Role& role) {
  std::vector<KnobProblem> out;
  const auto add = [&](const char* knob, std::string found, const char* expected, const char* why) {
    out.push_back({knob, std::move(found), expected, why});
  };
  const std::string engine(spelling(role.engine));
  if (role.engine == EngineKind::fsdp2) return problems_of_fsdp(role);
  if (role.kind == RoleKind::reference)
    add("engine", engine, "no role ref",
        "slime puts the weights of its reference into the actor's tensors: its pass is the actor's (actor.log_probs)");
  else if (role.engine != EngineKind::megatron)
    add("engine", engine, "megatron", "not supported yet: slime's other engines");
  else if (const std::string_view loss = spelling(role.trainer.megatron.loss); !loss.starts_with("slime"))
    add("cross_entropy", std::string(loss), "slime, slime_whole, slime_samples or slime_divided", "slime has losses of its own");
  return out;
}

/// The critic's turn is before the actor's (train.py, 0.2.0 to 624b824a).
/// create_rollout_manager stands before create_training_models (train.py, train_async.py, 0.1.0 to 0.3.1). Weights of the
/// reference go first (slime/backends/megatron_utils/actor.py: train_actor).
void set_pass_order(Job& job) {
  job.servers_start_first = true;
  job.pass_order = {RoleKind::critic, RoleKind::reference, RoleKind::actor};
}

/// SGLang of docker/Dockerfile; of 0.2.1 and 0.2.2 a nightly of that release.
struct Pin {
  std::string_view versions, sglang;
};
constexpr Pin kPins[] = {{">=0.3.1", "0.5.15"},       {">=0.3.0,<0.3.1", "0.5.12"}, {">=0.2.3,<0.3.0", "0.5.9"},
                         {">=0.2.2,<0.2.3", "0.5.7"}, {">=0.2.1,<0.2.2", "0.5.6"},  {">=0.2.0,<0.2.1", "0.5.5"}};
std::string_view pinned_server(std::string_view version, EngineKind engine) {
  if (engine == EngineKind::sglang)
    for (const Pin& pin : kPins)
      if (version_matches(version, pin.versions)) return pin.sglang;
  return {};
}

TrainingLoop loop_under(const TrainingLoop& loop, EngineKind engine) {
  return engine == EngineKind::fsdp2 ? fsdp_loop(loop) : loop;
}

/// What slime's loop does depends on the backend.
void derive_role(Derivation& d, Role& role) {
  if (role.engine != EngineKind::fsdp2) return;
  role.trainer.loop = training_loop(role.trainer.framework, role.engine);
  for (const auto& [knob, value] : fsdp_defaults(role, role.trainer.framework_version))
    d.derive(key_of(role, knob), value, "slime's FSDP backend does so", std::string(kFsdpFile));
}

/// slime/backends/megatron_utils/actor.py: init chooses the class by --colocate.
void derive_update(Derivation& d, Role& rollout, Role& actor) {
  constexpr const char* kWhere = "slime/backends/megatron_utils/actor.py";
  if (anchor(d.job(), rollout) == anchor(d.job(), actor))
    d.derive("sync.by", "ipc", "slime on shared GPUs hands weights over by CUDA IPC", kWhere);
  else
    d.derive("sync.by", "nccl", "servers on GPUs of their own get new weights over NCCL", kWhere);
  derive_bucket(d, actor.trainer, "update_weights_bucket_mib");
}

/// sglang_router's: one process without a GPU.
constexpr std::string_view kBeside[] = {"--router-"};

const FlagTable& flags() {
  static const FlagTable table("frameworks/slime.json");
  return table;
}

/// slime/utils/reloadable_process_group.py: _wrap_low_level_call.
Bytes emptied_below(const SlimeText& t) {
  if (t.release.since("0.2.4")) return 3 * kGiB;
  return t.release.since("0.2.3") ? 5 * kGiB : 0;
}

}  // namespace

const Family& family() {
  static const Family slime{.framework = Framework::slime,
                            .word = "slime",
                            .name = "slime",
                            .code = "slime",
                            .trainer = "slime/backends/megatron_utils",
                            .server = "slime/backends/sglang_utils",
                            .placement = "slime/ray/placement_group.py",
                            .program = "train.py or train_async.py",
                            .flags = flags,
                            .not_yet = not_yet(),
                            .beside = kBeside,
                            .critics = true,
                            .own_layers = true,
                            .emptied_below = emptied_below,
                            .guide = guide_points,
                            .guide_source = kGuide};
  return slime;
}

// serves_stored: slime/backends/megatron_utils/megatron_to_hf/processors, since 0.1.0.
// packs: slime/utils/dp_schedule.py (a sample longer than the budget goes alone). moves_parameters: not, torch_memory_saver
// pauses the whole process (slime/backends/megatron_utils/actor.py: sleep). pads_vocab: padded_vocab_size is Megatron's own rule
// (slime/backends/megatron_utils/arguments.py: _set_default_megatron_args).
FrameworkRow framework_row() {
  return {.framework = Framework::slime,
          .loop = {.name = "slime",
                   .of_framework = true,
                   .serves_stored = true,
                   .packs = true,
                   .facts = "slime",
                   .ipc = true,
                   .runs_megatron = true,
                   .says_loss = true,
                   .host_optimizer = true,
                   .pauses_whole = true,
                   .gathers_buckets = true},
          .releases = {.newest = "0.3.1", .oldest = "0.1.0", .last = "0.4.0"},
          .loop_under = loop_under,
          .defaults = default_rows,
          .problems = problems,
          .order_passes = set_pass_order,
          .server_version = pinned_server,
          .derive_role = derive_role,
          .derive_update = derive_update};
}

}  // namespace oomplan::slime
