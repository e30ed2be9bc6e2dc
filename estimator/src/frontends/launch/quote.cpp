#include "frontends/launch/quote.hpp"

#include <algorithm>
#include <cctype>

namespace oomplan::launch {
namespace {

bool is_safe(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("-_=./:,+@%").find(c) != std::string_view::npos;
}

}  // namespace

std::string quoted_word(std::string_view word) {
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  }
  return out + "'";
}

std::string escaped_word(std::string_view word) {
  if (word.empty()) return "''";
  std::string out;
  for (const char c : word) {
    if (c == '\n')
      return "$'" + [&] {
        std::string inner;
        for (const char d : word)
          inner += d == '\n' ? std::string("\\n") : d == '\'' || d == '\\' ? std::string{'\\', d} : std::string(1, d);
        return inner;
      }() + "'";
    if (!is_safe(c) && static_cast<unsigned char>(c) < 0x80) out += '\\';
    out += c;
  }
  return out;
}

std::string command_text(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), is_safe);
    out += plain ? word : quoted_word(word);
  }
  return out;
}

}  // namespace oomplan::launch
