// Command lines are read whatever their words are, but not however many: each is compared with every flag that is known.
#pragma once
#include <string>
#include <vector>

#include <oomplan/units/errors.hpp>

namespace oomplan {

/// Throws InputError for more words than anybody types or a script writes.
inline void check_length(const std::vector<std::string>& words, const std::string& file) {
  constexpr std::size_t kMostWords = 1000;
  if (words.size() > kMostWords)
    throw InputError(
        Problem{{file, 0, 0, {}}, std::to_string(words.size()) + " words", "at most " + std::to_string(kMostWords), {}, {}});
}

}  // namespace oomplan
