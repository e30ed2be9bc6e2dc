// How deep a JSON text nests, told before it is parsed: what walks a parsed value recurses, and a stack is finite.
#pragma once
#include <string>
#include <string_view>

namespace oomplan {

inline constexpr int kMaxJsonDepth = 64;

/// Levels of brackets that are open at once at the deepest place, brackets in strings apart.
int json_depth(std::string_view text);

/// "nesting of more than 64 levels", or "" where the text nests no deeper. Parsers of other people's JSON ask first.
std::string too_deep(std::string_view text);

/// The parsed text; discarded where it is no JSON or nests too deep.
template <class Json>
Json bounded_json(std::string_view text) {
  return json_depth(text) > kMaxJsonDepth ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
}

}  // namespace oomplan
