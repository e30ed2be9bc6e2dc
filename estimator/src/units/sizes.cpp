#include "units/sizes.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include <fmt/format.h>

namespace oomplan {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t size;
};
constexpr std::array<Unit, 9> kByteUnits{{{"B", 1},
                                          {"KiB", kKiB},
                                          {"MiB", kMiB},
                                          {"GiB", kGiB},
                                          {"TiB", kGiB << 10},
                                          {"KB", 1'000},
                                          {"MB", 1'000'000},
                                          {"GB", 1'000'000'000},
                                          {"TB", 1'000'000'000'000}}};
constexpr std::array<Unit, 4> kCountUnits{{{"k", kKiB}, {"K", kKiB}, {"m", kMiB}, {"M", kMiB}}};
constexpr int kMostDecimals = 6;  // 10^6 * 2^40 stays below 2^63
constexpr std::string_view kTooLarge = "the number is too large";

bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

/// "1_536.25GiB": digits before and behind the point, and what follows them.
struct Decimal {
  std::int64_t whole = 0, fraction = 0, scale = 1;
  std::string_view unit;
};

/// Digits with single underscores between them. Moves `s` behind them; false when they do not fit.
bool take_digits(std::string_view& s, std::int64_t& into, std::int64_t* scale) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 10 - 1;
  while (!s.empty() && (digit(s[0]) || (s[0] == '_' && s.size() > 1 && digit(s[1])))) {
    if (s[0] != '_') {
      if (into > kMost) return false;
      into = into * 10 + (s[0] - '0');
      if (scale != nullptr) *scale *= 10;
    }
    s.remove_prefix(1);
  }
  return true;
}

std::string why_not_a_number(std::string_view s) {
  if (s.empty()) return "nothing is written";
  if (s[0] == '-') return "it is negative";
  std::string low;
  for (const char c : s) low += letter(c) ? static_cast<char>(c | 0x20) : c;
  if (low == "nan" || low == ".nan") return "it is not a number";
  if (low == "inf" || low == ".inf" || low == "infinity") return "it is not finite";
  return "it does not begin with a digit";
}

/// Why a number as such is refused, or "". Leaves the unit behind the digits in `out.unit`.
std::string take_decimal(std::string_view s, Decimal& out) {
  if (s.empty() || !digit(s[0])) return why_not_a_number(s);
  if (s.size() > 1 && s[0] == '0' && (digit(s[1]) || s[1] == '_'))
    return "a leading zero means octal in YAML 1.1: write the decimal number";
  if (!take_digits(s, out.whole, nullptr)) return std::string(kTooLarge);
  if (s.size() > 1 && s[0] == '.' && digit(s[1])) {
    s.remove_prefix(1);
    std::string_view rest = s;
    if (!take_digits(rest, out.fraction, &out.scale)) return "it has too many decimals";
    if (s.size() - rest.size() > kMostDecimals) return "it has too many decimals";
    s = rest;
  }
  if (s.starts_with(':')) return "h:mm numbers of YAML 1.1 are not read";
  if (s.starts_with('e') || s.starts_with('E') || s.starts_with('^') || s.starts_with("**")) return "powers of ten are not read";
  out.unit = trimmed(s);
  return {};
}

/// whole.fraction * unit, rounded down; nothing when it passes 2^62. `exact`: the fraction must give a whole number.
std::optional<std::int64_t> scaled(const Decimal& d, std::int64_t unit, bool exact) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  if (d.whole > kMost / unit) return std::nullopt;
  const std::int64_t part = d.fraction * unit;
  if (exact && part % d.scale != 0) return std::nullopt;
  const std::int64_t sum = d.whole * unit + part / d.scale;
  return sum > kMost ? std::nullopt : std::optional(sum);
}

template <std::size_t N>
const Unit* unit_of(const std::array<Unit, N>& units, std::string_view name) {
  for (const auto& unit : units)
    if (unit.name == name) return &unit;
  return nullptr;
}

}  // namespace

Said<std::int64_t> read_count(std::string_view text) {
  Decimal d;
  if (auto why = take_decimal(trimmed(text), d); !why.empty()) return {std::nullopt, std::move(why)};
  if (unit_of(kByteUnits, d.unit) != nullptr) return {std::nullopt, fmt::format("'{}' is a unit of bytes", d.unit)};
  const Unit* unit = unit_of(kCountUnits, d.unit);
  if (!d.unit.empty() && unit == nullptr)
    return {std::nullopt, fmt::format("unknown unit '{}'; k is 1024, m is 1048576", d.unit)};
  const std::int64_t factor = unit == nullptr ? 1 : unit->size;
  if (d.fraction * factor % d.scale != 0) return {std::nullopt, "it is not a whole number"};
  const auto value = scaled(d, factor, true);
  return value ? Said<std::int64_t>{value, {}} : Said<std::int64_t>{std::nullopt, std::string(kTooLarge)};
}

Said<Bytes> read_bytes(std::string_view text) {
  Decimal d;
  if (auto why = take_decimal(trimmed(text), d); !why.empty()) return {std::nullopt, std::move(why)};
  if (d.unit.empty() && d.whole == 0 && d.fraction == 0) return {0, {}};
  if (d.unit.empty()) return {std::nullopt, "the unit is missing: B, KiB, MiB, GiB, TiB (or KB, MB, GB, TB)"};
  const Unit* unit = unit_of(kByteUnits, d.unit);
  if (unit == nullptr)
    return {std::nullopt, fmt::format("unknown unit '{}': it is one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB", d.unit)};
  const auto value = scaled(d, unit->size, false);
  return value ? Said<Bytes>{value, {}} : Said<Bytes>{std::nullopt, std::string(kTooLarge)};
}

Said<double> read_number(std::string_view text) {
  const std::string_view s = trimmed(text);
  const std::string_view body = s.starts_with('-') || s.starts_with('+') ? s.substr(1) : s;
  if (body.empty() || !(digit(body[0]) || (body[0] == '.' && body.size() > 1 && digit(body[1]))))
    return {std::nullopt, why_not_a_number(body)};
  double value = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (error == std::errc::result_out_of_range) return {std::nullopt, std::string(kTooLarge)};
  if (error != std::errc{} || end != body.data() + body.size()) return {std::nullopt, "it is not a decimal number"};
  if (!std::isfinite(value)) return {std::nullopt, "it is not finite"};
  return {s.starts_with('-') ? -value : value, {}};
}

Said<bool> read_flag(std::string_view text) {
  struct Word {
    std::string_view small, title, capital;
    bool value;
  };
  constexpr std::array<Word, 6> kWords{{{"true", "True", "TRUE", true},
                                        {"false", "False", "FALSE", false},
                                        {"yes", "Yes", "YES", true},
                                        {"no", "No", "NO", false},
                                        {"on", "On", "ON", true},
                                        {"off", "Off", "OFF", false}}};
  const std::string_view s = trimmed(text);
  for (const auto& word : kWords)
    if (s == word.small || s == word.title || s == word.capital) return {word.value, {}};
  return {std::nullopt, {}};
}

std::string bytes_text(Bytes n) {
  const Bytes size = n < 0 ? -n : n;
  for (const auto& [name, unit] : {Unit{"GiB", kGiB}, Unit{"MiB", kMiB}, Unit{"KiB", kKiB}})
    if (size >= unit) return fmt::format("{:.2f} {}", static_cast<double>(n) / static_cast<double>(unit), name);
  return fmt::format("{} B", n);
}

std::string exact_bytes_text(Bytes n) {
  if (n == 0) return "0";
  for (const auto& [name, unit] : {Unit{"GiB", kGiB}, Unit{"MiB", kMiB}, Unit{"KiB", kKiB}})
    if (n % unit == 0) return fmt::format("{}{}", n / unit, name);
  return fmt::format("{}B", n);
}

std::string count_text(std::int64_t n) {
  if (n != 0 && n % kMiB == 0) return fmt::format("{}m", n / kMiB);
  if (n != 0 && n % kKiB == 0) return fmt::format("{}k", n / kKiB);
  return fmt::format("{}", n);
}

std::string number_text(double x) { return fmt::format("{}", x); }

}  // namespace oomplan
