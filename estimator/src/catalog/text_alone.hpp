// The language model of a model with a tower, by itself: what its text_config says.
#pragma once
#include <string_view>

namespace oomplan {

/// Behind a model's name: "google/gemma-3-4b-it:text".
inline constexpr std::string_view kTextAlone = ":text";

}  // namespace oomplan
