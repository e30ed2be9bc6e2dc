// Parameters that are not trained: --freeze-vision-model, and patterns over their names.
#pragma once
#include <string>
#include <vector>

#include "catalog/architecture.hpp"
#include "frontends/native.hpp"
#include "frontends/slime/read.hpp"

namespace oomplan::slime {

/// Settings of `role`, which trains `model`. Patterns whose names are no described part of the model are told as problems of
/// `text`.
std::vector<Setting> frozen_of(SlimeText& text, const Architecture& model, const std::string& role);

}  // namespace oomplan::slime
