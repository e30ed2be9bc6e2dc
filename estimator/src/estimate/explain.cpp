// explain() and program(): the same turns written down as Programs, one per process, then traced and replayed.
#include <algorithm>

#include "estimate/assemble.hpp"
#include "estimate/curve.hpp"
#include "estimate/explain.hpp"
#include "estimate/process_store.hpp"

namespace oomplan {
namespace {

constexpr std::size_t kLiveRows = 40;

/// What the replay of one process says, put into the moments of its phases.
void put_replay(GpuAnswer& answer, const ClassFold& fold, const Replay& r) {
  for (const auto& phase : r.phases) {
    for (std::size_t i = 0; i < answer.phases.size(); ++i) {
      Moment& m = answer.phases[i];
      if (m.phase != phase.phase) continue;
      m.usage.allocated = phase.allocated_peak;
      m.usage.reserved = phase.reserved_peak;
      m.usage.device = phase.device_peak + fold.phases[i].others;
    }
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

/// False: it was to be explained if it fits, and does not.
bool explain_class(Assembled& a, std::size_t c, const Job& job, ProcessStore& processes, Explain what = Explain::all) {
  GpuAnswer& answer = a.estimate.gpus[c];
  const ClassFold& fold = a.folds[c];
  for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
    ProcessReading& process =
        processes.get(write_process(a, c, p, 1), write_process(a, c, p, kReplayedMicroBatches), settings_of(job, answer));
    Replays& replays = process.replays();
    put_replay(answer, fold, replays.roomy());
    const auto& ledgers = process.ledgers();
    Bytes others = 0;
    std::size_t worst = answer.phases.size();
    for (std::size_t i = 0; i < answer.phases.size(); ++i) {
      const auto mine =
          std::find_if(ledgers.begin(), ledgers.end(), [&](const PhaseLedger& l) { return l.phase == answer.phases[i].phase; });
      if (mine == ledgers.end()) continue;
      answer.phases[i].usage.by_category = mine->by_category;
      others = std::max(others, fold.phases[i].others);
      if (worst == answer.phases.size() || answer.phases[i].usage.capacity_needed > answer.phases[worst].usage.capacity_needed)
        worst = i;
    }
    if (worst == answer.phases.size()) continue;
    Moment& m = answer.phases[worst];
    const Bytes beside = fold.phases[worst].others;
    const auto needed = what == Explain::all ? replays.needed_capacity() : replays.needed_capacity(answer.usable - beside);
    if (!needed) return false;
    if (*needed > 0) m.usage.capacity_needed = std::max(m.usage.capacity_needed, *needed + beside);
    m.allocator_retries = replays.at(std::max<Bytes>(0, answer.usable - others)).retries;
    const auto& live = process.live();
    m.live.assign(live.begin(), live.begin() + static_cast<std::ptrdiff_t>(std::min(live.size(), kLiveRows)));
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
    }
  };
  for (const auto& s : a.timeline.init) play(s);
  for (int i = 0; i < iterations; ++i) {
    if (last != nullptr) *last = marks;
    for (const auto& s : a.timeline.iteration) play(s);
  }
  return w.take();
}

namespace {

Estimate replay_all(const Job& job, const Catalog* catalog, bool lists) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  ProcessStore processes;
  for (std::size_t c = 0; c < a.classes.size(); ++c) {
    explain_class(a, c, job, processes);
    if (lists) {
      draw_curve(a, c, job);
      continue;
    }
    for (auto& phase : a.estimate.gpus[c].phases) phase.live.clear();
  }
  a.estimate.explained = lists;
  a.estimate.replayed = true;
  worst_first(a.estimate, job);
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
  return std::move(a.estimate);
}

std::optional<Estimate> explain_worst_if_it_fits(const Job& job, const Catalog& catalog, TapeStore& store,
                                                 ProcessStore& processes) {
  Assembled a = assemble(job, catalog, store);
  if (const auto worst = fullest(a); worst >= 0)
    if (!explain_class(a, static_cast<std::size_t>(worst), job, processes, Explain::if_it_fits)) return std::nullopt;
  worst_first(a.estimate, job);
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
