// Arguments of TRL's and Transformers' trainers as words: their facts, and the job that they say.
#pragma once
#include <memory>
#include <string>

#include "catalog/catalog.hpp"
#include "frontends/words.hpp"

namespace oomplan::transformers {

/// Is it a file of their arguments?
bool recognises(const Source&);
std::unique_ptr<TextWords> words_of(const Source&, const Catalog&);
/// Every fact with who told it, as JSON.
std::string facts_json(const Source&);

}  // namespace oomplan::transformers
