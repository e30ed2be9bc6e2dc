// Relax's guide for users who run out of memory.
#pragma once
#include <string_view>
#include <vector>

#include <oomplan/guide.hpp>

#include "frontends/slime/meaning.hpp"

namespace oomplan::relax {

inline constexpr std::string_view kGuide = "redai-infra/Relax docs/en/guide/oom-troubleshooting.md, 02c394de";

/// Its common solutions, in its order.
std::vector<GuidePoint> guide_points(const slime::SlimeText&, const slime::SlimeMeaning&);

}  // namespace oomplan::relax
