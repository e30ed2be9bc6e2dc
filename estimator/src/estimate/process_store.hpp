// Processes that were read through the allocator, kept: candidates of a search often differ in GPUs other than the fullest.
//
// A store answers equal questions with the same reading. What it holds never changes an answer. It belongs to one search, and
// keeps the last few: a reading takes some megabytes.
#pragma once
#include <list>

#include "program/ledger.hpp"
#include "program/replay.hpp"

namespace oomplan {

/// One process of a GPU: its levels and its history in the allocator.
class ProcessReading {
 public:
  /// `history`: the same process with the micro-batches that the allocator's history needs.
  ProcessReading(Program program, Program history, const AllocatorSettings& settings);
  ProcessReading(const ProcessReading&) = delete;
  ProcessReading& operator=(const ProcessReading&) = delete;

  bool is_of(const Program& program, const Program& history, const AllocatorSettings& settings) const {
    return settings == settings_ && history == history_ && program == program_;
  }
  Replays& replays() { return replays_; }
  const std::vector<PhaseLedger>& ledgers() const { return ledgers_; }
  /// What lives at the highest moment; found at the first call.
  const std::vector<LiveTensor>& live();
  /// What lives at the highest moment of a phase.
  std::vector<LiveTensor> live_in(std::string_view phase) const { return live_in_phase(program_, phase); }

 private:
  Program program_, history_;
  AllocatorSettings settings_;
  Events events_;  ///< of program_; empty once `live` is known
  bool live_known_ = false;
  std::vector<LiveTensor> live_;
  std::vector<PhaseLedger> ledgers_;
  FlatProgram flat_;
  Replays replays_;
};

class ProcessStore {
 public:
  /// The reference is good until the next call.
  ProcessReading& get(Program program, Program history, const AllocatorSettings& settings);

 private:
  static constexpr std::size_t kMost = 8;
  std::list<ProcessReading> known_;  ///< last used first
};

}  // namespace oomplan
