// The flags that slime adds to Megatron's and SGLang's, by release: models/frameworks/slime.json, which slime's own functions
// wrote (models/frameworks/slime_schema.py). Megatron's flags whose default slime changes are among them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace oomplan::slime {

/// The number of a release among those that were read, oldest first.
using Release = std::size_t;
const std::vector<std::string>& releases();
/// "0.3.1". REQUIRES: a number of one.
const std::string& name_of(Release);
/// The last one that is tagged: what a command without a version means.
Release last_tagged();

/// What stands behind a flag.
enum class FlagValue : std::uint8_t { whole, number, text, on, off, toggle };

struct Flag {
  std::vector<std::string> spellings;  ///< of a toggle the negative one second
  std::string name;                    ///< of the argument: "max_tokens_per_gpu"
  FlagValue value = FlagValue::text;
  std::string many;                                 ///< "": one value; "+", "*": a list
  std::shared_ptr<const nlohmann::json> otherwise;  ///< its default, never a null pointer
  std::vector<std::string> choices;
  Release first = 0, last = 0;
};

/// Of the release; nullptr: it has none so spelt, or so named.
const Flag* find_flag(Release, std::string_view spelling);
const Flag* flag_named(Release, std::string_view name);
/// Has any release it?
bool known_in_any(std::string_view spelling);
/// "0.2.0 to 0.3.0": the releases that have it; "": none.
std::string releases_with(std::string_view spelling);
std::vector<std::string> spellings(Release);
bool takes_value(const Flag&);

}  // namespace oomplan::slime
