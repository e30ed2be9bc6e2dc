// One table per enum: printing, parsing and the list of valid spellings come from the same rows.
//
// An enum E takes part by specialising `kNames<E>` with a constexpr array of {value, spelling}. The first spelling of a value
// is the one printed; further rows of the same value are accepted aliases.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oomplan {

template <class E>
inline constexpr std::array<std::pair<E, std::string_view>, 0> kNames{};

template <class E>
constexpr std::string_view spelling(E value) {
  for (const auto& [v, text] : kNames<E>)
    if (v == value) return text;
  return "?";
}

template <class E>
constexpr std::optional<E> parse(std::string_view text) {
  for (const auto& [v, spelled] : kNames<E>)
    if (spelled == text) return v;
  return std::nullopt;
}

template <class E>
std::vector<std::string> spellings() {
  std::vector<std::string> out;
  for (const auto& [v, text] : kNames<E>) out.emplace_back(text);
  return out;
}

/// The entry of `valid` that is nearest to `text` (edit distance, case ignored), or "" when none is near enough to be meant.
std::string nearest(std::string_view text, const std::vector<std::string>& valid);
/// "a, b or c".
std::string list_of(const std::vector<std::string>& items);

}  // namespace oomplan
