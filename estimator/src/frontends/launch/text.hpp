// Text as a shell handles it, of which parts may be unknown.
//
// A unit is a byte, or an unknown: what a program prints, or what a variable holds that nothing sets. An unknown is a unit of its
// own, which no byte can be mistaken for, and refers to the row that says what it is. While a word is expanded, units also say
// whether quotes protect them and whether they came from an expansion outside of quotes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oomplan::launch {

using Text = std::u32string;

inline constexpr char32_t kQuoted = 1U << 9;     ///< not split, no sign of a pattern
inline constexpr char32_t kExpanded = 1U << 10;  ///< of an expansion outside of quotes: is split into words
inline constexpr char32_t kFlags = kQuoted | kExpanded;
inline constexpr char32_t kUnknown = 1U << 11;  ///< the bits above are the unknown's index
inline constexpr int kIndexShift = 12;

/// What is not known, and why.
struct Unknown {
  enum class Kind : std::uint8_t {
    unset,    ///< a variable or an argument that nobody gave: bash would take it as empty
    outside,  ///< what a program prints, or the machine knows
    either,   ///< differs with a condition that is not known
  };
  Kind kind = Kind::unset;
  std::string name;  ///< the variable, or the command as it is written
  std::string why;   ///< of `either`: the condition
  std::string file;
  int line = 0;
};

inline bool is_unknown(char32_t unit) { return (unit & kUnknown) != 0; }
inline std::size_t index_of(char32_t unit) { return unit >> kIndexShift; }
inline char32_t unknown_unit(std::size_t index) { return kUnknown | static_cast<char32_t>(index << kIndexShift); }
inline char32_t unit_of(char c) { return static_cast<unsigned char>(c); }
/// The byte, 0 for an unknown.
inline char byte_of(char32_t unit) { return is_unknown(unit) ? '\0' : static_cast<char>(unit & 0xFFU); }
inline bool is_quoted(char32_t unit) { return (unit & kQuoted) != 0; }
inline bool is_expanded(char32_t unit) { return (unit & kExpanded) != 0; }

Text text_of(std::string_view bytes, char32_t flags = 0);
/// Without the flags of expansion.
Text plain(const Text&);
bool is_known(const Text&);
/// The bytes; unknowns are left out, as bash does with what is not set.
std::string bytes_of(const Text&);
/// Are there unknowns other than variables that are not set?
bool is_open(const Text&, const std::vector<Unknown>&);

/// A file's text as a shell keeps it: no word holds a zero byte.
std::optional<std::string> without_zero_bytes(std::optional<std::string> text);

}  // namespace oomplan::launch
