// Images in the batches of a framework's trainer: what is said of them beside its own words, and how large they are taken to be.
#pragma once
#include <cstdint>
#include <string_view>

#include <oomplan/job.hpp>

#include "frontends/derivation.hpp"

namespace oomplan {

/// What is said of a sample's image besides the configuration.
struct ImagesSaid {
  bool none = false;
  std::int64_t width = 0, height = 0;  ///< pixels; 0: as large as a prompt allows
};
/// "640x480", "none", or "". Throws InputError.
ImagesSaid images_said(std::string_view text);

/// Images that nobody has described are as large as a prompt allows. `source`: whose data set makes them.
/// REQUIRES: the role has images, and a tower whose patches are known.
void derive_image_size(Derivation&, Role&, std::string_view source);

}  // namespace oomplan
