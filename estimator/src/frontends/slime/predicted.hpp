// Blocks of multi-token prediction: whether and how they are trained.
#pragma once
#include <string>
#include <vector>

#include "frontends/native.hpp"
#include "frontends/slime/read.hpp"

namespace oomplan::slime {

/// They are trained, beside the model or alone.
bool trains_predicted(const SlimeText&);
/// Settings of `role`; none without --mtp-num-layers. Ways that are not described are told as problems of `text`.
std::vector<Setting> predicted_of(SlimeText& text, const std::string& role);

}  // namespace oomplan::slime
