// Tests that go through many cases look at a sample of them under sanitizers, which look for other things than values and make
// every case ten times as slow.
#pragma once
#include <cstddef>

namespace oomplan {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t kEveryCase = 5;
#else
inline constexpr std::size_t kEveryCase = 1;
#endif

}  // namespace oomplan
