#include "layers/shape.hpp"

#include <algorithm>

namespace oomplan {
namespace {

std::int64_t power(std::int64_t base, unsigned exponent) {
  std::int64_t out = 1;
  for (unsigned i = 0; i < exponent; ++i) out *= base;
  return out;
}

}  // namespace

std::int64_t Dim::value(const TokenCounts& n) const { return coefficient * oomplan::value(monomial(*this), n); }

Dim elements(const Shape& shape) {
  Dim out(1);
  for (const auto& d : shape) out = out * d;
  return out;
}

Shape with_last(const Shape& shape, Dim last) {
  Shape out(shape.begin(), shape.end() - 1);
  out.push_back(last);
  return out;
}

std::int64_t value(Monomial m, const TokenCounts& n) {
  return power(n.b, m & 15U) * power(n.s, m >> 4 & 15U) * power(n.k, m >> 8 & 15U) * power(n.e, m >> 12 & 15U) *
         power(n.n, m >> 16 & 15U) * power(n.m, m >> 20 & 15U) * power(n.r, m >> 24 & 15U) * power(n.d, m >> 28 & 15U);
}

void Polynomial::add(Monomial m, Bytes coefficient) {
  if (coefficient == 0) return;
  const auto at = std::lower_bound(terms.begin(), terms.end(), m, [](const auto& t, Monomial x) { return t.first < x; });
  if (at == terms.end() || at->first != m) {
    terms.insert(at, {m, coefficient});
    return;
  }
  at->second += coefficient;
  if (at->second == 0) terms.erase(at);
}

Bytes Polynomial::value(const TokenCounts& n) const {
  Bytes out = 0;
  for (const auto& [m, c] : terms) out += c * oomplan::value(m, n);
  return out;
}

bool Polynomial::dominated_by(const Polynomial& other) const {
  const auto coefficient = [](const Polynomial& p, Monomial m) {
    for (const auto& [x, c] : p.terms)
      if (x == m) return c;
    return Bytes{0};
  };
  for (const auto& [m, c] : terms)
    if (c > coefficient(other, m)) return false;
  return std::all_of(other.terms.begin(), other.terms.end(),
                     [&](const auto& t) { return coefficient(*this, t.first) <= t.second; });
}

}  // namespace oomplan
