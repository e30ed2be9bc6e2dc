#include "job/validate_vision.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "job/limits.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "job/vision_pass.hpp"
#include "layout/letters.hpp"

namespace oomplan {
namespace {

/// Names that reach no feed-forward block, so that peft leaves the experts as they are.
bool of_attention_alone(const std::vector<std::string>& targets) {
  constexpr std::array<std::string_view, 4> kAttention{"q_proj", "k_proj", "v_proj", "o_proj"};
  return !targets.empty() && std::all_of(targets.begin(), targets.end(), [&](const std::string& target) {
    return std::find(kAttention.begin(), kAttention.end(), target) != kAttention.end();
  });
}

class VisionObjections {
 public:
  explicit VisionObjections(const Role& role) : role_(role), t_(role.trainer) {}

  std::vector<KnobProblem> run() {
    if (role_.engine == EngineKind::megatron) return run_under_megatron();
    check_engine();
    check_kernels();
    check_pass();
    check_images();
    return std::move(out_);
  }

 private:
  void add(std::string_view knob, std::string found, std::string expected, std::string why) {
    out_.push_back({std::string(knob), std::move(found), std::move(expected), std::move(why)});
  }

  /// Its layers say what of the tower is described.
  std::vector<KnobProblem> run_under_megatron() {
    // Relax's critic is the whole model with another output layer (relax/utils/training/ppo_utils.py)
    if ((role_.kind == RoleKind::critic || role_.kind == RoleKind::reward) && !made_by_bridge(t_))
      add("model", role_.model, "a model without a tower", "not supported yet: values of a model with a vision tower");
    check_features();
    check_images();
    return std::move(out_);
  }
  /// Megatron-Bridge hands features of inner blocks to layers past their checkpoints' arguments: the backward pass of a layer
  /// that is computed again then goes through a block that is not, and frees it before its turn.
  void check_features() {
    const Megatron& m = t_.megatron;
    if (role_.architecture == nullptr || role_.architecture->tower.deepstack_blocks.empty()) return;
    const auto& blocks = role_.architecture->tower.deepstack_blocks;
    bool some = false;  // layer i of the language model gets what the i-th of them gives
    for (std::size_t i = 0; i < blocks.size(); ++i)
      some = some || (static_cast<std::int64_t>(i) < m.recompute_layers && blocks[i] >= m.recompute_layers);
    some = some && t_.recompute == Recompute::full && m.recompute_method == RecomputeMethod::block;
    if (some && m.maker == ModelMaker::megatron_bridge && t_.vision.images > 0)
      add("recompute_layers", fmt::format("{}", m.recompute_layers),
          "recompute_method: uniform, or as many as take in those blocks",
          "not supported yet: layers that are computed again, with features of a tower's blocks that are not");
  }

  void check_engine() {
    const EngineKind e = role_.engine;
    const bool flat = e == EngineKind::fsdp1 && (t_.loop.joins_images_itself || !t_.loop.of_framework) &&
                      (role_.architecture == nullptr || is_qwen_tower(role_.architecture->tower));
    if (e != EngineKind::single && e != EngineKind::ddp && e != EngineKind::fsdp2 && !flat)
      add("engine", fmt::format("'{}'", spelling(e)), "single, ddp or fsdp2",
          "not supported yet: this vision tower under this engine");
    if (e == EngineKind::fsdp1 && flat && !t_.loop.joins_images_itself && !t_.use_orig_params)
      add("use_orig_params", "false", "true",
          "the tower has no parameters of its own then, and transformers asks it for their format (modeling_utils.py, dtype, "
          "5.24)");
    // a trained last block gets no gradient, which DistributedDataParallel refuses by itself
    const bool clip = role_.architecture != nullptr &&
                      (role_.architecture->tower.kind == "clip" || role_.architecture->tower.kind == "pixtral");
    if (clip && e != EngineKind::single)
      add("engine", fmt::format("'{}'", spelling(e)), "single",
          "not supported yet: CLIP's or Pixtral's tower on several devices");
    const bool sharded = e == EngineKind::fsdp2 || (e == EngineKind::fsdp1 && t_.loop.joins_images_itself);
    if (t_.loop.of_framework && (!t_.loop.has_towers || !sharded))
      add("framework", fmt::format("'{}'", spelling(t_.framework)), "torch, areal with engine fsdp2, verl with fsdp1 or fsdp2",
          "not supported yet: a vision tower in this framework");
    const bool values = role_.kind == RoleKind::critic || role_.kind == RoleKind::reward || t_.head == LossHead::reward_pairs;
    const bool areal = t_.loop.has_towers && !t_.loop.joins_images_itself;
    if (values && t_.vision.images == 0)
      add("model", role_.model, "a model without a tower", "not supported yet: values of a model with a vision tower");
    else if (values)
      add("vision.images", fmt::format("{}", t_.vision.images), "none",
          areal ? "AReaL makes a language model with its output layer of every vision model, and its "
                  "loss stops at values that are none"
                : "not supported yet: values of a model with a vision tower");
    if (t_.layout.tensor > 1 || (t_.layout.context > 1 && !t_.loop.joins_images_itself))
      add("layout", fmt::format("'{}'", letters(t_.layout)), "a layout of data parallelism alone",
          "not supported yet: a vision tower whose language model is split");
  }

  void check_kernels() {
    if (t_.kernels != Kernels::hf_flash && t_.kernels != Kernels::hf_sdpa && t_.kernels != Kernels::hf_eager)
      add("kernels", fmt::format("'{}'", spelling(t_.kernels)), "hf_flash, hf_sdpa or hf_eager",
          "not supported yet: a vision tower of these kernels");
    if (t_.liger.rope || t_.liger.rms_norm || t_.liger.swiglu)
      add("liger", "Liger's modules", "[]", "not supported yet: Liger beside a vision tower");
    if (!t_.transformers_version.empty() && compare_versions(t_.transformers_version, "5.5") < 0)
      add("transformers", fmt::format("'{}'", t_.transformers_version), "5.5 or later",
          "not supported yet: towers of older releases of transformers");
  }

  /// fla.ops.cp, of packed rows (verl/models/transformers/qwen3_5.py, 0.9 and 0.10). Layers of Qwen3-Next, which has no tower,
  /// are not told of other ranks.
  void check_states() {
    if (role_.architecture == nullptr || role_.architecture->tower.kind.empty() || !t_.loop.joins_images_itself ||
        t_.layout.context == 1)
      return;
    if (t_.linear_attention != LinearAttention::torch && t_.sequences_per_micro_batch == 0) return;
    const auto& runs = role_.architecture->runs;
    if (std::any_of(runs.begin(), runs.end(), [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; }))
      add("layout", fmt::format("'{}'", letters(t_.layout)), "a layout without c",
          "Ulysses of linear attention asks for flash-linear-attention, which verl does not install: linear_attention says that "
          "it is there");
  }

  void check_pass() {
    check_states();
    const bool described =
        role_.architecture != nullptr && is_qwen_tower(role_.architecture->tower) && t_.loop.joins_images_itself;
    if (t_.autocast && !described) add("autocast", "true", "false", "not supported yet: autocast of a vision tower");
    if (t_.lora.rank > 0) check_adapters();
    if (t_.recompute_every > 1)
      add("recompute_every", fmt::format("{}", t_.recompute_every), "1",
          "not supported yet: checkpoints of some layers beside a vision tower");
    if (t_.offload_checkpoints)
      add("offload_checkpoints", "true", "false", "not supported yet: checkpoints on the host beside a vision tower");
    if (t_.offload_activations != OffloadActivations::none && t_.vision.images == 0)  // else told of offload_activations
      add("offload_activations", fmt::format("'{}'", spelling(t_.offload_activations)), "none",
          "not supported yet: offload of activations beside a vision tower");
    if (t_.reference != ReferencePass::none)
      add("reference", fmt::format("'{}'", spelling(t_.reference)), "none", "not supported yet: preference losses with images");
  }

  void check_adapters() {
    const Lora& lora = t_.lora;
    if (lora.kind != AdapterKind::lora)
      add("lora.kind", fmt::format("'{}'", spelling(lora.kind)), "lora",
          "not supported yet: these adapters beside a vision tower");
    if (lora.dora) add("lora.dora", "true", "false", "not supported yet: DoRA beside a vision tower");
    if (lora.base.format != BaseFormat::full)
      add("lora.base", fmt::format("'{}'", spelling(lora.base.format)), "full",
          "not supported yet: a packed base beside a vision tower");
    if (t_.vision.train != TowerTraining::none)
      add("vision.train", fmt::format("'{}'", spelling(t_.vision.train)), "none", "peft freezes all but the adapters");
    for (const std::string& target : lora.targets)
      if (target == "proj" || target == "patch_embedding")
        add("lora.targets", fmt::format("'{}'", target), "names of linear layers alone",
            "not supported yet: adapters of the patch embedding, whose convolution has this name too");
    const auto routed = [](const LayerRun& run) { return run.layer.feed_forward.kind == FeedForwardKind::moe; };
    if (role_.architecture == nullptr) return;
    const auto& runs = role_.architecture->runs;
    if (std::any_of(runs.begin(), runs.end(), routed) && !of_attention_alone(lora.targets))
      add("lora.rank", fmt::format("{}", lora.rank), "none", "not supported yet: LoRA of experts beside a vision tower");
  }

  void check_images() {
    if (t_.vision.images == 0) return;  // the framework makes one up
    if (t_.vision.height < 1 || t_.vision.width < 1)
      return add(t_.vision.height < 1 ? "vision.height" : "vision.width", "0", "pixels of the images", "");
    if (role_.architecture == nullptr) return;
    const Tower& tower = role_.architecture->tower;
    if (tower.kind.empty())
      return add("vision.images", fmt::format("{}", t_.vision.images), "none", "the model has no vision tower");
    if (!unsupported_tower(tower).empty()) return;  // told where the model is named
    const VisionPass pass = vision_pass(t_, role_.engine, *role_.architecture);
    if (pass.patches() > kPatchLimit.most)
      add("vision.images", fmt::format("{} patches of a micro-batch", pass.patches()),
          fmt::format("at most {}", kPatchLimit.most), "");
    constexpr std::int64_t kMostParts = 256;                                                  // a tape has each by itself
    const bool whole = tower.window > 0 && t_.megatron.maker == ModelMaker::megatron_bridge;  // transformers' own, with PyTorch's
    const bool by_parts = role_.engine == EngineKind::megatron ? whole : t_.kernels != Kernels::hf_flash || pass.eager;
    if (const std::int64_t parts = attention_parts(tower, pass); by_parts && parts > kMostParts)
      add("vision.images", fmt::format("{} windows and images", parts),
          fmt::format("at most {} where attention is not flash-attention's", kMostParts),
          pass.eager ? "not supported yet: up to verl 0.7 Ulysses makes the tower's attention the eager one"
                     : "not supported yet: each is a product of its own");
    const std::int64_t tokens = t_.sequences_per_micro_batch > 0 ? t_.sequence_tokens : t_.tokens_per_micro_batch;
    const std::int64_t images = t_.vision.fill && t_.sequences_per_micro_batch == 0 ? pass.images : t_.vision.images;
    const std::int64_t taken = images * image_tokens(tower, pass);
    if (tokens > 0 && taken > tokens)
      add("vision.images", fmt::format("{} tokens of images", taken), fmt::format("at most the {} tokens of a sequence", tokens),
          "an image's features stand in the place of tokens");
  }

  const Role& role_;
  const Trainer& t_;
  std::vector<KnobProblem> out_;
};

}  // namespace

std::vector<KnobProblem> vision_problems(const Role& role) {
  const bool made_up = role.architecture != nullptr && vision_pass(role.trainer, role.engine, *role.architecture).made_up;
  const bool beside_megatron =
      role.engine == EngineKind::megatron && role.architecture != nullptr && !role.architecture->tower.kind.empty();
  if (role.trainer.vision.images == 0 && !made_up && !beside_megatron) return {};
  return VisionObjections(role).run();
}

}  // namespace oomplan
