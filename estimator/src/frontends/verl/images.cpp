#include "frontends/verl/images.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "frontends/verl/meaning_parts.hpp"
#include "job/limits.hpp"
#include "job/model_makers.hpp"

namespace oomplan::verl {
namespace {

/// On the command line; verl's own files name the column of every data set.
bool overridden(const compose::Node* n) {
  return n != nullptr && n->kind != compose::Node::Kind::null && n->origin.kind == Origin::Kind::override_;
}

bool on(const compose::Node* n) { return n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean; }

}  // namespace

/// A key of images that somebody wrote, or a data set that is known to have some.
const compose::Node* VerlImages::evidence() const {
  for (const char* key : {"data.image_key", "data.video_key"})
    if (const auto* n = text_.root.at(key); overridden(n)) return n;
  const auto* files = text_.root.at("data.train_files");
  const auto* first = files != nullptr && !files->items.empty() ? &files->items.front() : files;
  constexpr std::array<std::string_view, 2> kSets{"geo3k", "geometry3k"};
  const bool known = first != nullptr && std::any_of(kSets.begin(), kSets.end(), [&](std::string_view name) {
                       return first->text.find(name) != std::string::npos;
                     });
  return known ? first : nullptr;
}

/// From 0.8 on the key is parsed and nobody reads it (verl/workers/config/actor.py); before, verl/workers/fsdp_workers.py does.
bool VerlImages::freezes(const std::string& role) const {
  const std::string key = fmt::format("{}.actor.freeze_vision_tower", kArr);
  const auto* n = text_.root.at(key);
  if (role != "actor" || !on(n)) return false;
  const bool megatron = m_.text("roles.actor.engine") == "megatron";
  if (!megatron && text_.release < release_named("0.8.0")) return true;
  Place place = n->origin.place;
  place.path = key;
  notes_.push_back({Note::Level::warning, place,
                    megatron ? "verl's Megatron engine does not read freeze_vision_tower: the tower is trained"
                             : "from 0.8 on verl does not read freeze_vision_tower: the tower is trained"});
  return false;
}

void VerlImages::put(const std::string& role, std::int64_t tokens, bool packed, std::int64_t length) {
  const std::string lora = fmt::format("roles.{}.lora", role);
  if (const ToldFact* adapters = m_.find(lora); adapters != nullptr && adapters->value.is_map() && role != "ref") {
    if (m_.text(fmt::format("roles.{}.engine", role)) != "megatron") s_.set(role + ".vision.train", "none", lora);
  } else if (freezes(role)) {
    s_.set_at(role + ".vision.train", "none", fmt::format("{}.actor.freeze_vision_tower", kArr));
    s_.set_at(role + ".use_orig_params", "true", fmt::format("{}.actor.freeze_vision_tower", kArr));
  }
  const compose::Node* found = evidence();
  if (said_.none) {
    Origin origin;
    origin.kind = Origin::Kind::derived;
    origin.because = "samples have no images";
    origin.place = {"command line", 0, 0, "--image-size"};
    s_.put(role + ".vision.images", "none", origin);
    return;
  }
  if (found == nullptr && said_.width == 0) return;
  const std::int64_t images = packed && length > 0 ? std::max<std::int64_t>(1, tokens / length) : 1;
  Origin origin = found != nullptr ? found->origin : Origin{};
  origin.kind = Origin::Kind::derived;
  origin.because = "a sample has one image";
  if (said_.width > 0) origin.place = {"command line", 0, 0, "--image-size"};
  s_.put(role + ".vision.images", fmt::format("{}", images), origin);
  if (said_.width == 0) return;
  s_.put(role + ".vision.width", fmt::format("{}", said_.width), origin);
  s_.put(role + ".vision.height", fmt::format("{}", said_.height), origin);
}

namespace {

/// Of text nothing that is trained would have a gradient: then samples have images, whatever the command says of them.
void need_images(Derivation& d, Role& role) {
  const std::string key = key_of(role, "vision.images");
  if (!trains_mergers_alone(role.trainer.megatron.maker, *role.architecture) || d.job().origins.contains(key)) return;
  const std::int64_t length = d.job().prompt_tokens + d.job().response_tokens, packed = role.trainer.tokens_per_micro_batch;
  role.trainer.vision.images = length > 0 ? std::max<std::int64_t>(1, packed / length) : 1;
  d.record(key, Origin::Kind::derived, "a sample has one image: of text nothing that is trained has a gradient",
           "megatron/bridge/models/qwen_vl/qwen3_vl_provider.py");
}

}  // namespace

void derive_images(Derivation& d, Role& role) {
  if (role.engine == EngineKind::megatron && role.kind != RoleKind::critic) need_images(d, role);
  Vision& vision = role.trainer.vision;
  const Tower& tower = role.architecture->tower;
  const auto at = d.job().origins.find(key_of(role, "vision.images"));
  const Origin said = at != d.job().origins.end() ? at->second : Origin{};
  if (tower.kind.empty() || tower.patch == 0 || tower.merge == 0) {
    // data.image_key is a column that a text model's data set lacks
    if (said.kind == Origin::Kind::derived) vision = {};
    return;
  }
  const bool acts = role.kind == RoleKind::actor || role.kind == RoleKind::trainer;
  const Place place = said.place;
  if (vision.images == 0) {
    const bool megatron = role.engine == EngineKind::megatron;
    if (acts)
      d.note({Note::Level::info, place,
              fmt::format("samples are taken to be text: {}. --image-size says that they have images, and how large",
                          megatron ? "the tower does not run"
                                   : "verl sends an image of 4 x 4 patches through the tower, which is trained")});
    if (acts && !megatron && version_matches(role.trainer.framework_version, ">=0.9") && tower.kind != "qwen3_vl")
      d.note({Note::Level::warning, place,
              "with transformers 5, which verl installs from 0.9 on, verl itself fails at text beside this tower "
              "(verl/models/transformers/qwen2_vl.py)"});
    return;
  }
  derive_image_size(d, role, "verl/utils/dataset/rl_dataset.py");
}

}  // namespace oomplan::verl
