#include "estimate/process_store.hpp"

#include <algorithm>
#include <utility>

#include "program/trace.hpp"

namespace oomplan {

ProcessReading::ProcessReading(Program program, Program history, const AllocatorSettings& settings)
    : program_(std::move(program)),
      history_(std::move(history)),
      settings_(settings),
      events_(events_of(program_)),
      ledgers_(ledger_by_phase(program_, events_)),
      flat_(history_ == program_ ? FlatProgram(program_, events_) : FlatProgram(history_)),
      replays_(flat_, settings_) {}

const std::vector<LiveTensor>& ProcessReading::live() {
  if (!live_known_) live_ = trace(program_, events_).live;
  live_known_ = true;
  events_ = {};
  return live_;
}

ProcessReading& ProcessStore::get(Program program, Program history, const AllocatorSettings& settings) {
  const auto known =
      std::find_if(known_.begin(), known_.end(), [&](const ProcessReading& r) { return r.is_of(program, history, settings); });
  if (known != known_.end()) {
    known_.splice(known_.begin(), known_, known);
    return known_.front();
  }
  if (known_.size() >= kMost) known_.pop_back();
  return known_.emplace_front(std::move(program), std::move(history), settings);
}

}  // namespace oomplan
