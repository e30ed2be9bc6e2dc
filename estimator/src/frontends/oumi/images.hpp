// Images in the samples of Oumi's trainers: a vision-language collator says that a sample has one. How large it is nobody does.
#pragma once
#include <string_view>
#include <vector>

#include "catalog/catalog.hpp"
#include "frontends/images.hpp"
#include "frontends/native.hpp"
#include "frontends/oumi/settings.hpp"

namespace oomplan::oumi {

/// transformers beside images where a release takes 5: pyproject.toml of 0.8 and d8ed0777 stops at 5.9, whose towers have other
/// tables than the newest.
inline constexpr std::string_view kTransformersOfImages = "5.9.0";
/// The collator makes batches of images and text.
bool has_image_collator(const OumiText&);
/// Every name of model.freeze_layers is that of a tower.
bool freezes_towers_alone(const OumiText&);

/// What the configuration says: that there are images, and what of the tower is trained. `since_5`: transformers 5 comes along.
void put_images(const OumiText&, OumiSettings&, const ImagesSaid&, bool since_5, std::vector<Note>&);

/// How large an image becomes, and InternVL's tiles: the model says it. Adds to the settings of a job with images.
void size_images(NativeText&, const ImagesSaid&, const Catalog&, std::vector<Note>&);

/// Beside a tower FSDP's units have to be layers of the language model. Throws InputError.
void check_units(const OumiText&, const NativeText&, const Catalog&);

}  // namespace oomplan::oumi
