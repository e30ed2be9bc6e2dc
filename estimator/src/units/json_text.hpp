// JSON as it is handed out. What users gave may be broken UTF-8; what is written may not, nor may writing it fail.
#pragma once
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace oomplan {

/// `json` in `indent` spaces a level, on one line with -1; broken UTF-8 replaced by U+FFFD, marks that turn the direction of
/// writing escaped.
std::string json_text(const nlohmann::json& json, int indent = 2);
std::string json_text(const nlohmann::ordered_json& json, int indent = 2);

}  // namespace oomplan
