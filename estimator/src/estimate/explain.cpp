// explain() and program(): the same turns written down as Programs, one per process, then traced and replayed.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "estimate/assemble.hpp"
#include "estimate/curve.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
#include "estimate/megatron_program.hpp"
#include "estimate/process_store.hpp"

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

/// What the replay of one process says, put into the moments of its phases. A server wakes twice in an iteration, with and
/// without its cache, and the others do not hold the same both times: what the allocator adds to the process's own level is
/// added to the highest of the sums, which the fold knows.
void put_replay(GpuAnswer& answer, const ClassFold& fold, const std::vector<PhaseLedger>& ledgers, const Replay& r) {
  for (const auto& phase : r.phases) {
    const std::size_t i = phase_at(answer, phase.phase);
    if (i == answer.phases.size()) continue;
    Usage& usage = answer.phases[i].usage;
    const Bytes added = std::max<Bytes>(0, phase.device_peak - highest_level(ledgers, phase.phase));
    usage.device = std::max(usage.device, std::min(phase.device_peak + fold.phases[i].others, usage.device + added));
    usage.allocated = phase.allocated_peak;
    usage.reserved = phase.reserved_peak;
  }
}

/// A process alone on its GPU that gives cached blocks back there: what it keeps is what this GPU lets it keep.
void put_limited(GpuAnswer& answer, const ClassFold& fold, const Replay& here) {
  for (const auto& phase : here.phases) {
    const std::size_t i = phase_at(answer, phase.phase);
    if (i == answer.phases.size()) continue;
    answer.phases[i].usage.reserved = phase.reserved_peak;
    answer.phases[i].usage.device = std::max(fold.phases[i].device, phase.device_peak);
  }
}

/// How far a class is explained.
enum class Explain : std::uint8_t {
  all,
  if_it_fits,  ///< the class that does not fit is left half explained
};

/// On a device without a limit.
AllocatorSettings settings_of(const Job& job, const GpuAnswer& answer) {
  AllocatorSettings settings;
  settings.expandable_segments = job.expandable_segments;
  settings.device_total = answer.usable;
  return settings;
}

/// Categories of the process's phases; which of them needs most. The number of phases when it has none of them.
std::size_t put_ledgers(GpuAnswer& answer, const std::vector<PhaseLedger>& ledgers) {
  std::size_t worst = answer.phases.size();
  for (const auto& ledger : ledgers) {
    const std::size_t i = phase_at(answer, ledger.phase);
    if (i == answer.phases.size()) continue;
    answer.phases[i].usage.by_category = ledger.by_category;
    if (worst == answer.phases.size() || answer.phases[i].usage.capacity_needed > answer.phases[worst].usage.capacity_needed)
      worst = i;
  }
  return worst;
}

/// What the allocator adds to the levels counts in the phase that runs out on a smaller device, which `at` becomes. False: that
/// is more than the GPU has, and was to be known only.
bool put_needed(GpuAnswer& answer, ProcessReading& process, std::size_t worst, Explain what, std::size_t& at) {
  Replays& replays = process.replays();
  Bytes beside = std::numeric_limits<Bytes>::max();  // at least what the others hold, whichever phase runs out
  for (const auto& ledger : process.ledgers())
    if (const std::size_t i = phase_at(answer, ledger.phase); i < answer.phases.size())
      beside = std::min(beside, answer.phases[i].usage.capacity_needed - ledger.peak);
  const Bytes most = what == Explain::all ? std::numeric_limits<Bytes>::max() : answer.usable - beside;
  const auto needed = replays.needed_capacity(most);
  if (!needed) return false;
  if (*needed <= 0) return true;
  const Replay& short_of = replays.at(*needed - 2 * kMiB);
  at = short_of.ok ? worst : phase_at(answer, short_of.failed_phase);
  if (at == answer.phases.size()) at = worst;
  Moment& m = answer.phases[at];
  m.usage.capacity_needed += std::max<Bytes>(0, *needed - highest_level(process.ledgers(), m.phase));
  return what == Explain::all || m.usage.capacity_needed <= answer.usable;
}

/// False: it was to be explained if it fits, and does not.
bool explain_class(Assembled& a, std::size_t c, const Job& job, ProcessStore& processes, Explain what = Explain::all) {
  GpuAnswer& answer = a.estimate.gpus[c];
  const ClassFold& fold = a.folds[c];
  for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
    Program program = write_process(a, c, p, 1), history = write_process(a, c, p, kReplayedMicroBatches);
    if (count_events(history, kMostReplayedEvents) >= kMostReplayedEvents) {
      a.estimate.replayed = false;
      a.estimate.notes.push_back({Note::Level::info,
                                  {},
                                  fmt::format("{}: a process with {} million allocations and frees is not replayed; what is "
                                              "reserved and needed there are lower bounds",
                                              answer.ranks, kMostReplayedEvents / 1'000'000)});
      continue;
    }
    ProcessReading& process = processes.get(std::move(program), std::move(history), settings_of(job, answer));
    put_replay(answer, fold, process.ledgers(), process.replays().roomy());
    const std::size_t worst = put_ledgers(answer, process.ledgers());
    if (worst == answer.phases.size()) continue;
    std::size_t at = worst;
    if (!put_needed(answer, process, worst, what, at)) return false;
    Bytes others = 0;
    for (const auto& ledger : process.ledgers())
      if (const std::size_t i = phase_at(answer, ledger.phase); i < answer.phases.size())
        others = std::max(others, fold.phases[i].others);
    const Replay& here = process.replays().at(std::max<Bytes>(0, answer.usable - others));
    const std::int64_t retries = here.retries;
    if (here.ok && retries > 0 && a.classes[c].processes == 1) put_limited(answer, fold, here);
    if (at != worst) answer.phases[at].live = process.live_in(answer.phases[at].phase);
    answer.phases[worst].live = process.live();
    for (const std::size_t i : {worst, at}) {
      Moment& m = answer.phases[i];
      m.allocator_retries = retries;
      if (m.live.size() > kLiveRows) m.live.resize(kLiveRows);
    }
  }
  for (std::size_t i = 0; i < answer.phases.size(); ++i)
    if (answer.phases[i].usage.capacity_needed > answer.phases[answer.worst].usage.capacity_needed) answer.worst = i;
  return true;
}

/// The process of a role on the GPUs of a class.
std::size_t process_of(const GpuClass& cls, const Job& job, const std::string& role) {
  for (const auto& seat : cls.seats)
    if (job.roles[seat.role].name == role) return seat.process;
  return 0;
}

void draw_curve(Assembled& a, std::size_t c, const Job& job) {
  GpuAnswer& answer = a.estimate.gpus[c];
  if (answer.phases.empty()) return;
  const std::size_t process = process_of(a.classes[c], job, answer.phases[answer.worst].role);
  std::size_t second = 0;
  const Program run = write_process(a, c, process, 1, 2, &second);
  answer.curve = stretches(run, second);
}

/// The class that lacks most, or has least left; -1 when there is none.
std::ptrdiff_t fullest(const Assembled& a) {
  const auto short_of = [&](std::ptrdiff_t c) {
    const GpuAnswer& g = a.estimate.gpus[static_cast<std::size_t>(c)];
    return g.phases.empty() ? -g.usable : g.phases[g.worst].usage.capacity_needed - g.usable;
  };
  std::ptrdiff_t worst = a.classes.empty() ? -1 : 0;
  for (std::ptrdiff_t c = 1; c < std::ssize(a.classes); ++c)
    if (short_of(c) > short_of(worst)) worst = c;
  return worst;
}

}  // namespace

Program write_process(const Assembled& a, std::size_t c, std::size_t process, std::int64_t inner, int iterations,
                      std::size_t* last) {
  const GpuClass& cls = a.classes[c];
  ProgramWriter w;
  std::size_t marks = 0;
  std::vector<std::unique_ptr<TrainerProgram<ProgramWriter>>> trainers(cls.seats.size());
  std::vector<std::unique_ptr<ServerProgram<ProgramWriter>>> servers(cls.seats.size());
  std::vector<std::unique_ptr<MegatronProgram<ProgramWriter>>> megatrons(cls.seats.size());
  for (std::size_t i = 0; i < cls.seats.size(); ++i) {
    const auto& seat = cls.seats[i];
    const RoleRun& run = a.runs[seat.role];
    if (seat.process != process) continue;
    const std::size_t rank = seat.seat.sender ? 0 : 1;
    const Mark mark = [&w, &run, &marks](PhaseKind phase) {
      w.mark(run.role->name + "." + std::string(phase_word(phase)));
      ++marks;
    };
    if (run.role->serves())
      servers[i] = std::make_unique<ServerProgram<ProgramWriter>>(w, *a.folds[c].servers[seat.role],
                                                                  run.receive ? &*run.receive : nullptr, mark);
    else if (!run.megatron.empty())
      megatrons[i] = std::make_unique<MegatronProgram<ProgramWriter>>(w, run, seat.seat, mark);
    else
      trainers[i] =
          std::make_unique<TrainerProgram<ProgramWriter>>(w, run, seat.seat, run.send[rank] ? &*run.send[rank] : nullptr,
                                                          run.save[rank] ? &*run.save[rank] : nullptr, mark, inner);
  }
  const auto play = [&](const Step& s) {
    for (std::size_t i = 0; i < cls.seats.size(); ++i) {
      if (cls.seats[i].role != s.role) continue;
      if (trainers[i]) trainers[i]->step(s.kind);
      if (servers[i]) servers[i]->step(s.kind);
      if (megatrons[i]) megatrons[i]->step(s.kind);
    }
  };
  for (const auto& s : a.timeline.init) play(s);
  for (int i = 0; i < iterations; ++i) {
    if (last != nullptr) *last = marks;
    for (const auto& s : a.timeline.iteration) play(s);
  }
  return w.take();
}

void replay_classes(Assembled& a, const Job& job, bool lists) {
  ProcessStore processes;
  a.estimate.replayed = true;
  for (std::size_t c = 0; c < a.classes.size(); ++c) {
    explain_class(a, c, job, processes);
    if (lists && a.estimate.replayed) {
      draw_curve(a, c, job);
      continue;
    }
    for (auto& phase : a.estimate.gpus[c].phases) phase.live.clear();
  }
  a.estimate.explained = lists;
}

namespace {

Estimate replay_all(const Job& job, const Catalog* catalog, bool lists) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  replay_classes(a, job, lists);
  worst_first(a.estimate, job);
  if (a.estimate.replayed) judge_probability(a.estimate, job, false);
  return std::move(a.estimate);
}

}  // namespace

Estimate estimate_replayed(const Job& job, const Catalog* catalog) { return replay_all(job, catalog, false); }
Estimate explain(const Job& job, const Catalog* catalog) { return replay_all(job, catalog, true); }

ProcessRun fullest_run(const Job& job, const Catalog& catalog, TapeStore& store) {
  const Assembled a = assemble(job, catalog, store);
  const auto worst = fullest(a);
  if (worst < 0) throw InputError(Problem{{}, "a job without GPUs", "one whose run can be written", "", ""});
  const auto c = static_cast<std::size_t>(worst);
  const GpuAnswer& answer = a.estimate.gpus[c];
  GpuClass alone = a.classes[c];
  const std::size_t process = answer.phases.empty() ? 0 : process_of(alone, job, answer.phases[answer.worst].role);
  std::erase_if(alone.seats, [&](const SeatOnGpu& seat) { return seat.process != process; });
  return {ranks_text(job, alone), write_process(a, c, process, kReplayedMicroBatches), settings_of(job, answer)};
}

Estimate explain_worst(const Job& job, const Catalog& catalog, TapeStore& store) {
  Assembled a = assemble(job, catalog, store);
  ProcessStore processes;
  if (const auto worst = fullest(a); worst >= 0) explain_class(a, static_cast<std::size_t>(worst), job, processes);
  worst_first(a.estimate, job);
  judge_probability(a.estimate, job, true);
  return std::move(a.estimate);
}

std::optional<Estimate> explain_worst_if_it_fits(const Job& job, const Catalog& catalog, TapeStore& store,
                                                 ProcessStore& processes) {
  Assembled a = assemble(job, catalog, store);
  if (const auto worst = fullest(a); worst >= 0)
    if (!explain_class(a, static_cast<std::size_t>(worst), job, processes, Explain::if_it_fits)) return std::nullopt;
  worst_first(a.estimate, job);
  judge_probability(a.estimate, job, true);
  return std::move(a.estimate);
}

Program program(const Job& job, std::string_view role, const Catalog* catalog) {
  const Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  for (std::size_t c = 0; c < a.classes.size(); ++c)
    for (const auto& seat : a.classes[c].seats)
      if (job.roles[seat.role].name == role) return write_process(a, c, seat.process, 1);
  throw InputError(Problem{{"", 0, 0, std::string(role)}, "'" + std::string(role) + "'", "a role of the job", "", ""});
}

}  // namespace oomplan
