#include "estimate/process_store.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace oomplan {
namespace {

std::vector<std::unique_ptr<ProcessReading>> readings(const GpuSource& source) {
  std::vector<std::unique_ptr<ProcessReading>> out;
  for (const auto& p : source.processes)
    out.push_back(p.replayed ? std::make_unique<ProcessReading>(p.program, p.history) : nullptr);
  return out;
}

}  // namespace

ProcessReading::ProcessReading(std::shared_ptr<const Program> program, const std::shared_ptr<const Program>& history)
    : program_(std::move(program)), flat_(*history, history == program_ ? &ledgers_ : nullptr) {
  if (program_ && history != program_) FlatProgram(*program_, &ledgers_);
}

const std::vector<LiveTensor>& ProcessReading::live() {
  if (!live_known_) live_ = trace(*program_).live;
  live_known_ = true;
  return live_;
}

GpuReading::GpuReading(GpuSource source, const AllocatorSettings& settings)
    : source_(std::move(source)), settings_(settings), processes_(readings(source_)), replays_(shared(), settings_) {}

SharedGpu GpuReading::shared() const {
  SharedGpu out;
  for (std::size_t p = 0; p < processes_.size(); ++p)
    out.processes.push_back({processes_[p] ? &processes_[p]->flat() : nullptr, source_.processes[p].held});
  out.turns = source_.turns;
  return out;
}

std::int64_t GpuReading::events_played() const {
  std::int64_t written = 0;  // that were written down
  for (const auto& process : processes_)
    if (process) written += std::ssize(process->flat().events);
  return written + replays_.events_played();
}

GpuReading& ProcessStore::get(GpuSource source, const AllocatorSettings& settings) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const GpuReading& r) { return r.is_of(source, settings); });
  if (known != known_.end()) {
    known_.splice(known_.begin(), known_, known);
    return known_.front();
  }
  if (known_.size() >= most_) {
    forgotten_ += known_.back().events_played();
    known_.pop_back();
  }
  return known_.emplace_front(std::move(source), settings);
}

std::int64_t ProcessStore::events_played() const {
  return std::accumulate(known_.begin(), known_.end(), forgotten_,
                         [](std::int64_t sum, const GpuReading& r) { return sum + r.events_played(); });
}

}  // namespace oomplan
