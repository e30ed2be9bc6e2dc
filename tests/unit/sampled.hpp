// Slow tests, which compare the program with itself case by case, look at a sample of the cases unless all are asked for.
//
// OOMPLAN_TEST_ALL=1 (`./dev test --all`) takes every case. OOMPLAN_TEST_SEED (0) chooses another sample; nothing else changes
// it. Tests against PyTorch, measurements or arithmetic by hand are never sampled, but for sanitizers: those look for other
// things than values and make every case ten times as slow.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <string>

namespace oomplan {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kEveryCase = 5;
#else
inline constexpr std::size_t kEveryCase = 1;
#endif

/// Takes every `one_of`-th case. One for a test, asked once a case.
class Sample {
 public:
  explicit Sample(std::size_t one_of) : one_of_(all() ? kEveryCase : one_of * kEveryCase), next_(seed() % one_of_) {}
  /// Whether the next case is looked at.
  bool takes() { return next_++ % one_of_ == 0; }
  bool has_all() const { return one_of_ == 1; }

 private:
  static bool all() {
    const char* value = std::getenv("OOMPLAN_TEST_ALL");
    return value != nullptr && std::string(value) != "0" && *value != '\0';
  }
  static std::size_t seed() {
    const char* value = std::getenv("OOMPLAN_TEST_SEED");
    return value != nullptr ? std::stoul(value) : 0;
  }
  std::size_t one_of_, next_;
};

}  // namespace oomplan
