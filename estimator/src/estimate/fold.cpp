#include "estimate/fold.hpp"

#include <algorithm>

#include "estimate/generator_run.hpp"
#include "estimate/megatron_program.hpp"

namespace oomplan {
namespace {

/// A recorder that is cut into labelled Spans.
struct Cutter {
  PeakRecorder recorder;
  PhaseKind phase = PhaseKind::load;
  std::vector<std::pair<PhaseKind, Span>> spans;
  void cut(PhaseKind next) {
    if (const Span span = recorder.span(); span.events > 0 || span.trimmed) {
      spans.emplace_back(phase, span);
      recorder = PeakRecorder();
    }
    phase = next;
  }
};

/// Of a turn. One that leaves something behind, as the first one does with a workspace, is not like the next one.
bool leaves_nothing(const std::vector<std::pair<PhaseKind, Span>>& spans) {
  Span all;
  for (const auto& [phase, span] : spans) all = then(all, span);
  return all.net == 0 && all.cached == 0 && all.host_net == 0;
}

class ClassFolder {
 public:
  ClassFolder(const Job& job, const std::vector<RoleRun>& runs, const GpuClass& c)
      : job_(job), runs_(runs), class_(c), states_(c.processes), cutters_(c.seats.size()) {
    known_.resize(c.seats.size() * kStepKinds);
    out_.servers.resize(runs.size());
    trainers_.resize(c.seats.size());
    megatrons_.resize(c.seats.size());
    servers_.resize(c.seats.size());
  }

  ClassFold run(const Timeline& t) {
    for (const auto& s : t.init) step(s);
    for (int i = 0; i < 2; ++i)
      for (const auto& s : t.iteration) step(s);
    visit();
    out_.held = out_.visits.back().held;
    return std::move(out_);
  }

 private:
  void step(const Step& s) {
    bool seated = false;
    for (std::size_t i = 0; i < class_.seats.size(); ++i) {
      if (class_.seats[i].role != s.role) continue;
      play(i, s.kind);
      const std::size_t process = class_.seats[i].process;
      if (states_.size() > 1) out_.turns.push_back({process, states_[process].held()});
      seated = true;
    }
    if (!seated) visit();
  }
  void visit() {
    out_.visits.push_back({others(states_.size()), need_});
    need_ = 0;
  }

  void play(std::size_t i, StepKind kind) {
    const SeatOnGpu& seat = class_.seats[i];
    const RoleRun* const there = run_on(runs_[seat.role], seat.seat.stage);
    if (there == nullptr) return;
    const RoleRun& run = *there;
    Cutter& cutter = cutters_[i];
    const bool repeats = kind == StepKind::log_probs || (kind == StepKind::send && run.megatron.empty()) ||
                         kind == StepKind::save || kind == StepKind::generate || kind == StepKind::receive;
    auto& known = known_[i * kStepKinds + static_cast<std::size_t>(kind)];
    if (repeats && !known.empty()) {
      for (const auto& [phase, span] : known) apply(seat, phase, span);
      return;
    }
    const Mark mark = [&cutter](PhaseKind phase) { cutter.cut(phase); };
    if (run.role->serves()) {
      if (!servers_[i]) make_server(i, run, seat, mark);
      servers_[i]->step(kind);
    } else if (!run.megatron.empty()) {
      if (!megatrons_[i]) megatrons_[i] = std::make_unique<MegatronProgram<PeakRecorder>>(cutter.recorder, run, seat.seat, mark);
      megatrons_[i]->step(kind);
    } else {
      const std::size_t rank = seat.seat.sender ? 0 : 1;
      if (!trainers_[i])
        trainers_[i] = std::make_unique<TrainerProgram<PeakRecorder>>(
            cutter.recorder, run, seat.seat, run.send[rank] ? &*run.send[rank] : nullptr,
            run.save[rank] ? &*run.save[rank] : nullptr, mark, 1, &tapes_);
      trainers_[i]->step(kind);
    }
    cutter.cut(PhaseKind::load);
    for (const auto& [phase, span] : cutter.spans) apply(seat, phase, span);
    if (leaves_nothing(cutter.spans)) known.swap(cutter.spans);
    cutter.spans.clear();
  }

  void make_server(std::size_t i, const RoleRun& run, const SeatOnGpu& seat, const Mark& mark) {
    ServerPoint point = run.point;
    point.stage = seat.seat.stage;
    // of its own process that is what trainers have put there before
    point.occupied = job_.cluster.others + others(seat.process) + states_[seat.process].level;
    out_.servers[seat.role] = plan(run.model, run.facts, point);
    servers_[i] = std::make_unique<ServerProgram<PeakRecorder>>(cutters_[i].recorder, *out_.servers[seat.role],
                                                                run.receive ? &*run.receive : nullptr, mark);
  }

  /// Held by all processes but one.
  Bytes others(std::size_t process) const {
    Bytes sum = 0;
    for (std::size_t p = 0; p < states_.size(); ++p)
      if (p != process) sum += states_[p].held();
    return sum;
  }

  void apply(const SeatOnGpu& seat, PhaseKind phase, const Span& span) {
    ProcessState& s = states_[seat.process];
    PhaseFigure f;
    f.phase = phase;
    f.role = seat.role;
    f.others = others(seat.process);
    f.allocated = s.cached + span.cached_peak;
    f.reserved = std::max(s.reserved, s.cached + span.tail);
    f.needed = f.others + s.level + span.peak;
    f.device = f.others + std::max(s.held(), s.level + span.peak);
    Bytes host = span.host_peak;
    for (const auto& other : states_) host += other.host;
    f.host = host;
    s.pass(span);
    need_ = std::max(need_, f.needed);
    const std::size_t index = remember(f);
    if (states_.size() > 1) out_.in_turns.push_back({out_.turns.size(), index, f.needed - f.others, f.device - f.others});
  }
  /// Index of the phase.
  std::size_t remember(const PhaseFigure& f) {
    const auto known = std::find_if(out_.phases.begin(), out_.phases.end(),
                                    [&](const PhaseFigure& p) { return p.phase == f.phase && p.role == f.role; });
    const auto index = static_cast<std::size_t>(known - out_.phases.begin());
    if (known == out_.phases.end()) {
      out_.phases.push_back(f);
      return index;
    }
    const Bytes host = std::max(known->host, f.host);
    if (f.needed > known->needed || (f.needed == known->needed && f.device > known->device)) *known = f;
    known->host = host;
    return index;
  }

  const Job& job_;
  const std::vector<RoleRun>& runs_;
  const GpuClass& class_;
  std::vector<ProcessState> states_;
  std::vector<Cutter> cutters_;
  std::vector<std::vector<std::pair<PhaseKind, Span>>> known_;  ///< per seat and kind of step: a turn that was folded before
  FoldedTapes tapes_;
  std::vector<std::unique_ptr<TrainerProgram<PeakRecorder>>> trainers_;
  std::vector<std::unique_ptr<MegatronProgram<PeakRecorder>>> megatrons_;
  std::vector<std::unique_ptr<ServerProgram<PeakRecorder>>> servers_;
  Bytes need_ = 0;  ///< highest since the last visit
  ClassFold out_;
};

}  // namespace

ClassFold fold_class(const Job& job, const std::vector<RoleRun>& runs, const GpuClass& c, const Timeline& t) {
  return ClassFolder(job, runs, c).run(t);
}

}  // namespace oomplan
