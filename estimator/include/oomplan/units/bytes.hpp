// Bytes, and the few integer operations that sizes need.
//
// Every size in oomplan is a count of bytes in a signed 64-bit integer; device memory unless a name says host. Inputs are
// bounded (job/limits) so that no product or sum of sizes can pass 2^60: plain arithmetic is safe everywhere behind that.
#pragma once
#include <cstdint>

#include <oomplan/units/export.hpp>

namespace oomplan OOMPLAN_PUBLIC {

using Bytes = std::int64_t;

inline constexpr Bytes kKiB = Bytes{1} << 10;
inline constexpr Bytes kMiB = Bytes{1} << 20;
inline constexpr Bytes kGiB = Bytes{1} << 30;

/// Ceiling of a/b. REQUIRES: a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// The smallest multiple of `step` that is >= n. REQUIRES: n >= 0, step > 0.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) { return ceil_div(n, step) * step; }
/// The largest multiple of `step` that is <= n. REQUIRES: n >= 0, step > 0.
constexpr std::int64_t round_down(std::int64_t n, std::int64_t step) { return n / step * step; }

}  // namespace oomplan
