// The dialects in which a job can be said, a row of each. What a row names stands in the folder of its front end.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "catalog/catalog.hpp"
#include "frontends/words.hpp"

namespace oomplan {

struct Dialect {
  std::string_view name;   ///< Source::dialect
  bool rewords = false;    ///< remedies are told in its own words
  bool takes_gpu = false;  ///< the kind of GPU is no key of the text: it is given beside it
  bool (*recognises)(const Source&) = nullptr;
  std::unique_ptr<TextWords> (*words)(const Source&, const Catalog&) = nullptr;
  std::string (*facts)(const Source&) = nullptr;  ///< as JSON; nullptr: it has none
};

/// Of a source: the one that it names, else the first that recognises it. Throws InputError for a name that nobody has.
const Dialect& dialect_of(const Source&);
/// The source read. Throws InputError as read() does.
std::unique_ptr<TextWords> words_of(const Source&, const Catalog&);

}  // namespace oomplan
