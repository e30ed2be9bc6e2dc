// The models that are known by name.
#pragma once
#include <string>
#include <string_view>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// Those with `word` in their id, in any case; "" all. Throws InputError when there is none.
std::string models_to_text(const Catalog&, std::string_view word, const TextStyle&);
/// Schema "oomplan.models/1".
std::string models_to_json(const Catalog&, std::string_view word);

}  // namespace oomplan
