// The words that values are made of in both grammars: behind "key=" of a Hydra override and in the arguments of an OmegaConf
// resolver. As the lexers do, the longest word wins, and of two equally long ones the earlier kind.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "frontends/compose/node.hpp"

namespace oomplan::compose {

enum class WordKind : std::uint8_t { real, integer, boolean, null, sign, name, escape, blank };
struct Word {
  WordKind kind;
  std::string_view text;
};
/// The word that `s` begins with. nullopt: none does (the end, a bracket, a comma, a colon, a quote, a character of no word).
std::optional<Word> word_at(std::string_view s);
/// What a word means alone; broken: an integer beyond 64 bits.
Node value_of(const Word&);
/// What a word adds to a longer text: escapes lose every other character.
std::string piece_of(const Word&);

/// [a-zA-Z_][a-zA-Z0-9_-]* at the beginning of `s`; its length.
std::size_t name_length(std::string_view s);
/// Blanks and tabs at the beginning of `s`.
std::size_t blank_length(std::string_view s);
/// 0 or a digit that is not zero and then digits with single underscores; its length.
std::size_t unsigned_length(std::string_view s);

}  // namespace oomplan::compose
