#include "frontends/slime/videos.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace oomplan::slime {
namespace {

// relax/utils/multimodal/config.py, redai-infra/Relax 1d267f03
constexpr std::int64_t kFrameTokens = 768, kFrames = 768, kFrameFactor = 2;
constexpr std::int64_t kPair = 2;  // temporal_patch_size of Qwen's towers

/// The most tokens of a frame whose longer side is at most twice the other one, as of a film.
void largest_frame(Frames& out, std::int64_t most, std::int64_t side) {
  std::int64_t best = 0;
  for (std::int64_t rows = 1; rows * rows <= most; ++rows) {
    const std::int64_t columns = std::min(most / rows, 2 * rows);
    if (rows * columns < best) continue;
    best = rows * columns;
    out.height = rows * side;
    out.width = columns * side;
  }
}

std::int64_t tokens_along(std::int64_t pixels, std::int64_t side) {
  return std::max<std::int64_t>(1, (pixels + side / 2) / side);
}

}  // namespace

bool has_videos(const SlimeText& t) {
  if (!t.own.on("multimodal_keys")) return false;
  const nlohmann::json keys = nlohmann::json::parse(t.own.text("multimodal_keys"), nullptr, false);
  return keys.is_object() && keys.contains("video");
}

/// relax/utils/multimodal/video_utils.py: smart_video_nframes, fetch_video (redai-infra/Relax d09ff62a).
Frames frames_of(const SlimeText& t, const ImagesSaid& said, std::int64_t side, std::int64_t tokens) {
  Frames out;
  std::int64_t each = std::min(std::max<std::int64_t>(1, t.own.whole_or("video_max_token_num", kFrameTokens)), tokens);
  if (said.width > 0) {
    out.width = said.width;
    out.height = said.height;
    out.flag = "--image-size";
    each = tokens_along(said.width, side) * tokens_along(said.height, side);
  } else {
    largest_frame(out, each, side);
    out.flag = t.own.place(t.own.given("video_max_token_num") ? "video_max_token_num" : "multimodal_keys");
    each = out.width / side * (out.height / side);
  }
  const std::int64_t factor = std::max<std::int64_t>(1, t.own.whole_or("frame_factor", kFrameFactor));
  const std::int64_t frames = t.own.whole_or("video_fps_max_frames", kFrames) / factor * factor;
  out.pairs = std::max<std::int64_t>(1, std::min((frames + kPair - 1) / kPair, tokens / std::max<std::int64_t>(1, each)));
  return out;
}

}  // namespace oomplan::slime
