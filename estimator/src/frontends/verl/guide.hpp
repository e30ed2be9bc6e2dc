// verl's own tuning guide as overrides of one job.
#pragma once
#include <string_view>
#include <vector>

#include "frontends/verl/meaning.hpp"
#include "frontends/words.hpp"

namespace oomplan::verl {

inline constexpr std::string_view kGuide = "verl-project/verl docs/perf/perf_tuning.rst, 0.10.0";

/// In the order of the page, with the key points that it names.
std::vector<GuidePoint> guide_points(const VerlText&, const VerlMeaning&);

}  // namespace oomplan::verl
