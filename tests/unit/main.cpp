#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <iostream>

namespace {
// Who waits sees which test is done, also through ctest.
[[maybe_unused]] const bool kUnbuffered = (std::cout << std::unitbuf, true);
}  // namespace
