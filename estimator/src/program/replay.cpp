#include "program/replay.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "program/beginnings.hpp"

namespace oomplan {

Replay replay(const FlatProgram& program, const AllocatorSettings& settings) {
  return std::move(replay(SharedGpu{{{&program}}, {0}}, settings).processes.front());
}
Replay replay(const Program& program, const AllocatorSettings& settings) { return replay(FlatProgram(program), settings); }

SharedReplay replay(const SharedGpu& gpu, const AllocatorSettings& settings) {
  return SharedRun(gpu, settings).finish(settings.device_limit, {});
}

// A run says more than what happens at its own limit. The device granted levels up to `device_peak` and refused those from
// `refused` on, so the run goes the same way at every limit from the one up to below the other: what was granted still is, what
// was refused still is. This holds for runs that failed as well.
const SharedReplay& Replays::at(Bytes limit) {
  for (const SharedReplay& r : known_)
    if (r.device_peak <= limit && (r.refused == 0 || limit < r.refused)) return r;
  const SharedRun* beginning = beginnings_ ? beginnings_->of(limit) : nullptr;
  SharedRun run = beginning != nullptr ? *beginning : SharedRun(gpu_, settings_);
  const std::int64_t before = run.played();
  ProcessPlayer::Between look;
  if (beginnings_) {
    beginnings_->start(run);
    look = [&] { beginnings_->look(run); };
  }
  SharedReplay& out = known_.emplace_back(run.finish(limit, look));
  played_ += run.played() - before;
  return out;
}

Replays::Replays(SharedGpu gpu, const AllocatorSettings& settings)
    : gpu_(std::move(gpu)), settings_(settings), beginnings_(std::make_unique<Beginnings>()) {
  for (const auto& process : gpu_.processes)
    if (process.program != nullptr) least_ = std::max(least_, process.program->peak);
  beginnings_->narrow(least_ - 1, std::numeric_limits<Bytes>::max());
}
Replays::~Replays() = default;

std::optional<Bytes> Replays::needed_capacity(Bytes most, Bytes fails) {
  if (!beginnings_) beginnings_ = std::make_unique<Beginnings>();
  const auto out = search(most, fails);
  beginnings_.reset();
  return out;
}

// Both ends of the search move to levels that occur. What is found lies above `low` at every moment: `low` fails.
std::optional<Bytes> Replays::search(Bytes most, Bytes fails) {
  constexpr Bytes kPage = 2 * kMiB;
  const SharedReplay& roomy = this->roomy();
  if (!roomy.ok) return -1;
  Bytes low = std::max(fails, least_ - 1);  // does not do
  while (true) {
    Bytes high = roomy.device_peak;  // does
    while (high - low > kPage) {
      beginnings_->narrow(low, high + kPage);
      const Bytes middle = low + (high - low) / 2;
      const SharedReplay& r = at(middle);
      (r.ok ? high : low) = r.ok ? r.device_peak : r.refused - 1;
      if (low >= most) return std::nullopt;
    }
    if (high == roomy.device_peak || at(high + kPage).ok) return high;
    low = high + kPage;
  }
}
Bytes needed_capacity(const FlatProgram& program, const AllocatorSettings& settings) {
  return *Replays(program, settings).needed_capacity();
}
Bytes needed_capacity(const Program& program, const AllocatorSettings& settings) {
  return needed_capacity(FlatProgram(program), settings);
}

}  // namespace oomplan
