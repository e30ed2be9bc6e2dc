#include "job/follow.hpp"

#include <algorithm>

#include "job/knobs.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

std::string_view knob_of(std::string_view key) { return key.substr(key.find('.') + 1); }
std::string key_of(const Role& role, std::string_view knob) { return role.name + "." + std::string(knob); }

/// Values of one role that are computed from others of the same role.
void follow_within(Job& job, Role& role, std::string_view knob, std::int64_t context_before) {
  Trainer& t = role.trainer;
  const std::string budget = key_of(role, "tokens_per_micro_batch");
  const bool padded = t.sequences_per_micro_batch > 0 && t.sequence_tokens > 0;
  if (!written(job, budget)) {
    // such a default counts the tokens of one GPU; a budget that was taken over from the actor is one of a whole rank
    const auto origin = job.origins.find(budget);
    const bool taken_over = origin != job.origins.end() && origin->second.rule == Origin::Rule::like_the_actor;
    if (knob == "layout" && t.loop.budget_by_gpu && !padded && !taken_over)
      t.tokens_per_micro_batch = t.tokens_per_micro_batch / context_before * t.layout.context;
    if (padded && (knob == "sequences_per_micro_batch" || knob == "sequence_tokens"))
      t.tokens_per_micro_batch = t.sequences_per_micro_batch * t.sequence_tokens;
  }
  if (t.loop.of_framework || t.kernels == Kernels::torchtitan) return;
  const auto told = [&](std::string_view of) {
    const auto origin = job.origins.find(key_of(role, of));
    return written(job, key_of(role, of)) || (origin != job.origins.end() && origin->second.rule == Origin::Rule::like_the_actor);
  };
  if (knob == "precision.storage" && !told("precision.compute")) t.compute = t.storage;
  if (knob == "precision.compute" && !told("precision.cast_parameters")) t.cast_parameters = true;
  if (knob == "precision.reduce" && !told("precision.cast_gradients")) t.cast_gradients = true;
  if ((knob == "precision.storage" || knob == "precision.compute") && !told("precision.reduce")) t.reduce = t.compute;
}

}  // namespace

const std::vector<std::string_view>& knobs_like_the_actor() {
  static const std::vector<std::string_view> knobs{"layout",
                                                   "kernels",
                                                   "experts",
                                                   "linear_attention",
                                                   "liger",
                                                   "liger_version",
                                                   "foak",
                                                   "precision.storage",
                                                   "precision.compute",
                                                   "precision.reduce",
                                                   "precision.cast_parameters",
                                                   "precision.cast_gradients",
                                                   "precision.cast_inputs",
                                                   "precision.output",
                                                   "precision.autocast",
                                                   "autocast",
                                                   "recompute",
                                                   "reentrant",
                                                   "recompute_every",
                                                   "optimizer",
                                                   "optimizer_form",
                                                   "optimizer_rank",
                                                   "amsgrad",
                                                   "weight_decay",
                                                   "nesterov",
                                                   "clip",
                                                   "reshard_after_forward",
                                                   "root_reshard",
                                                   "reshard_ranks",
                                                   "forward_prefetch",
                                                   "backward_prefetch",
                                                   "limit_all_gathers",
                                                   "use_orig_params",
                                                   "wrap_embedding",
                                                   "wrap_head",
                                                   "wrap_norm",
                                                   "reshard_last",
                                                   "rms_norm",
                                                   "repeat_kv",
                                                   "compile",
                                                   "float8",
                                                   "float8_all_gather",
                                                   "tokens_per_micro_batch",
                                                   "logprob_tokens_per_micro_batch",
                                                   "sequences_per_micro_batch",
                                                   "sequence_tokens",
                                                   "gradient_sync_every_micro_batch",
                                                   "gradient_as_bucket_view",
                                                   "bucket_cap_mb",
                                                   "static_graph",
                                                   "find_unused_parameters",
                                                   "replicas",
                                                   "memory_efficient_load"};
  return knobs;
}

bool written(const Job& job, std::string_view key) {
  const auto it = job.origins.find(std::string(key));
  return it != job.origins.end() && (it->second.kind == Origin::Kind::file || it->second.kind == Origin::Kind::override_);
}

std::vector<std::string> followers(const Job& job, std::string_view key) {
  std::vector<std::string> out;
  const Role* actor = job.role("actor");
  const auto& like = knobs_like_the_actor();
  if (actor == nullptr || !key.starts_with("actor.") || std::find(like.begin(), like.end(), knob_of(key)) == like.end())
    return out;
  for (const auto& role : job.roles) {
    if ((role.kind != RoleKind::reference && role.kind != RoleKind::critic) || role.engine != actor->engine) continue;
    std::string theirs = key_of(role, knob_of(key));
    if (!written(job, theirs) && find_knob(job, theirs).knob != nullptr) out.push_back(std::move(theirs));
  }
  return out;
}

void set_as_read(Job& job, std::string_view key, std::string_view text) {
  const KnobAt at = find_knob(job, key);
  const auto change = [&](std::string_view which) {
    Role* role = job.role(which.substr(0, which.find('.')));
    const std::int64_t context = role == nullptr ? 1 : role->trainer.layout.context;
    set(job, which, text);
    if (role != nullptr && !role->serves()) follow_within(job, *role, knob_of(which), context);
  };
  const auto others = at.knob == nullptr ? std::vector<std::string>{} : followers(job, key);
  change(key);
  for (const auto& other : others) {
    change(other);
    job.origins[other] = {Origin::Kind::derived, {{}, 0, 0, other}, std::string(kLikeTheActor), {}, Origin::Rule::like_the_actor};
  }
}

}  // namespace oomplan
