// Models with a text decoder and a tower for another modality: where their halves stand in config.json.
#pragma once
#include <span>
#include <string_view>

#include "catalog/architecture.hpp"
#include "catalog/fields.hpp"

namespace oomplan {

struct Wrapper {
  std::string_view model_type;
  std::string_view text_key;   ///< "text_config"; the outer object itself when that is absent and the sizes stand there
  std::string_view text_type;  ///< model_type of the text half when it states none, or states the outer one
  std::string_view tower_key;  ///< "vision_config"; "": the tower is not described by the config
  Tower (*tower)(const Fields& tower, const Fields& outer) = nullptr;
};

std::span<const Wrapper> wrappers();
/// nullptr when the model_type is no wrapper.
const Wrapper* find_wrapper(std::string_view model_type);

}  // namespace oomplan
