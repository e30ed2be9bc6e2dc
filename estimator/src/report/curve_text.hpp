// A curve of memory, drawn with characters.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "report/report.hpp"

namespace oomplan {

/// The stretches side by side as columns, a letter under the first column of each, then what the letters mean. "" without any.
/// Columns above `usable` have the colour of what does not fit. Ends with a newline.
std::string curve_text(const std::vector<Stretch>& stretches, Bytes usable, const TextStyle& style);

}  // namespace oomplan
