#include "units/enums.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace oomplan {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

/// Damerau's distance (insert, delete, replace, swap of neighbours), one row at a time.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0U : 1U)});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view text, const std::vector<std::string>& valid) {
  constexpr std::size_t kLongest = 80;  // longer words are not typing mistakes, and the distance is quadratic
  if (text.empty() || text.size() > kLongest) return {};
  std::size_t best = std::max<std::size_t>(2, text.size() / 3) + 1;
  std::string found;
  for (const auto& candidate : valid) {
    if (candidate.size() > kLongest) continue;
    const std::size_t d = distance(text, candidate);
    if (d < best) {
      best = d;
      found = candidate;
    }
  }
  return found;
}

std::string list_of(const std::vector<std::string>& items) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += i + 1 == items.size() ? " or " : ", ";
    out += items[i];
  }
  return out;
}

}  // namespace oomplan
