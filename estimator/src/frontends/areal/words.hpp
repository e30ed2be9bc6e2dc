// Words of AReaL's file.
#pragma once
#include <memory>

#include "catalog/catalog.hpp"
#include "frontends/words.hpp"

namespace oomplan::areal {

/// By the keys at the top of the text, or by its dialect.
bool recognises(const Source&);
/// Throws InputError as read() does.
std::unique_ptr<TextWords> words_of(const Source&, const Catalog&);

}  // namespace oomplan::areal
