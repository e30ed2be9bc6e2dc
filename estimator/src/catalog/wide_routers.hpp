// Families whose routers transformers makes in fp32, whatever the model's format is, and keeps so.
#pragma once
#include <string_view>

#include "catalog/architecture.hpp"

namespace oomplan {

struct WideRouter {
  std::string_view family;
  std::string_view since;    ///< release of transformers
  bool frozen_part = false;  ///< beside it a parameter that never gets a gradient
};
/// Null: it has no routers, or they have the format of the others. An empty version is the newest whose layers are
/// described, 5.23.
const WideRouter* wide_router(const Architecture&, std::string_view transformers);

}  // namespace oomplan
