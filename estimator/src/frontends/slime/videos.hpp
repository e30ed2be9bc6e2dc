// Videos of --multimodal-keys: how many frames a sample has at most, and how large they are.
#pragma once
#include <cstdint>
#include <string>

#include "frontends/images.hpp"
#include "frontends/slime/read.hpp"

namespace oomplan::slime {

struct Frames {
  std::int64_t pairs = 1;              ///< two frames are one patch in time
  std::int64_t width = 0, height = 0;  ///< pixels
  std::string flag;                    ///< who says how large they are
};

/// --multimodal-keys '{"video": ...}'.
bool has_videos(const SlimeText&);

/// As many as a prompt of `tokens` allows. `side`: pixels of an edge that become one token.
Frames frames_of(const SlimeText&, const ImagesSaid&, std::int64_t side, std::int64_t tokens);

}  // namespace oomplan::slime
