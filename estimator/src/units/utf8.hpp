// Text from users' files and commands, made safe: where it is cut, and before anybody reads it.
//
// InputError passes every field through printable(), and every report passes what came from a file through it.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace oomplan {

/// Bytes of the UTF-8 sequence that starts at `at`; 0 when it is broken. REQUIRES: at < text.size().
std::size_t utf8_length(std::string_view text, std::size_t at);
/// The whole character that starts at `at`, one byte where it is broken; "" at the end.
std::string_view character_at(std::string_view text, std::size_t at);
/// `text` with control characters, marks that turn the direction of writing, and broken UTF-8 replaced by '?', so that no input
/// can steer a terminal or disguise a message.
std::string printable(std::string_view text);
/// `text`, cut behind the last whole character of its first `longest` bytes, the cut shown by "...".
std::string shortened(std::string_view text, std::size_t longest);
/// The text of a JSON document with DEL, C1 controls and marks that turn the direction of writing as \uXXXX: the same values.
std::string with_unsafe_escaped(std::string json);

}  // namespace oomplan
