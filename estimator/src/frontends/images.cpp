#include "frontends/images.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/architecture.hpp"
#include "job/limits.hpp"

namespace oomplan {
namespace {

/// Image tokens of one image, at most: the processors of Qwen2-VL to Qwen3-VL make larger images smaller
/// (preprocessor_config.json of Qwen/Qwen2.5-VL-7B-Instruct: max_pixels 12845056).
constexpr std::int64_t kMostTokens = 16384;

}  // namespace

ImagesSaid images_said(std::string_view text) {
  ImagesSaid out;
  if (text.empty()) return out;
  out.none = text == "none";
  if (out.none) return out;
  const std::size_t at = text.find('x');
  const auto side = [](std::string_view digits) {
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    return error == std::errc() && end == digits.data() + digits.size() ? n : 0;
  };
  if (at != std::string_view::npos) {
    out.width = side(text.substr(0, at));
    out.height = side(text.substr(at + 1));
  }
  if (out.width < 1 || out.height < 1 || std::max(out.width, out.height) > kPixelLimit.most)
    throw InputError(Problem{{"command line", 0, 0, "--image-size"},
                             fmt::format("'{}'", text),
                             fmt::format("width and height in pixels up to {}, such as 640x480, or none", kPixelLimit.most),
                             {},
                             {}});
  return out;
}

void derive_image_size(Derivation& d, Role& role, std::string_view source) {
  Vision& vision = role.trainer.vision;
  if (vision.height > 0 || vision.width > 0) return;
  const Tower& tower = role.architecture->tower;
  const auto at = d.job().origins.find(key_of(role, "vision.images"));
  const Place place = at != d.job().origins.end() ? at->second.place : Place{};
  std::int64_t longest = d.job().prompt_tokens > 0 ? d.job().prompt_tokens : role.trainer.sequence_tokens;
  if (const std::int64_t packed = role.trainer.tokens_per_micro_batch; packed > 0)  // samples may be shorter (--sequence-tokens)
    longest = longest > 0 ? std::min(longest, packed / vision.images) : packed / vision.images;
  const std::int64_t most = std::min(longest, kMostTokens);
  std::int64_t side = 1;
  while ((side + 1) * (side + 1) <= most) ++side;
  vision.height = vision.width = side * tower.patch * tower.merge;
  const std::string why = fmt::format("one image as large as a prompt of {} tokens allows", longest);
  for (const char* knob : {"vision.height", "vision.width"})
    d.record(key_of(role, knob), Origin::Kind::derived, why, std::string(source));
  if (role.kind == RoleKind::actor || role.kind == RoleKind::trainer)
    d.note({Note::Level::info, place,
            fmt::format("a sample is taken to have {}: {} x {} pixels. --image-size says what yours have", why, vision.width,
                        vision.height)});
}

}  // namespace oomplan
