#include "frontends/unified_diff.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace oomplan {
namespace {

using Lines = std::vector<std::string_view>;  // each with its end

Lines lines_of(std::string_view text) {
  Lines out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size() - 1) + 1;
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

/// A stretch of lines that differ.
struct Edit {
  std::size_t a = 0, a_end = 0, b = 0, b_end = 0;
};

/// Lines come in pairs of runs: equal up to where they differ, then as few as possible until the next equal line of both. Not
/// the shortest of all scripts, but edits of a configuration are a few lines apart from each other.
std::vector<Edit> changes_of(const Lines& a, const Lines& b) {
  std::vector<Edit> out;
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      ++i, ++j;
      continue;
    }
    Edit c{i, a.size(), j, b.size()};
    // the nearest pair of equal lines, by how many lines are given up
    for (std::size_t skipped = 1; skipped <= a.size() - i + b.size() - j; ++skipped) {
      bool found = false;
      for (std::size_t from_a = 0; from_a <= skipped && !found; ++from_a) {
        const std::size_t x = i + from_a, y = j + (skipped - from_a);
        if (x < a.size() && y < b.size() && a[x] == b[y]) c = {i, x, j, y}, found = true;
      }
      if (found) break;
    }
    out.push_back(c);
    i = c.a_end, j = c.b_end;
  }
  return out;
}

void put(std::string& out, char sign, std::string_view line) {
  out += sign;
  out += line;
  if (!line.ends_with('\n')) out += "\n\\ No newline at end of file\n";
}

std::string range(std::size_t first, std::size_t count) {
  return count == 1 ? fmt::format("{}", first + 1) : fmt::format("{},{}", count == 0 ? first : first + 1, count);
}

}  // namespace

std::string unified_diff(const std::string& name, const std::string& before, const std::string& after) {
  constexpr std::size_t kContext = 3;
  const Lines a = lines_of(before), b = lines_of(after);
  const auto changes = changes_of(a, b);
  if (changes.empty()) return {};
  std::string out = fmt::format("--- {}\n+++ {}\n", name, name);
  for (std::size_t first = 0; first < changes.size();) {
    std::size_t last = first;
    while (last + 1 < changes.size() && changes[last + 1].a - changes[last].a_end <= 2 * kContext) ++last;
    const std::size_t lead = std::min(kContext, changes[first].a);
    const std::size_t tail = std::min(kContext, a.size() - changes[last].a_end);
    const std::size_t a0 = changes[first].a - lead, a1 = changes[last].a_end + tail;
    const std::size_t b0 = changes[first].b - lead, b1 = changes[last].b_end + tail;
    out += fmt::format("@@ -{} +{} @@\n", range(a0, a1 - a0), range(b0, b1 - b0));
    std::size_t i = a0;
    for (std::size_t k = first; k <= last; ++k) {
      for (; i < changes[k].a; ++i) put(out, ' ', a[i]);
      for (; i < changes[k].a_end; ++i) put(out, '-', a[i]);
      for (std::size_t j = changes[k].b; j < changes[k].b_end; ++j) put(out, '+', b[j]);
    }
    for (; i < a1; ++i) put(out, ' ', a[i]);
    first = last + 1;
  }
  return out;
}

}  // namespace oomplan
