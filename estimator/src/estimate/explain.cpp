// estimate(), explain() and program(): the same turns written down as Programs, one per process, then traced and replayed.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "estimate/assemble.hpp"
#include "estimate/curve.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
#include "estimate/generator_run.hpp"
#include "estimate/megatron_program.hpp"
#include "estimate/process_store.hpp"
#include "estimate/replayed_class.hpp"

namespace oomplan {
namespace {

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

/// The class that lacks most, or has least left; -1 when there is none. `shared`: of those with several processes.
std::ptrdiff_t fullest(const Assembled& a, bool shared = false) {
  const auto short_of = [&](std::ptrdiff_t c) {
    const GpuAnswer& g = a.estimate.gpus[static_cast<std::size_t>(c)];
    return g.phases.empty() ? -g.usable : g.phases[g.worst].usage.capacity_needed - g.usable;
  };
  std::ptrdiff_t worst = -1;
  for (std::ptrdiff_t c = 0; c < std::ssize(a.classes); ++c) {
    if (shared && a.classes[static_cast<std::size_t>(c)].processes < 2) continue;
    if (worst < 0 || short_of(c) > short_of(worst)) worst = c;
  }
  return worst;
}

/// A trainer that switches expandable segments off for its weight update alone: with its first one, behind the loads.
bool switches_segments(const Assembled& a, const GpuClass& cls, std::size_t process) {
  return std::any_of(cls.seats.begin(), cls.seats.end(), [&](const SeatOnGpu& seat) {
    const auto& send = a.runs[seat.role].send[seat.seat.sender ? 0 : 1];
    return seat.process == process && send && send->point.switches_segments;
  });
}

}  // namespace

Program write_process(const Assembled& a, std::size_t c, std::size_t process, std::int64_t inner, int iterations,
                      std::size_t* last, bool ends_turns) {
  const GpuClass& cls = a.classes[c];
  ProgramWriter w;
  std::size_t marks = 0;
  std::vector<std::unique_ptr<TrainerProgram<ProgramWriter>>> trainers(cls.seats.size());
  std::vector<std::unique_ptr<ServerProgram<ProgramWriter>>> servers(cls.seats.size());
  std::vector<std::unique_ptr<MegatronProgram<ProgramWriter>>> megatrons(cls.seats.size());
  for (std::size_t i = 0; i < cls.seats.size(); ++i) {
    const auto& seat = cls.seats[i];
    const RoleRun* const there = run_on(a.runs[seat.role], seat.seat.stage);
    if (seat.process != process || there == nullptr) continue;
    const RoleRun& run = *there;
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
  const bool switches = switches_segments(a, cls, process);
  const auto play = [&](const Step& s) {
    for (std::size_t i = 0; i < cls.seats.size(); ++i) {
      if (cls.seats[i].role != s.role) continue;
      if (switches && cls.seats[i].process == process && s.kind != StepKind::load)
        w.expandable_segments(s.kind != StepKind::send);
      if (trainers[i]) trainers[i]->step(s.kind);
      if (servers[i]) servers[i]->step(s.kind);
      if (megatrons[i]) megatrons[i]->step(s.kind);
      if (ends_turns && cls.seats[i].process == process) w.mark(kTurnEnd);
    }
  };
  for (const auto& s : a.timeline.init) play(s);
  for (int i = 0; i < iterations; ++i) {
    if (last != nullptr) *last = marks;
    for (const auto& s : a.timeline.iteration) play(s);
  }
  return w.take();
}

std::int64_t inner_micro_batches(const Assembled& a, std::size_t c, std::size_t process) {
  std::int64_t most = 0;
  for (const auto& seat : a.classes[c].seats) {
    const RoleRun& run = a.runs[seat.role];
    if (seat.process == process && !run.role->serves() && run.megatron.empty()) most = std::max(most, run.plan.micro_batches - 2);
  }
  return most;
}

void replay_classes(Assembled& a, const Job& job, bool lists, ProcessStore* known) {
  ProcessStore own(1);  // equal classes are one
  ProcessStore& processes = known != nullptr ? *known : own;
  a.estimate.replayed = true;
  for (std::size_t c = 0; c < a.classes.size(); ++c) {
    explain_class(a, c, job, processes, Explain::all, lists);
    if (lists && a.estimate.replayed) {
      draw_curve(a, c, job);
      continue;
    }
    for (auto& phase : a.estimate.gpus[c].phases) phase.live.clear();
  }
  a.estimate.explained = lists;
}

bool replay_fullest(Assembled& a, const Job& job, ProcessStore& known, std::int64_t most_events) {
  a.estimate.replayed = true;
  Bytes most = std::numeric_limits<Bytes>::min();
  for (const std::size_t c : by_lack(a)) {
    if (known.events_played() >= most_events) return false;
    explain_if_above(a, c, job, known, most);
    most = std::max(most, lack_of(a.estimate.gpus[c]));
  }
  return true;
}

namespace {

Estimate replay_all(const Job& job, const Catalog* catalog, bool lists) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  replay_classes(a, job, lists);
  worst_first(a.estimate, job);
  if (a.estimate.replayed) judge_probability(a.estimate, job);
  return std::move(a.estimate);
}

}  // namespace

Estimate estimate(const Job& job, const Catalog* catalog) { return replay_all(job, catalog, false); }
Estimate explain(const Job& job, const Catalog* catalog) { return replay_all(job, catalog, true); }

namespace {

ProcessRun run_of(const Assembled& a, std::size_t c, std::size_t process, const Job& job) {
  GpuClass alone = a.classes[c];
  std::erase_if(alone.seats, [&](const SeatOnGpu& seat) { return seat.process != process; });
  return {ranks_text(job, alone), write_process(a, c, process, kReplayedMicroBatches), settings_of(job, a.estimate.gpus[c])};
}

}  // namespace

ProcessRun fullest_run(const Job& job, const Catalog& catalog, TapeStore& store) {
  const Assembled a = assemble(job, catalog, store);
  const auto worst = fullest(a);
  if (worst < 0) throw InputError(Problem{{}, "a job without GPUs", "one whose run can be written", "", ""});
  const auto c = static_cast<std::size_t>(worst);
  const GpuAnswer& answer = a.estimate.gpus[c];
  return run_of(a, c, answer.phases.empty() ? 0 : process_of(a.classes[c], job, answer.phases[answer.worst].role), job);
}

std::vector<ProcessRun> all_runs(const Job& job, const Catalog& catalog, TapeStore& store) {
  const Assembled a = assemble(job, catalog, store);
  std::vector<ProcessRun> out;
  for (const std::size_t c : by_lack(a))
    for (std::size_t process = 0; process < a.classes[c].processes; ++process) out.push_back(run_of(a, c, process, job));
  return out;
}

namespace {

/// The fullest class, and those that what the allocator adds may make fuller. What it adds was 31 % of what lives at most
/// (benchmarks/accuracy/allocator_adds.py): a class with less than two thirds of what the fullest needs is none of them.
bool explain_fullest(Assembled& a, const Job& job, ProcessStore& processes, Explain what) {
  Bytes most = std::numeric_limits<Bytes>::min();
  for (const std::size_t c : by_lack(a)) {
    const GpuAnswer& gpu = a.estimate.gpus[c];
    const bool first = most == std::numeric_limits<Bytes>::min();
    if (!first && 3 * (lack_of(gpu) + gpu.usable) <= 2 * (most + gpu.usable)) continue;
    if (!(first ? explain_class(a, c, job, processes, what) : explain_if_above(a, c, job, processes, most, what, true)))
      return false;
    most = std::max(most, lack_of(gpu));
  }
  return true;
}

}  // namespace

Estimate explain_worst(const Job& job, const Catalog& catalog, TapeStore& store) {
  Assembled a = assemble(job, catalog, store);
  ProcessStore processes;
  explain_fullest(a, job, processes, Explain::all);
  worst_first(a.estimate, job);
  judge_probability(a.estimate, job);
  return std::move(a.estimate);
}

std::optional<Estimate> explain_worst_if_it_fits(const Job& job, const Catalog& catalog, TapeStore& store,
                                                 ProcessStore& processes) {
  Assembled a = assemble(job, catalog, store);
  if (!explain_fullest(a, job, processes, Explain::if_it_fits)) return std::nullopt;
  worst_first(a.estimate, job);
  judge_probability(a.estimate, job);
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
