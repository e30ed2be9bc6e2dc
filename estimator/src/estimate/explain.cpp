// explain() and program(): the same turns written down as Programs, one per process, then traced and replayed.
#include <algorithm>

#include "estimate/assemble.hpp"
#include "estimate/explain.hpp"
#include "program/ledger.hpp"
#include "program/replay.hpp"

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

/// On a device without a limit.
AllocatorSettings settings_of(const Job& job, const GpuAnswer& answer) {
  AllocatorSettings settings;
  settings.expandable_segments = job.expandable_segments;
  settings.device_total = answer.usable;
  return settings;
}

/// The class of GPUs that lacks most, by the fold's figures. REQUIRES: there is one.
std::size_t fullest_class(const Assembled& a) {
  const auto short_of = [&](std::size_t c) {
    const GpuAnswer& g = a.estimate.gpus[c];
    return g.phases.empty() ? -g.usable : g.phases[g.worst].usage.capacity_needed - g.usable;
  };
  std::size_t worst = 0;
  for (std::size_t c = 1; c < a.classes.size(); ++c)
    if (short_of(c) > short_of(worst)) worst = c;
  return worst;
}

void explain_class(Assembled& a, std::size_t c, const Job& job) {
  GpuAnswer& answer = a.estimate.gpus[c];
  const ClassFold& fold = a.folds[c];
  for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
    const Program program = write_process(a, c, p, 1);
    const FlatProgram flat(write_process(a, c, p, kReplayedMicroBatches));
    AllocatorSettings settings = settings_of(job, answer);
    const Replay roomy = replay(flat, settings);
    put_replay(answer, fold, roomy);
    const auto ledgers = ledger_by_phase(program);
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
    const Bytes needed = needed_capacity(flat, settings, &roomy);
    if (needed > 0) m.usage.capacity_needed = std::max(m.usage.capacity_needed, needed + fold.phases[worst].others);
    settings.device_limit = std::max<Bytes>(0, answer.usable - others);
    // A device that was never asked for more than it has is any device.
    m.allocator_retries = roomy.ok && roomy.device_peak <= settings.device_limit ? roomy.retries : replay(flat, settings).retries;
    const Trace t = trace(program);
    m.live = t.live;
    if (m.live.size() > kLiveRows) m.live.resize(kLiveRows);
  }
  for (std::size_t i = 0; i < answer.phases.size(); ++i)
    if (answer.phases[i].usage.capacity_needed > answer.phases[answer.worst].usage.capacity_needed) answer.worst = i;
}

}  // namespace

Program write_process(const Assembled& a, std::size_t c, std::size_t process, std::int64_t inner) {
  const GpuClass& cls = a.classes[c];
  ProgramWriter w;
  std::vector<std::unique_ptr<TrainerProgram<ProgramWriter>>> trainers(cls.seats.size());
  std::vector<std::unique_ptr<ServerProgram<ProgramWriter>>> servers(cls.seats.size());
  for (std::size_t i = 0; i < cls.seats.size(); ++i) {
    const auto& seat = cls.seats[i];
    const RoleRun& run = a.runs[seat.role];
    if (seat.process != process) continue;
    const std::size_t rank = seat.seat.sender ? 0 : 1;
    const Mark mark = [&w, &run](PhaseKind phase) { w.mark(run.role->name + "." + std::string(phase_word(phase))); };
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
  for (int i = 0; i < 2; ++i)
    for (const auto& s : a.timeline.iteration) play(s);
  return w.take();
}

Estimate explain(const Job& job, const Catalog* catalog) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  for (std::size_t c = 0; c < a.classes.size(); ++c) explain_class(a, c, job);
  a.estimate.explained = true;
  worst_first(a.estimate, job);
  return std::move(a.estimate);
}

ProcessRun fullest_run(const Job& job, const Catalog& catalog, TapeStore& store) {
  const Assembled a = assemble(job, catalog, store);
  if (a.classes.empty()) throw InputError(Problem{{}, "a job without GPUs", "one whose run can be written", "", ""});
  const std::size_t c = fullest_class(a);
  const GpuAnswer& answer = a.estimate.gpus[c];
  GpuClass alone = a.classes[c];
  std::size_t process = 0;
  for (const auto& seat : alone.seats)
    if (!answer.phases.empty() && job.roles[seat.role].name == answer.phases[answer.worst].role) process = seat.process;
  std::erase_if(alone.seats, [&](const SeatOnGpu& seat) { return seat.process != process; });
  return {ranks_text(job, alone), write_process(a, c, process, kReplayedMicroBatches), settings_of(job, answer)};
}

Estimate explain_worst(const Job& job, const Catalog& catalog, TapeStore& store) {
  Assembled a = assemble(job, catalog, store);
  if (!a.classes.empty()) explain_class(a, fullest_class(a), job);
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
