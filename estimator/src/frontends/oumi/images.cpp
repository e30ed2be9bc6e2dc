#include "frontends/oumi/images.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "frontends/trainers/names.hpp"
#include "job/names.hpp"
#include "units/enums.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

constexpr std::string_view kCollator = "data.train.collator_name", kFrozen = "model.freeze_layers";
/// Of a tower in transformers' models. From 5 on the models have no property of the short name any more, and what is not found is
/// passed over (src/oumi/utils/torch_utils.py: freeze_model_layers).
struct TowerName {
  std::string_view path, before_5;
  TowerTraining left;  ///< what of it is trained behind it: the merger of Qwen's towers is a part of them
};
constexpr std::array<TowerName, 3> kTowers{{{"model.visual", "visual", TowerTraining::none},
                                            {"model.vision_tower", "vision_tower", TowerTraining::projector},
                                            {"model.vision_model", "vision_model", TowerTraining::projector}}};

const TowerName* tower_named(std::string_view name) {
  const auto row =
      std::find_if(kTowers.begin(), kTowers.end(), [&](const TowerName& t) { return t.path == name || t.before_5 == name; });
  return row == kTowers.end() ? nullptr : &*row;
}

/// Pixels of an image behind the processor, at least and at most (src/oumi/core/configs/internal/supported_models.py).
struct PixelLimits {
  std::string_view tower;
  std::int64_t least, most;
};
constexpr std::int64_t kOfToken = 28 * 28;
constexpr std::array<PixelLimits, 3> kPixels{{{"qwen2_vl", 256 * kOfToken, 1280 * kOfToken},
                                              {"qwen2_5_vl", 4 * kOfToken, 16384 * kOfToken},
                                              {"qwen3_vl", 4 * kOfToken, 16384 * kOfToken}}};

const Setting* setting(const NativeText& native, std::string_view key) {
  const auto at = std::find_if(native.settings.begin(), native.settings.end(), [&](const Setting& s) { return s.key == key; });
  return at == native.settings.end() ? nullptr : &*at;
}

std::int64_t whole(const NativeText& native, std::string_view key) {
  const Setting* said = setting(native, key);
  std::int64_t n = 0;
  if (said != nullptr) std::from_chars(said->text.data(), said->text.data() + said->text.size(), n);
  return n;
}

struct Size {
  std::int64_t width = 0, height = 0;
};

/// transformers/models/qwen2_vl/image_processing_qwen2_vl.py: smart_resize.
Size resized(Size image, std::int64_t factor, const PixelLimits& limits) {
  const auto w = static_cast<double>(image.width), h = static_cast<double>(image.height), f = static_cast<double>(factor);
  const auto side = [&](double n) { return static_cast<std::int64_t>(n) * factor; };
  Size out{side(std::nearbyint(w / f)), side(std::nearbyint(h / f))};
  if (out.width * out.height > limits.most) {
    const double beta = std::sqrt(w * h / static_cast<double>(limits.most));
    out = {std::max(factor, side(std::floor(w / beta / f))), std::max(factor, side(std::floor(h / beta / f)))};
  } else if (out.width * out.height < limits.least) {
    const double beta = std::sqrt(static_cast<double>(limits.least) / (w * h));
    out = {side(std::ceil(w * beta / f)), side(std::ceil(h * beta / f))};
  }
  return out;
}

/// transformers/models/got_ocr2/image_processing_got_ocr2.py: get_optimal_tiled_canvas; with more than one a small image of the
/// whole comes on top (InternVLProcessor: crop_to_patches, at most 12).
constexpr std::int64_t kMostTiles = 12;
std::int64_t tiles_of(Size image, std::int64_t tile) {
  double best = 1e300;
  std::int64_t tiles = 1;
  const double ratio = static_cast<double>(image.width) / static_cast<double>(image.height);
  const auto area = static_cast<double>(image.width * image.height);
  for (std::int64_t n = 1; n <= kMostTiles; ++n)
    for (std::int64_t w = 1; w <= n; ++w) {
      if (n % w != 0) continue;
      const double off = std::abs(ratio - static_cast<double>(w) / static_cast<double>(n / w));
      const bool as_good = off == best && area > 0.5 * static_cast<double>(tile * tile * n);
      if (off < best || as_good) tiles = n;
      best = std::min(best, off);
    }
  return tiles == 1 ? 1 : tiles + 1;
}

class Sizes {
 public:
  Sizes(NativeText& native, const ImagesSaid& said, const Architecture& a, std::vector<Note>& notes)
      : native_(native), tower_(a.tower), said_{said.width, said.height}, notes_(notes) {}

  void run() {
    const std::int64_t length = whole(native_, "trainer.sequence_tokens");
    if (tower_.kind == "internvl") return tiles(length);
    const auto limits =
        std::find_if(kPixels.begin(), kPixels.end(), [&](const PixelLimits& l) { return l.tower == tower_.kind; });
    if (limits == kPixels.end()) return fixed();
    const std::int64_t factor = tower_.patch * tower_.merge;
    if (said_.width > 0) return put(resized(said_, factor, *limits), "as its processor makes an image of that size");
    const std::int64_t most = std::min(length, limits->most / (factor * factor));
    std::int64_t side = 1;
    while ((side + 1) * (side + 1) <= most) ++side;
    const std::string why = fmt::format("one image as large as {} tokens allow", most);
    put({side * factor, side * factor}, why);
    tell(fmt::format("{}: {} x {} pixels", why, side * factor, side * factor));
  }

 private:
  /// Every image becomes as large as the tower's table of positions, but Pixtral's, which are no larger.
  void fixed() {
    const bool free = tower_.kind == "pixtral" && said_.width > 0;
    put(free ? said_ : of_table(), "its processor makes every image so large");
  }
  Size of_table() const {
    std::int64_t side = 1;
    while ((side + 1) * (side + 1) <= tower_.positions) ++side;
    return {side * tower_.patch, side * tower_.patch};
  }
  void tiles(std::int64_t length) {
    const Size tile = of_table();
    const std::int64_t tokens = tower_.positions / std::max<std::int64_t>(1, tower_.merge * tower_.merge);
    const std::int64_t most = std::clamp<std::int64_t>(length / std::max<std::int64_t>(1, tokens), 1, kMostTiles + 1);
    const std::int64_t count = said_.width > 0 ? tiles_of(said_, tile.width) : most;
    for (Setting& s : native_.settings)
      if (s.key == "trainer.vision.images") s.text = fmt::format("{}", count);
    put(tile, "InternVL cuts an image into tiles");
    if (said_.width == 0) tell(fmt::format("one image of {} tiles of {} x {} pixels", count, tile.width, tile.height));
  }
  void put(Size size, std::string because) {
    Origin origin;
    origin.kind = Origin::Kind::derived;
    origin.because = std::move(because);
    if (said_.width > 0) origin.place = {"command line", 0, 0, "--image-size"};
    native_.settings.push_back({"trainer.vision.width", fmt::format("{}", size.width), origin});
    native_.settings.push_back({"trainer.vision.height", fmt::format("{}", size.height), origin});
  }
  void tell(const std::string& what) {
    const Setting* images = setting(native_, "trainer.vision.images");
    notes_.push_back({Note::Level::info, images->origin.place,
                      fmt::format("a sample is taken to have {}. --image-size says what yours have", what)});
  }

  NativeText& native_;
  const Tower& tower_;
  const Size said_;
  std::vector<Note>& notes_;
};

/// nullptr: none, or one that is not known, which is told where the job is made.
std::shared_ptr<const Architecture> model_of(const NativeText& native, const Catalog& catalog) {
  const Setting* model = setting(native, "trainer.model");
  if (model == nullptr) return nullptr;
  try {
    return catalog.model(model->text).architecture;
  } catch (const InputError&) {
    return nullptr;
  }
}

}  // namespace

bool has_image_collator(const OumiText& text) {
  const Node* n = text.root.at(kCollator);
  return n != nullptr && n->text.starts_with("vision");
}

bool freezes_towers_alone(const OumiText& text) {
  const Node* n = text.root.at(kFrozen);
  return n != nullptr &&
         std::all_of(n->items.begin(), n->items.end(), [](const Node& name) { return tower_named(name.text) != nullptr; });
}

void put_images(const OumiText& text, OumiSettings& s, const ImagesSaid& said, bool since_5, std::vector<Note>& notes) {
  const Node* adapters = text.root.at("training.use_peft");
  const bool adapted = adapters != nullptr && adapters->kind == Node::Kind::boolean && adapters->boolean;
  if (adapted) s.put("trainer.vision.train", "none", s.origin("training.use_peft"));
  if (const Node* frozen = text.root.at(kFrozen); frozen != nullptr && !adapted)
    for (const Node& name : frozen->items) {
      const TowerName* tower = tower_named(name.text);
      if (tower == nullptr) continue;
      if (since_5 && name.text == tower->before_5)
        notes.push_back(
            {Note::Level::warning, s.place(kFrozen),
             fmt::format("models of transformers 5 have no {} of their own, and Oumi passes the name over: the tower is "
                         "trained. {} freezes it",
                         name.text, tower->path)});
      else
        s.put("trainer.vision.train", std::string(spelling(tower->left)), s.origin(kFrozen));
    }
  if (!has_image_collator(text) || said.none) return;
  s.put("trainer.vision.images", "1", s.origin(kCollator));
}

void size_images(NativeText& native, const ImagesSaid& said, const Catalog& catalog, std::vector<Note>& notes) {
  if (setting(native, "trainer.vision.images") == nullptr) return;
  const std::shared_ptr<const Architecture> found = model_of(native, catalog);
  if (found == nullptr) return;
  if (found->tower.patch == 0)
    throw InputError(Problem{setting(native, "trainer.vision.images")->origin.place,
                             fmt::format("images for {}", setting(native, "trainer.model")->text),
                             "a model with a vision tower, or another collator",
                             {},
                             "the model has no tower that oomplan describes"});
  Sizes(native, said, *found, notes).run();
}

void check_units(const OumiText& text, const NativeText& native, const Catalog& catalog) {
  constexpr std::string_view kClass = "fsdp.transformer_layer_cls";
  const Setting* engine = setting(native, "trainer.engine");
  if (engine == nullptr || engine->text != "fsdp1") return;
  const std::shared_ptr<const Architecture> model = model_of(native, catalog);
  if (model == nullptr || model->tower.kind.empty()) return;
  const Node* named = text.root.at(kClass);
  const bool none = named == nullptr || named->kind == Node::Kind::null;
  if (!none && trainers::wraps_text_alone(named->text)) return;
  Place place = none ? engine->origin.place : named->origin.place;
  place.path = kClass;
  throw InputError(Problem{place,
                           none ? "none" : fmt::format("'{}'", named->text),
                           "the class of the language model's layers",
                           {},
                           "not supported yet: blocks of a tower that are units of FSDP"});
}

}  // namespace oomplan::oumi
