// A configuration of Oumi as words: its facts, and the job that it says.
#pragma once
#include <memory>
#include <string>

#include "catalog/catalog.hpp"
#include "frontends/words.hpp"

namespace oomplan::oumi {

/// Is it a configuration of Oumi's?
bool recognises(const Source&);
std::unique_ptr<TextWords> words_of(const Source&, const Catalog&);
/// Every fact with who told it, as JSON.
std::string facts_json(const Source&);

}  // namespace oomplan::oumi
