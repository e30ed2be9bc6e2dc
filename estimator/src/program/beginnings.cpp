#include "program/beginnings.hpp"

#include <algorithm>

namespace oomplan {

void Beginnings::narrow(Bytes low, Bytes high) {
  low_ = low;
  high_ = high;
  forget();
}

const SharedRun* Beginnings::of(Bytes device_limit) const {
  const SharedRun* furthest = nullptr;
  for (const auto& run : kept_)
    if (run->granted() <= device_limit && device_limit < run->refused() && (!furthest || run->passed() > furthest->passed()))
      furthest = run.get();
  return furthest;
}

void Beginnings::start(const SharedRun& run) { last_ = run.played(); }

void Beginnings::look(const SharedRun& run) {
  constexpr std::int64_t kLeast = 8192, kPerBlock = 16;
  const std::int64_t played = run.played() - last_;
  if (played < kLeast || played < kPerBlock * static_cast<std::int64_t>(run.blocks())) return;
  last_ = run.played();
  kept_.push_back(std::make_unique<SharedRun>(run));
  if (!too_many()) return;
  forget();
  while (too_many()) {  // every second one, and the last stays
    std::size_t i = kept_.size();
    std::erase_if(kept_, [&](const auto&) { return --i % 2 == 1; });
  }
}

/// A block takes some 100 bytes.
bool Beginnings::too_many() const {
  constexpr std::size_t kMost = 8, kMostBlocks = 200'000;
  std::size_t blocks = 0;
  for (const auto& run : kept_) blocks += run->blocks();
  return kept_.size() > 1 && (kept_.size() > kMost || blocks > kMostBlocks);
}

/// Drops what serves no size, and what stands behind a run that serves all.
void Beginnings::forget() {
  std::int64_t all = -1;  // how far the furthest stands that serves all
  for (const auto& run : kept_)
    if (run->granted() <= low_ + 1 && run->refused() > high_) all = std::max(all, run->passed());
  std::erase_if(kept_, [&](const auto& run) {
    const bool serves = run->granted() <= high_ && run->refused() > low_ + 1;
    const bool serves_all = run->granted() <= low_ + 1 && run->refused() > high_;
    return !serves || run->passed() < all || (run->passed() == all && !serves_all);
  });
}

}  // namespace oomplan
