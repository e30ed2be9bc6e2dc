// OmegaConf's interpolation grammar: a text becomes pieces, of which some are links: ${a.b}, ${..b}, ${a.${b}}, ${oc.env:X,1}.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "frontends/compose/node.hpp"

namespace oomplan::compose {

inline constexpr int kDeepestLink = 16;

struct Interpolation;
/// A stretch of literal text, or (if `link` is not empty: it has one element) an interpolation.
struct Piece {
  std::string text;
  std::vector<Interpolation> link;
};
using Text = std::vector<Piece>;

struct Argument;
struct Pair;
/// An argument of a resolver.
struct Argument {
  enum class Kind { value, text, list, map };
  Kind kind = Kind::value;
  Node value;                   ///< of a single word
  Text text;                    ///< quoted, or several words, or a link
  std::vector<Argument> items;  ///< of a list
  std::vector<Pair> entries;    ///< of a map
};
struct Pair {
  Node key;
  Argument value;
};
struct Interpolation {
  bool resolver = false;
  Text words;                       ///< of a path: keys, dots and brackets as they stand; of a resolver its name and dots
  std::vector<Argument> arguments;  ///< of a resolver
};

/// Why a text does not follow the grammar, and where.
struct GrammarFault {
  std::size_t at = 0;
  std::string why;
};
bool has_interpolation(std::string_view text);
std::variant<Text, GrammarFault> read_text(std::string_view text);
/// What oc.decode reads: one element.
std::variant<Argument, GrammarFault> read_element(std::string_view text);

}  // namespace oomplan::compose
