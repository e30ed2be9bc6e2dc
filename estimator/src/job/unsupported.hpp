// What users may ask for by name and this version cannot do yet. Such a word is answered with "not supported yet", not with
// "unknown": the user has made no mistake.
#pragma once
#include <string>
#include <string_view>

namespace oomplan {

/// Why the key as such is refused ("not supported yet: LoRA"), or "".
std::string unsupported_key(std::string_view key);
/// Why this value of the key is refused, or "".
std::string unsupported_value(std::string_view key, std::string_view value);

}  // namespace oomplan
