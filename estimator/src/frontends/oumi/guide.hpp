// Oumi's own guide for users who run out of memory, as arguments of one job.
#pragma once
#include <string_view>
#include <vector>

#include "frontends/oumi/meaning.hpp"
#include "frontends/words.hpp"

namespace oomplan::oumi {

inline constexpr std::string_view kGuide = "oumi-ai/oumi docs/faq/oom.md, d8ed0777";

/// In the order of the page; empty of what trains nothing.
std::vector<GuidePoint> guide_points(const OumiText&, const OumiMeaning&);

}  // namespace oomplan::oumi
