// Words of verl's command line or file: changes are Hydra's overrides.
#pragma once
#include <memory>
#include <string>

#include "catalog/catalog.hpp"
#include "frontends/words.hpp"

namespace oomplan::verl {

/// By the keys at the top of the text, or by its dialect.
bool recognises(const Source&);
/// Throws InputError as read() does.
std::unique_ptr<TextWords> words_of(const Source&, const Catalog&);
/// What the text means, as JSON. Throws InputError when it is no text of verl's.
std::string facts_json(const Source&);

}  // namespace oomplan::verl
