#include "advice/causes.hpp"

#include <algorithm>
#include <array>
#include <optional>

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

/// What runs in a phase, and in which turn.
struct PhaseRow {
  PhaseKind phase;
  StepKind step;
  std::string_view text;
};
constexpr std::array<PhaseRow, 13> kPhases{
    {{PhaseKind::load, StepKind::load, "start-up: the weights are loaded"},
     {PhaseKind::start, StepKind::start, "start-up: the server's profile run, KV cache and CUDA graphs"},
     {PhaseKind::generate, StepKind::generate, "generation: prefill and decoding beside the KV cache"},
     {PhaseKind::sleep, StepKind::sleep, "the server goes to sleep"},
     {PhaseKind::wake, StepKind::wake_weights, "generation: the sleeping server takes its memory back"},
     {PhaseKind::receive_weights, StepKind::receive, "weight update: the server receives new weights beside those it has"},
     {PhaseKind::log_probs, StepKind::log_probs, "log-probs, a forward pass without gradients"},
     {PhaseKind::values, StepKind::log_probs, "values of the critic, a forward pass without gradients"},
     {PhaseKind::forward, StepKind::train, "training: forward pass"},
     {PhaseKind::backward, StepKind::train, "training: backward pass"},
     {PhaseKind::optimizer, StepKind::train, "training: optimizer step"},
     {PhaseKind::send_weights, StepKind::send, "weight update: parameters are gathered and sent to the servers"},
     {PhaseKind::save, StepKind::save, "save: parameters are gathered and written"}}};
constexpr std::string_view kAtTheLoss = ", at the loss: its tensors are as wide as the vocabulary";

const PhaseRow& row_of(PhaseKind phase) {
  return *std::find_if(kPhases.begin(), kPhases.end(), [&](const PhaseRow& r) { return r.phase == phase; });
}

/// Where a phase stands in the run: the first turn in which the role comes to it, and its place in that turn.
using When = std::pair<std::size_t, PhaseKind>;
When when(const Timeline& t, std::size_t role, PhaseKind phase) {
  std::size_t at = 0;
  for (const auto* steps : {&t.init, &t.iteration})
    for (const auto& step : *steps) {
      if (step.role == role && step.kind == row_of(phase).step) return {at, phase};
      ++at;
    }
  return {at, phase};
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
    std::vector<std::pair<When, Cause>> found;
    for (const auto& s : short_phases(a_)) {
      const PhaseFigure& f = a_.folds[s.gpu_class].phases[s.phase];
      found.emplace_back(when(a_.timeline, f.role, f.phase), cause(s, f));
    }
    for (std::size_t i = 0; i < job_.roles.size(); ++i)
      if (auto c = refusal(job_.roles[i])) found.emplace_back(when(a_.timeline, i, PhaseKind::start), std::move(*c));
    std::stable_sort(found.begin(), found.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    std::vector<Cause> out;
    for (auto& [at, c] : found) out.push_back(std::move(c));
    for (const auto& host : a_.estimate.hosts) add_host(host, out);
    return out;
  }

 private:
  /// A server that would not start says so itself, whatever the GPU has.
  std::optional<Cause> refusal(const Role& role) const {
    for (const auto& server : a_.estimate.servers) {
      if (!server.refused || server.role != role.name) continue;
      Cause c;
      c.phase = server.role + "." + std::string(phase_word(PhaseKind::start));
      c.ranks = server.role;
      c.text = server.shortage;
      c.log = file_.log_of(server.role);
      return c;
    }
    return std::nullopt;
  }
  static void add_host(const HostAnswer& host, std::vector<Cause>& out) {
    if (host.usable == 0 || host.phases.empty() || host.phases[host.worst].second <= host.usable) return;
    Cause c;
    c.phase = host.phases[host.worst].first;
    c.ranks = "node " + host.nodes;
    c.needed = host.phases[host.worst].second;
    c.usable = host.usable;
    c.text = "memory of the host";
    out.push_back(std::move(c));
  }
  Cause cause(const Short& s, const PhaseFigure& f) const {
    const GpuAnswer& gpu = a_.estimate.gpus[s.gpu_class];
    const Role& role = job_.roles[f.role];
    Cause out;
    out.phase = gpu.phases[s.phase].phase;
    out.ranks = gpu.ranks;
    out.needed = gpu.phases[s.phase].usage.capacity_needed;
    out.usable = gpu.usable;
    out.beside = gpu.phases[s.phase].beside;
    out.others = f.others;
    const std::size_t process = process_of(a_.classes[s.gpu_class], f.role);
    out.tensors = live_in_phase(write_process(a_, s.gpu_class, process, 1), out.phase);
    if (out.tensors.size() > kTensors) out.tensors.resize(kTensors);
    out.text = row_of(f.phase).text;
    if (!role.serves() && in_the_loss(out.tensors, role.architecture->vocab)) out.text += kAtTheLoss;
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
