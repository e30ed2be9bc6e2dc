// A server's cache whose format the engine chooses.
#pragma once
#include <oomplan/units/dtype.hpp>

namespace oomplan {

/// Server::kv of `auto`: inference/cache_format.hpp says what becomes of it. No engine has a cache of booleans.
inline constexpr DType kAutoCache = DType::boolean;

}  // namespace oomplan
