// GPUs whose processes were read through the allocator, kept: candidates of a search often differ in GPUs other than the fullest.
//
// A store answers equal questions with the same reading. What it holds never changes an answer. It belongs to one search, and
// keeps the last few: a reading takes some megabytes.
#pragma once
#include <algorithm>
#include <list>
#include <memory>
#include <vector>

#include "program/ledger.hpp"
#include "program/replay.hpp"

namespace oomplan {

/// One process of a GPU: its levels and its history in the allocator.
class ProcessReading {
 public:
  /// `history`: the same process with the micro-batches that the allocator's history needs. `program`: nullptr where its levels
  /// are not asked for; then replays are all that there is.
  ProcessReading(std::shared_ptr<const Program> program, const std::shared_ptr<const Program>& history);
  ProcessReading(const ProcessReading&) = delete;
  ProcessReading& operator=(const ProcessReading&) = delete;

  const FlatProgram& flat() const { return flat_; }
  const std::vector<PhaseLedger>& ledgers() const { return ledgers_; }
  /// What lives at the highest moment; found at the first call.
  const std::vector<LiveTensor>& live();
  /// What lives at the highest moment of a phase.
  std::vector<LiveTensor> live_in(std::string_view phase) const { return live_in_phase(*program_, phase); }
  /// Device bytes per category behind each of its turns.
  std::vector<std::vector<Bytes>> at_turn_ends() const { return levels_at_turn_ends(*program_); }

 private:
  std::shared_ptr<const Program> program_;
  bool live_known_ = false;
  std::vector<LiveTensor> live_;
  std::vector<PhaseLedger> ledgers_;
  FlatProgram flat_;  ///< behind the ledgers, which are written with it
};

/// What there is to read of a GPU.
struct GpuSource {
  struct Process {
    std::shared_ptr<const Program> program, history;  ///< as for ProcessReading; the same one where the two are equal
    bool replayed = true;
    std::vector<Bytes> held = {};  ///< behind each of its turns, when it is not replayed
    /// What was read of this one answers for `o`, whose levels need not be asked for.
    bool answers(const Process& o) const {
      const auto same = [](const auto& x, const auto& y) { return x == y || (x && y && *x == *y); };
      return replayed == o.replayed && held == o.held && (!o.program || same(program, o.program)) && same(history, o.history);
    }
  };
  std::vector<Process> processes;
  std::vector<std::size_t> turns;  ///< numbers of processes, in order
  bool answers(const GpuSource& o) const {
    return turns == o.turns && std::equal(processes.begin(), processes.end(), o.processes.begin(), o.processes.end(),
                                          [](const Process& x, const Process& y) { return x.answers(y); });
  }
};

class GpuReading {
 public:
  GpuReading(GpuSource source, const AllocatorSettings& settings);
  bool is_of(const GpuSource& source, const AllocatorSettings& settings) const {
    return settings == settings_ && source_.answers(source);
  }
  /// Allocations and frees that were played, of all processes and replays.
  std::int64_t events_played() const;
  /// nullptr: it is not replayed.
  ProcessReading* process(std::size_t p) { return processes_[p].get(); }
  Replays& replays() { return replays_; }

 private:
  SharedGpu shared() const;
  GpuSource source_;
  AllocatorSettings settings_;
  std::vector<std::unique_ptr<ProcessReading>> processes_;
  Replays replays_;
};

class ProcessStore {
 public:
  ProcessStore() = default;
  /// Keeps so many readings.
  explicit ProcessStore(std::size_t most) : most_(most) {}
  /// The reference is good until the next call.
  GpuReading& get(GpuSource source, const AllocatorSettings& settings);
  /// Allocations and frees that were played for its answers: what they have cost.
  std::int64_t events_played() const;

 private:
  std::size_t most_ = 8;
  std::int64_t forgotten_ = 0;   ///< played for readings that are not kept
  std::list<GpuReading> known_;  ///< last used first
};

}  // namespace oomplan
