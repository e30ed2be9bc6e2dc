// Models of Oumi's own files that are not described, whatever is done with them: refused by what they are, not by an unknown
// name.
#pragma once
#include <string_view>

namespace oomplan::oumi {

/// What of the model is not described; "": nothing is known against it.
std::string_view undescribed(std::string_view model);

}  // namespace oomplan::oumi
