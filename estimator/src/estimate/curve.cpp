#include "estimate/curve.hpp"

#include <algorithm>

namespace oomplan {
namespace {

/// Highest of each equal share of `levels`.
std::vector<Bytes> highest_of_shares(const std::vector<Bytes>& levels) {
  const std::size_t shares = std::min(levels.size(), kLevelsOfAStretch);
  std::vector<Bytes> out;
  for (std::size_t i = 0; i < shares; ++i) {
    const auto at = [&](std::size_t share) {
      return levels.begin() + static_cast<std::ptrdiff_t>(share * levels.size() / shares);
    };
    out.push_back(*std::max_element(at(i), at(i + 1)));
  }
  return out;
}

}  // namespace

std::vector<Stretch> stretches(const Program& program, std::size_t from) {
  std::vector<Stretch> out;
  std::vector<Bytes> levels;
  Bytes level = 0;
  std::size_t marks = 0;
  const auto end_stretch = [&] {
    if (out.empty()) return;
    out.back().levels = highest_of_shares(levels);
    levels.clear();
  };
  expand(program, [&](const Event& e) {
    if (e.kind != Program::Kind::mark && !changes_levels(e.kind)) return true;
    if (e.kind != Program::Kind::mark) {
      const bool adds = e.kind == Program::Kind::alloc || e.kind == Program::Kind::resume;
      if (on_device(e.pool)) level += adds ? e.bytes : -e.bytes;
      if (!out.empty()) levels.push_back(level);
      return true;
    }
    if (marks++ < from) return true;
    if (!out.empty() && out.back().phase == program.labels[static_cast<std::size_t>(e.site)]) return true;  // it goes on
    end_stretch();
    out.push_back({program.labels[static_cast<std::size_t>(e.site)], {}});
    levels.push_back(level);
    return true;
  });
  end_stretch();
  return out;
}

}  // namespace oomplan
