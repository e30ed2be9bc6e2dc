#include "frontends/slime/fsdp.hpp"

#include <algorithm>
#include <array>
#include <ranges>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "catalog/facts.hpp"
#include "frontends/slime/flags.hpp"

namespace oomplan::slime {
namespace {

/// Those of Megatron's names, such as --lr, are in its table.
constexpr std::array<FsdpFlag, 17> kFlags{{{"--attn-implementation", "attn_implementation"},
                                           {"--gradient-checkpointing", "gradient_checkpointing", true},
                                           {"--fsdp-cpu-offload", "fsdp_cpu_offload", true},
                                           {"--fsdp-cpu-backend", "fsdp_cpu_backend"},
                                           {"--fsdp-state-dict-cpu-offload", "fsdp_state_dict_cpu_offload", true},
                                           {"--warmup-ratio", "warmup_ratio"},
                                           {"--wandb-run-name", "wandb_run_name"},
                                           {"--config", "config"},
                                           {"--record-memory-history", "record_memory_history", true},
                                           {"--memory-snapshot-path", "memory_snapshot_path"},
                                           {"--use-pytorch-profiler", "use_pytorch_profiler", true},
                                           {"--profile-step-start", "profile_step_start"},
                                           {"--profile-step-end", "profile_step_end"},
                                           {"--tensorboard-dir", "tensorboard_dir"},
                                           {"--lr-warmup-init", "lr_warmup_init"},
                                           {"--use-checkpoint-lr-scheduler", "use_checkpoint_lr_scheduler", true},
                                           {"--override-lr-scheduler", "override_lr_scheduler", true}}};
/// Of FSDPArgs, by the names that Megatron has, too.
constexpr std::array<std::string_view, 24> kShared{"--optimizer",
                                                   "--lr",
                                                   "--lr-decay-style",
                                                   "--weight-decay",
                                                   "--adam-beta1",
                                                   "--adam-beta2",
                                                   "--adam-eps",
                                                   "--fp16",
                                                   "--deterministic-mode",
                                                   "--wandb-project",
                                                   "--min-lr",
                                                   "--lr-decay-iters",
                                                   "--lr-warmup-iters",
                                                   "--lr-warmup-fraction",
                                                   "--lr-wsd-decay-iters",
                                                   "--lr-wsd-decay-style",
                                                   "--lr-warmup-init",
                                                   "--tensorboard-dir",
                                                   "--profile-step-start",
                                                   "--profile-step-end",
                                                   "--use-pytorch-profiler",
                                                   "--record-memory-history",
                                                   "--memory-snapshot-path",
                                                   "--override-opt-param-scheduler"};

constexpr std::string_view kActor = "slime/backends/fsdp_utils/actor.py";
constexpr std::string_view kRing = "--context-parallel-size";

struct Attention {
  std::string_view name, kernels;
};
constexpr std::array<Attention, 4> kAttention{
    {{"flash_attention_2", "hf_flash"}, {"flash_attention_3", "hf_flash"}, {"sdpa", "hf_sdpa"}, {"eager", "hf_eager"}}};
std::string attention_of(const SlimeText& t) {
  const std::string said = t.own.text("attn_implementation");
  return said.empty() ? "flash_attention_2" : said;
}

void refuse(SlimeText& t, const std::string& flag, std::string found, std::string expected, std::string_view what) {
  t.told.add(flag, std::move(found), std::move(expected), fmt::format("not supported yet: {}", what));
  t.told.problems.back().kind = ProblemKind::not_supported;
}

}  // namespace

bool by_fsdp(const SlimeText& t) { return t.family->framework == Framework::slime && t.own.text("train_backend") == "fsdp"; }

const FsdpFlag* fsdp_flag(std::string_view written) {
  const auto row = std::find_if(kFlags.begin(), kFlags.end(), [&](const FsdpFlag& f) { return f.flag == written; });
  return row == kFlags.end() ? nullptr : &*row;
}

std::string_view fsdp_flag_of(std::string_view knob) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSaid{
      {{"tokens_per_micro_batch", "--max-tokens-per-gpu"},
       {"recompute", "--gradient-checkpointing"},
       {"cpu_offload_policy", "--fsdp-cpu-offload"},
       {"kernels", "--attn-implementation"}}};
  for (const auto& [name, flag] : kSaid)
    if (name == knob) return flag;
  return {};
}

bool fsdp_knows(Release release, const std::string& flag) {
  if (find_flag(release, flag) != nullptr || fsdp_flag(flag) != nullptr || flag.starts_with("--sglang-")) return true;
  if (flag == kRing) return !release.since("0.2.2");
  return std::find(kShared.begin(), kShared.end(), flag) != kShared.end();
}

std::string fsdp_in_full(Release release, const std::string& flag) {
  if (fsdp_knows(release, flag) || flag.size() < 4) return flag;
  std::vector<std::string> all = spellings(release);
  for (const FsdpFlag& f : kFlags) all.emplace_back(f.flag);
  all.insert(all.end(), kShared.begin(), kShared.end());
  std::erase_if(all, [&](const std::string& other) { return !other.starts_with(flag); });
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all.size() == 1 ? all.front() : flag;
}

// moves_parameters, wakes_at_once: actor.py: sleep, wake_up (model.cpu(), move_torch_optimizer); the saver is loaded for Megatron
// alone (slime/ray/actor_group.py). flat_buckets, sends_asleep: update_weight_utils.py.
TrainingLoop fsdp_loop(const TrainingLoop& of_megatron) {
  TrainingLoop out = of_megatron;
  out.moves_parameters = out.wakes_at_once = out.sends_asleep = out.flat_buckets = true;
  out.gathers_buckets = out.pauses_whole = out.host_optimizer = out.says_loss = false;
  return out;
}

// transformers: that of SGLang 0.5.5 to 0.5.7, which the images have. precision.storage: from_pretrained() without a format.
// root_reshard, reshard_after_forward: fully_shard's own, which leaves the root gathered. clip: --clip-grad has a default.
std::vector<std::pair<std::string_view, std::string>> fsdp_defaults(const Role& role, std::string_view version) {
  std::vector<std::pair<std::string_view, std::string>> out{{"head", "slime_fsdp"},
                                                            {"kernels", "hf_flash"},
                                                            {"transformers", "4.57.1"},
                                                            {"precision.storage", "fp32"},
                                                            {"precision.compute", "bf16"},
                                                            {"precision.reduce", "fp32"},
                                                            {"autocast", "false"},
                                                            {"reshard_after_forward", "true"},
                                                            {"root_reshard", "false"},
                                                            {"wrap_embedding", "true"},
                                                            {"wrap_head", "false"},
                                                            {"recompute", "none"},
                                                            {"reentrant", "true"},
                                                            {"optimizer", "adamw"},
                                                            {"optimizer_form", "foreach"},
                                                            {"clip", "true"},
                                                            {"gradient_sync_every_micro_batch", "true"}};
  if (role.kind == RoleKind::reference) {
    const bool policy = compare_versions(version, "0.2.1") >= 0;
    out.insert(
        out.end(),
        {{"in_process", "true"}, {"cpu_offload_policy", policy ? "true" : "false"}, {"offload", policy ? "[]" : "[parameters]"}});
  }
  return out;
}

bool stays_on_host(const SlimeText& t) { return t.own.on("fsdp_cpu_offload"); }

void check_fsdp(SlimeText& t, const SlimeMeaning& m) {
  const Own& o = t.own;
  const auto wrong = [&](const std::string& flag, std::string found, std::string expected, std::string why) {
    t.told.add(flag, std::move(found), std::move(expected), std::move(why));
  };
  if (!t.strangers.empty()) {
    const auto first = t.strangers | std::views::take(3);
    std::string found = fmt::format("{}", fmt::join(first, ", "));
    if (t.strangers.size() > 3) found += fmt::format(", {} more", t.strangers.size() - 3);
    wrong(t.strangers.front(), std::move(found), "flags of slime and of its FSDP backend",
          "slime itself refuses them: this backend's parser passes over nothing, and has none of Megatron's flags");
  }
  if (const std::string name = o.text("advantage_estimator"); !m.supervised && name != "grpo" && name != "gspo")
    wrong(o.place("advantage_estimator"), fmt::format("'{}'", name), "grpo or gspo",
          fmt::format("slime itself has no others under FSDP ({}: _train_core)", kActor));
  if (const std::string name = t.megatron.text("optimizer"); !name.empty() && name != "adam")
    wrong(t.megatron.place("optimizer"), fmt::format("'{}'", name), "adam", "slime itself has no other under FSDP");
  if (t.megatron.on("calculate_per_token_loss") && !t.release.since("0.2.2"))
    wrong("--calculate-per-token-loss", "the flag", "nothing", "slime itself refuses it under FSDP before 0.2.2");
  if (m.reference && m.trains && !o.has("ref_load"))
    wrong("--ref-load", "nothing", "a folder with the reference's checkpoint",
          "slime itself asks for it: --use-kl-loss or --kl-coef");
  if (m.global_batch > 0 && m.global_batch % m.actor_gpus != 0)
    wrong("--global-batch-size", fmt::format("{}", m.global_batch), fmt::format("a multiple of the {} GPUs", m.actor_gpus),
          fmt::format("slime itself asks for it ({}: _packed_data)", kActor));
}

void fsdp_not_yet(SlimeText& t, const SlimeMeaning& m) {
  const Own& o = t.own;
  if (m.supervised)
    refuse(t, o.place("loss_type"), fmt::format("'{}'", o.text("loss_type")), "policy_loss",
           "slime's FSDP backend with another loss: its trainer reads none but the policy's");
  if (o.on("true_on_policy_mode"))
    refuse(t, o.place("true_on_policy_mode"), "the flag", "nothing", "SGLang's batch-invariant operators in the trainer");
  if (t.megatron.whole_or("context_parallel_size", 1) > 1)
    refuse(t, std::string(kRing), fmt::format("{}", t.megatron.whole_or("context_parallel_size", 1)), "1",
           "ring attention of slime's FSDP backend");
  const std::string attention = attention_of(t);
  if (std::none_of(kAttention.begin(), kAttention.end(), [&](const Attention& row) { return row.name == attention; }))
    refuse(t, "--attn-implementation", fmt::format("'{}'", attention), "flash_attention_2, flash_attention_3, sdpa or eager",
           "other implementations of attention");
}

void check_fsdp_model(SlimeText& t, const Architecture& model, const std::string& name) {
  const std::string flag = t.own.place("hf_checkpoint");
  if (!model.tower.kind.empty())
    return refuse(t, flag, name, "a model of text alone", "a model with a vision tower under slime's FSDP backend");
  if (!model.quantization.method.empty())
    return refuse(t, flag, name, "a checkpoint in 16 bits", "a quantised checkpoint under slime's FSDP backend");
  const bool plain = std::ranges::all_of(model.runs, [](const LayerRun& run) {
    return run.layer.feed_forward.kind != FeedForwardKind::moe && run.layer.mixer.kind != MixerKind::gated_delta;
  });
  if (!plain)
    refuse(t, flag, name, "a dense model without linear attention",
           "experts and linear attention under slime's FSDP backend, which has kernels of its own for them");
}

std::vector<Setting> fsdp_settings(const SlimeText& t, const SlimeMeaning& m, const std::string& role) {
  std::vector<Setting> out;
  const auto put = [&](std::string_view knob, std::string value, std::string_view flag, bool given) {
    Origin origin{given ? Origin::Kind::file : Origin::Kind::derived,
                  {t.told.file, 0, 0, std::string(flag)},
                  given ? "" : "slime's code",
                  given ? "" : std::string(kActor)};
    out.push_back({fmt::format("{}.{}", role, knob), std::move(value), std::move(origin)});
  };
  put("engine", "fsdp2", "--train-backend", true);
  if (role == "ref") {
    put("beside", "actor", "--train-backend", false);
    return out;
  }
  const std::string attention = attention_of(t);
  const auto kernels = std::ranges::find_if(kAttention, [&](const Attention& row) { return row.name == attention; });
  put("layout", fmt::format("d{}", m.actor_gpus), "--actor-num-gpus-per-node", true);
  put("kernels", std::string(kernels == kAttention.end() ? "hf_flash" : kernels->kernels), "--attn-implementation",
      t.own.given("attn_implementation"));
  if (t.megatron.on("fp16")) put("precision.compute", "fp16", "--fp16", true);
  const bool again = t.own.on("gradient_checkpointing"), host = stays_on_host(t);
  put("recompute", again ? "full" : "none", "--gradient-checkpointing", again);
  put("cpu_offload_policy", host ? "true" : "false", "--fsdp-cpu-offload", host);
  put("offload", m.offload_train && !host ? "[parameters, optimizer]" : "[]", "--colocate", m.offload_train);
  return out;
}

}  // namespace oomplan::slime
