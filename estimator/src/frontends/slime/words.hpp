// The command line of slime, or of its family, as words: its facts, and the job that it says.
#pragma once
#include <memory>
#include <string>

#include "catalog/catalog.hpp"
#include "frontends/slime/family.hpp"
#include "frontends/words.hpp"

namespace oomplan::slime {

/// Is it a command of this one?
bool recognises(const Family&, const Source&);
std::unique_ptr<TextWords> words_of(const Family&, const Source&, const Catalog&);
/// Every fact with who told it, as JSON.
std::string facts_json(const Family&, const Source&);

}  // namespace oomplan::slime
