#include "advice/causes.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <oomplan/program.hpp>

namespace oomplan {
namespace {

constexpr std::size_t kTensors = 5;

/// A phase on the GPUs that lack most in it.
struct Short {
  std::size_t gpu_class = 0, phase = 0;  ///< index into the class's phases
};

Bytes missing(const Assembled& a, const Short& s) {
  const GpuAnswer& gpu = a.estimate.gpus[s.gpu_class];
  return gpu.phases[s.phase].usage.capacity_needed - gpu.usable;
}

/// One for every phase that is too large somewhere.
std::vector<Short> short_phases(const Assembled& a) {
  std::vector<Short> out;
  for (std::size_t c = 0; c < a.classes.size(); ++c)
    for (std::size_t i = 0; i < a.estimate.gpus[c].phases.size(); ++i) {
      const Short found{c, i};
      if (missing(a, found) <= 0) continue;
      const auto known = std::find_if(out.begin(), out.end(), [&](const Short& s) {
        return a.estimate.gpus[s.gpu_class].phases[s.phase].phase == a.estimate.gpus[c].phases[i].phase;
      });
      if (known == out.end())
        out.push_back(found);
      else if (missing(a, found) > missing(a, *known))
        *known = found;
    }
  return out;
}

StepKind step_of(PhaseKind phase) {
  switch (phase) {
    case PhaseKind::load:
      return StepKind::load;
    case PhaseKind::start:
      return StepKind::start;
    case PhaseKind::generate:
      return StepKind::generate;
    case PhaseKind::sleep:
      return StepKind::sleep;
    case PhaseKind::wake:
      return StepKind::wake_weights;
    case PhaseKind::receive_weights:
      return StepKind::receive;
    case PhaseKind::log_probs:
    case PhaseKind::values:
      return StepKind::log_probs;
    case PhaseKind::forward:
    case PhaseKind::backward:
    case PhaseKind::optimizer:
      return StepKind::train;
    case PhaseKind::send_weights:
      return StepKind::send;
    case PhaseKind::save:
      return StepKind::save;
  }
  return StepKind::load;
}
/// The first turn in which a role comes to the phase.
std::size_t turn_of(const Timeline& t, std::size_t role, PhaseKind phase) {
  std::size_t at = 0;
  for (const auto* steps : {&t.init, &t.iteration})
    for (const auto& step : *steps) {
      if (step.role == role && step.kind == step_of(phase)) return at;
      ++at;
    }
  return at;
}

/// What runs in a phase.
std::string words(const Role& role, PhaseKind phase, bool loss) {
  const std::string where = loss ? ", at the loss: its tensors are as wide as the vocabulary" : "";
  switch (phase) {
    case PhaseKind::load:
      return role.serves() ? "start-up: the server loads its weights" : "start-up: the model is loaded, before training starts";
    case PhaseKind::start:
      return "start-up: the server's profile run, KV cache and CUDA graphs";
    case PhaseKind::generate:
      return "generation: prefill and decoding beside the KV cache";
    case PhaseKind::sleep:
      return "the server goes to sleep";
    case PhaseKind::wake:
      return "generation: the sleeping server takes its memory back";
    case PhaseKind::receive_weights:
      return "weight update: the server receives new weights beside those it has";
    case PhaseKind::log_probs:
      return fmt::format("log-probs{}, a forward pass without gradients{}",
                         role.kind == RoleKind::reference ? " of the reference" : " before training", where);
    case PhaseKind::values:
      return "values of the critic, a forward pass without gradients";
    case PhaseKind::forward:
      return fmt::format("training: forward pass{}", where);
    case PhaseKind::backward:
      return fmt::format("training: backward pass{}", where);
    case PhaseKind::optimizer:
      return "training: optimizer step";
    case PhaseKind::send_weights:
      return "weight update: parameters are gathered and sent to the servers";
    case PhaseKind::save:
      return "save: parameters are gathered and written";
  }
  return {};
}

std::size_t process_of(const GpuClass& cls, std::size_t role) {
  for (const auto& seat : cls.seats)
    if (seat.role == role) return seat.process;
  return 0;
}

/// The largest tensor is as wide as the vocabulary: logits, their copies or their gradient.
bool in_the_loss(const std::vector<LiveTensor>& live, std::int64_t vocabulary) {
  return !live.empty() && !live[0].shape.empty() && live[0].category != Category::weights && live[0].shape.back() == vocabulary;
}

class Causes {
 public:
  Causes(const Assembled& a, const Job& job, const FileWords& file) : a_(a), job_(job), file_(file) {}

  std::vector<Cause> run() {
    auto found = short_phases(a_);
    std::stable_sort(found.begin(), found.end(), [&](const Short& x, const Short& y) { return when(x) < when(y); });
    std::vector<Cause> out = refusals();
    for (const auto& s : found) out.push_back(cause(s));
    return out;
  }

 private:
  const PhaseFigure& figure(const Short& s) const { return a_.folds[s.gpu_class].phases[s.phase]; }
  std::pair<std::size_t, PhaseKind> when(const Short& s) const {
    return {turn_of(a_.timeline, figure(s).role, figure(s).phase), figure(s).phase};
  }
  /// A server that would not start says so itself, whatever the GPU has.
  std::vector<Cause> refusals() const {
    std::vector<Cause> out;
    for (const auto& server : a_.estimate.servers) {
      if (!server.refused) continue;
      Cause c;
      c.phase = server.role + ".start";
      c.ranks = server.role;
      c.text = server.shortage;
      c.log = file_.log_of(server.role);
      out.push_back(std::move(c));
    }
    return out;
  }
  Cause cause(const Short& s) const {
    const GpuAnswer& gpu = a_.estimate.gpus[s.gpu_class];
    const PhaseFigure& f = figure(s);
    Cause out;
    out.phase = gpu.phases[s.phase].phase;
    out.ranks = gpu.ranks;
    out.needed = gpu.phases[s.phase].usage.capacity_needed;
    out.usable = gpu.usable;
    out.others = f.others;
    const std::size_t process = process_of(a_.classes[s.gpu_class], f.role);
    out.tensors = live_in_phase(write_process(a_, s.gpu_class, process, 1), out.phase);
    if (out.tensors.size() > kTensors) out.tensors.resize(kTensors);
    const Role& role = job_.roles[f.role];
    const bool loss = !role.serves() && in_the_loss(out.tensors, role.architecture->vocab);
    out.text = words(role, f.phase, loss);
    out.log = file_.log_of(role.name);
    return out;
  }
  const Assembled& a_;
  const Job& job_;
  const FileWords& file_;
};

}  // namespace

std::vector<Cause> causes_of(const Assembled& a, const Job& job, const FileWords& file) { return Causes(a, job, file).run(); }

}  // namespace oomplan
