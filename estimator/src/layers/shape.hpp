// Shapes as data: sizes that depend on the token counts of a micro-batch, and on nothing else that may vary.
//
// Model dimensions (H, F, heads, V, E) are numbers when a description is built; what varies from plan to plan is
//   b  sequences of the micro-batch on this rank      s  tokens of one sequence on this rank (after Ulysses)
//   k  tokens of one sequence that reach the head     e  rows of the largest chunk that a head works on
//   m  tokens of one tile of a feed-forward block; of AReaL's Megatron engine: rows of a chunk of its head
//   r  rows of the last of several chunks: what is left; of Megatron's flex dispatcher: tokens that come over the network
//   d  tokens that come to a rank of Megatron's flex dispatcher
// Every dimension is coefficient * b^i s^j k^l e^o m^p r^q d^t, so every tensor's size is such a monomial, and a level is a sum
// of them; where all chunks of a head leave something behind, the number n of chunks multiplies it.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include <oomplan/units/bytes.hpp>
#include <oomplan/units/dtype.hpp>

namespace oomplan {

/// Values of the variables above.
struct TokenCounts {
  std::int64_t b = 1, s = 1, k = 1, e = 1, n = 1, m = 1, r = 1, d = 1;
  bool operator==(const TokenCounts&) const = default;
};

struct Dim {
  std::int64_t coefficient = 1;
  std::uint8_t b = 0, s = 0, k = 0, e = 0, m = 0, r = 0, d = 0;  ///< exponents
  constexpr Dim() = default;
  constexpr Dim(std::int64_t n) : coefficient(n) {}  // NOLINT: a number is a dimension
  constexpr Dim(std::int64_t n, std::uint8_t eb, std::uint8_t es, std::uint8_t ek = 0, std::uint8_t ee = 0, std::uint8_t em = 0,
                std::uint8_t er = 0, std::uint8_t ed = 0)
      : coefficient(n), b(eb), s(es), k(ek), e(ee), m(em), r(er), d(ed) {}
  friend constexpr Dim operator*(Dim x, Dim y) {
    return Dim(x.coefficient * y.coefficient, static_cast<std::uint8_t>(x.b + y.b), static_cast<std::uint8_t>(x.s + y.s),
               static_cast<std::uint8_t>(x.k + y.k), static_cast<std::uint8_t>(x.e + y.e), static_cast<std::uint8_t>(x.m + y.m),
               static_cast<std::uint8_t>(x.r + y.r), static_cast<std::uint8_t>(x.d + y.d));
  }
  bool operator==(const Dim&) const = default;
  std::int64_t value(const TokenCounts& n) const;
};

namespace axis {
inline constexpr Dim B{1, 1, 0};                 ///< sequences
inline constexpr Dim S{1, 0, 1};                 ///< tokens of a sequence
inline constexpr Dim T{1, 1, 1};                 ///< tokens
inline constexpr Dim K{1, 0, 0, 1};              ///< kept tokens of a sequence
inline constexpr Dim TK{1, 1, 0, 1};             ///< tokens that reach the head
inline constexpr Dim C{1, 0, 0, 0, 1};           ///< rows of a chunk
inline constexpr Dim M{1, 0, 0, 0, 0, 1};        ///< tokens of a tile
inline constexpr Dim R{1, 0, 0, 0, 0, 0, 1};     ///< rows of the last of several chunks
inline constexpr Dim D{1, 0, 0, 0, 0, 0, 0, 1};  ///< tokens that come to a rank
/// Rows of the i-th of `chunks` simulated ones.
constexpr Dim rows_of_chunk(int i, int chunks) { return i > 0 && i + 1 == chunks ? R : C; }
}  // namespace axis

using Shape = std::vector<Dim>;
Dim elements(const Shape&);
/// The same shape with another last axis.
Shape with_last(const Shape&, Dim last);

/// Exponents of a monomial, packed: 4 bits each.
using Monomial = std::uint32_t;
constexpr Monomial monomial(const Dim& d) {
  return static_cast<Monomial>(d.b | d.s << 4 | d.k << 8 | d.e << 12 | d.m << 20 | d.r << 24) | static_cast<Monomial>(d.d) << 28;
}
inline constexpr Monomial kTimesChunks = 1U << 16;  ///< added to a monomial: times n
std::int64_t value(Monomial, const TokenCounts&);

/// A sum of monomials with integer coefficients (bytes): a level, or the size of something.
struct Polynomial {
  std::vector<std::pair<Monomial, Bytes>> terms;  ///< sorted by monomial, no zero coefficients
  void add(Monomial m, Bytes coefficient);
  Bytes value(const TokenCounts&) const;
  /// Every coefficient is <= that of `other`: then so is the value, for any counts.
  bool dominated_by(const Polynomial& other) const;
};

}  // namespace oomplan
