#include "estimate/replayed_class.hpp"

#include "estimate/beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <utility>

#include "program/events.hpp"

namespace oomplan {
namespace {

constexpr std::size_t kLiveRows = 40;
/// Events of a process that are replayed within about a second. Only a head that works row by row makes more.
constexpr std::int64_t kMostReplayedEvents = 2'000'000;

/// Index of the phase with this label; the number of phases when there is none.
std::size_t phase_at(const GpuAnswer& answer, std::string_view label) {
  const auto found = std::find_if(answer.phases.begin(), answer.phases.end(), [&](const Moment& m) { return m.phase == label; });
  return static_cast<std::size_t>(found - answer.phases.begin());
}

Bytes highest_level(const std::vector<PhaseLedger>& ledgers, std::string_view label) {
  for (const auto& ledger : ledgers)
    if (ledger.phase == label) return ledger.peak;
  return 0;
}

void raise(Bytes& figure, Bytes to) { figure = std::max(figure, to); }

/// The programs of the class, and which process is at work when. `levels`: also those without the allocator's history.
GpuSource source_of(const Assembled& a, std::size_t c, bool levels) {
  const ClassFold& fold = a.folds[c];
  const std::size_t processes = a.classes[c].processes;
  GpuSource out;
  for (std::size_t p = 0; p < processes; ++p) {
    const auto written = [&](std::int64_t inner) {
      return std::make_shared<const Program>(write_process(a, c, p, inner, 2, nullptr, processes > 1));
    };
    GpuSource::Process process{nullptr, written(kReplayedMicroBatches)};
    if (levels) process.program = inner_micro_batches(a, c, p) <= 1 ? process.history : written(1);
    if (count_events(*process.history, kMostReplayedEvents) >= kMostReplayedEvents) {
      process = {nullptr, nullptr, false, {}};
      for (const TurnFigure& turn : fold.turns)
        if (turn.process == p) process.held.push_back(turn.held);
    }
    out.processes.push_back(std::move(process));
  }
  for (const TurnFigure& turn : fold.turns) out.turns.push_back(turn.process);
  if (out.turns.empty()) out.turns.push_back(0);
  return out;
}

bool replayed(const GpuSource::Process& p) { return p.replayed; }

/// Sets what the phases take on the device of a replay.
void put_held(GpuAnswer& answer, const ClassFold& fold, const SharedReplay& replay) {
  for (const Replay& process : replay.processes)
    for (const PhaseReplay& phase : process.phases)
      if (const std::size_t i = phase_at(answer, phase.phase); i < answer.phases.size()) {
        answer.phases[i].usage.allocated = phase.allocated_peak;
        answer.phases[i].usage.reserved = phase.reserved_peak;
      }
  for (const TurnReplay& turn : replay.turns)
    for (const PhaseReplay& phase : turn.phases)
      if (const std::size_t i = phase_at(answer, phase.phase); i < answer.phases.size())
        raise(answer.phases[i].usage.device, phase.device_peak + turn.beside);
  for (const PhaseInTurn& p : fold.in_turns)
    if (p.turn < replay.turns.size()) raise(answer.phases[p.phase].usage.device, p.device + replay.turns[p.turn].beside);
}

/// Processes that go through on this GPU, but only by giving cached blocks back: what they keep is what it lets them keep.
/// False: they need not, or do not go through.
bool put_limited(GpuAnswer& answer, const ClassFold& fold, const SharedReplay& here) {
  if (!here.ok || std::none_of(here.processes.begin(), here.processes.end(), [](const Replay& r) { return r.retries > 0; }))
    return false;
  for (std::size_t i = 0; i < answer.phases.size(); ++i) answer.phases[i].usage.device = fold.phases[i].device;
  put_held(answer, fold, here);
  return true;
}

/// Of the process's phases the one that needs most; the number of phases when it has none.
std::size_t worst_of(const GpuAnswer& answer, const std::vector<PhaseLedger>& ledgers) {
  std::size_t worst = answer.phases.size();
  for (const auto& ledger : ledgers) {
    const std::size_t i = phase_at(answer, ledger.phase);
    if (i == answer.phases.size()) continue;
    if (worst == answer.phases.size() || answer.phases[i].usage.capacity_needed > answer.phases[worst].usage.capacity_needed)
      worst = i;
  }
  return worst;
}

/// Sets what the phases need: the level of each, beside what the other processes keep on the smallest device that does; and the
/// whole of that device in the phase that runs out on a smaller one. False: it is known that the GPU is too small, and nothing
/// else was asked.
bool put_needed(GpuAnswer& answer, const ClassFold& fold, Replays& replays, Explain what) {
  const Bytes most = what == Explain::all ? std::numeric_limits<Bytes>::max() : answer.usable;
  auto needed = replays.needed_capacity(most);
  if (needed && *needed <= answer.usable && !replays.at(answer.usable).ok) needed = replays.needed_capacity(most, answer.usable);
  if (!needed) return false;
  if (*needed <= 0 || answer.phases.empty()) return true;
  const SharedReplay& enough = replays.at(*needed);
  for (const PhaseInTurn& p : fold.in_turns)
    if (p.turn < enough.turns.size()) raise(answer.phases[p.phase].usage.capacity_needed, p.level + enough.turns[p.turn].beside);
  const SharedReplay& short_of = replays.at(*needed - 2 * kMiB);
  std::size_t at = answer.phases.size();
  if (!short_of.ok) at = phase_at(answer, short_of.processes[short_of.failed_process].failed_phase);
  if (at == answer.phases.size()) at = answer.worst;
  raise(answer.phases[at].usage.capacity_needed, *needed);
  return what == Explain::all || answer.phases[at].usage.capacity_needed <= answer.usable;
}

/// What lives at the highest moment of a phase of the process.
void put_live(Moment& m, ProcessReading& process, std::int64_t retries, bool lists) {
  m.allocator_retries = retries;
  if (!lists) return;
  Bytes highest = 0;
  for (const auto& ledger : process.ledgers()) raise(highest, ledger.peak);
  m.live = highest_level(process.ledgers(), m.phase) == highest ? process.live() : process.live_in(m.phase);
  if (m.live.size() > kLiveRows) m.live.resize(kLiveRows);
}

}  // namespace

AllocatorSettings settings_of(const Job& job, const GpuAnswer& answer) {
  AllocatorSettings settings;
  settings.expandable_segments = job.expandable_segments;
  // ranges of expandable segments are as large as the device and an eighth: what does not fit there is judged on a larger one
  Bytes highest = 0;
  for (const Moment& phase : answer.phases) highest = std::max(highest, phase.usage.capacity_needed);
  settings.device_total = std::max(answer.usable, highest);
  return settings;
}

std::optional<RunsOut> runs_out(const Assembled& a, std::size_t c, const Job& job) {
  const GpuAnswer& answer = a.estimate.gpus[c];
  const GpuSource source = source_of(a, c, false);
  std::deque<FlatProgram> programs;
  SharedGpu gpu{{}, source.turns};
  for (const auto& p : source.processes)
    gpu.processes.push_back({p.replayed ? &programs.emplace_back(*p.history) : nullptr, p.held});
  AllocatorSettings settings = settings_of(job, answer);
  settings.device_limit = answer.usable;
  const SharedReplay run = replay(gpu, settings);
  if (run.ok) return std::nullopt;
  const Replay& failed = run.processes[run.failed_process];
  return RunsOut{failed.failed_phase, failed.failed_bytes};
}

bool runs_through(const Assembled& a, std::size_t c, const Job& job) { return !runs_out(a, c, job); }

namespace {

/// What is read of the class; nullptr: none of its processes is replayed. What is not replayed is said.
/// `levels`: of more than the allocator's history.
GpuReading* reading_of(Assembled& a, std::size_t c, const Job& job, ProcessStore& processes, bool levels) {
  const GpuAnswer& answer = a.estimate.gpus[c];
  GpuSource source = source_of(a, c, levels);
  if (!std::all_of(source.processes.begin(), source.processes.end(), replayed)) {
    a.estimate.replayed = false;
    a.estimate.notes.push_back({Note::Level::info,
                                {},
                                fmt::format("{}: a process with {} million allocations and frees is not replayed; what is "
                                            "reserved and needed there are lower bounds",
                                            answer.ranks, kMostReplayedEvents / 1'000'000)});
  }
  if (std::none_of(source.processes.begin(), source.processes.end(), replayed)) return nullptr;
  return &processes.get(std::move(source), settings_of(job, answer));
}

/// What the class can need at most: what it takes where nothing makes it give anything back.
Bytes bound_of(const GpuAnswer& answer, const ClassFold& fold, const SharedReplay& roomy) {
  Bytes most = std::max(roomy.device_peak, lack_of(answer) + answer.usable);
  for (const PhaseInTurn& p : fold.in_turns)
    if (p.turn < roomy.turns.size()) raise(most, p.level + roomy.turns[p.turn].beside);
  return most;
}

/// Without `levels` what every phase needs, and nothing of what it is made of.
bool explain_reading(Assembled& a, std::size_t c, const Job& job, GpuReading& reading, Explain what, bool lists,
                     bool levels = true) {
  GpuAnswer& answer = a.estimate.gpus[c];
  const ClassFold& fold = a.folds[c];
  put_held(answer, fold, reading.replays().roomy());
  const std::size_t several = a.classes[c].processes;
  std::vector<std::size_t> by_level(several, answer.phases.size());  // the worst phases of the processes before the replay
  for (std::size_t p = 0; p < several; ++p) {
    const ProcessReading* process = reading.process(p);
    if (process == nullptr || !levels) continue;
    by_level[p] = worst_of(answer, process->ledgers());
    for (const auto& ledger : process->ledgers())
      if (const std::size_t i = phase_at(answer, ledger.phase); i < answer.phases.size())
        answer.phases[i].usage.by_category = ledger.by_category;
  }
  if (!put_needed(answer, fold, reading.replays(), what)) return false;
  const SharedReplay& here = reading.replays().at(answer.usable);
  const bool limited = put_limited(answer, fold, here);
  if (several > 1 && what == Explain::all && levels)
    put_beside(answer, a, c, job, reading, limited ? here : reading.replays().roomy());
  for (std::size_t p = 0; p < several; ++p) {
    ProcessReading* process = reading.process(p);
    if (process == nullptr || by_level[p] == answer.phases.size()) continue;
    const std::int64_t retries = reading.replays().at(answer.usable).processes[p].retries;
    put_live(answer.phases[by_level[p]], *process, retries, lists);
    if (const std::size_t worst = worst_of(answer, process->ledgers()); worst != by_level[p])
      put_live(answer.phases[worst], *process, retries, lists);
  }
  for (std::size_t i = 0; i < answer.phases.size(); ++i)
    if (answer.phases[i].usage.capacity_needed > answer.phases[answer.worst].usage.capacity_needed) answer.worst = i;
  return what == Explain::all || answer.phases.empty() || answer.phases[answer.worst].usage.capacity_needed <= answer.usable;
}

}  // namespace

bool explain_class(Assembled& a, std::size_t c, const Job& job, ProcessStore& processes, Explain what, bool lists) {
  GpuReading* reading = reading_of(a, c, job, processes, true);
  return reading == nullptr || explain_reading(a, c, job, *reading, what, lists);
}

Bytes lack_of(const GpuAnswer& answer) {
  return answer.phases.empty() ? -answer.usable : answer.phases[answer.worst].usage.capacity_needed - answer.usable;
}

std::vector<std::size_t> by_lack(const Assembled& a) {
  std::vector<std::size_t> order(a.classes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto lack = [&](std::size_t c) { return lack_of(a.estimate.gpus[c]); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return lack(x) > lack(y); });
  return order;
}

bool explain_if_above(Assembled& a, std::size_t c, const Job& job, ProcessStore& processes, Bytes most, Explain what,
                      bool lists) {
  const GpuAnswer& answer = a.estimate.gpus[c];
  GpuReading* reading = reading_of(a, c, job, processes, lists);
  if (reading == nullptr) return true;
  const SharedReplay& roomy = reading->replays().roomy();
  if (roomy.ok && bound_of(answer, a.folds[c], roomy) - answer.usable <= most) return true;
  return explain_reading(a, c, job, *reading, what, lists, lists);
}

}  // namespace oomplan
