// What reading one script may cost. A script that counts to a billion, or doubles a text in a loop, ends with a message.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace oomplan::launch {

/// The script asks for more than the budget; the text says for what.
struct TooMuch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Budget {
 public:
  static constexpr std::int64_t kSteps = 4'000'000;  // commands, words and comparisons; scripts seen need under 100,000
  static constexpr std::size_t kLongest = std::size_t{1} << 20;  // units of one text
  void spend(std::int64_t steps) {
    left_ -= steps;
    if (left_ < 0) throw TooMuch("it does not end within the steps that oomplan allows");
  }
  /// Of a text that is being made.
  void text(std::size_t units) {
    if (units > kLongest) throw TooMuch("a text of more than 1 MiB");
    spend(static_cast<std::int64_t>(units / 16));
  }

 private:
  std::int64_t left_ = kSteps;
};

}  // namespace oomplan::launch
