// The fold of a GPU's timeline against the written programs of its processes, expanded: at every phase, of every process, to the
// byte.
#include <map>

#include "estimate/assemble.hpp"
#include "estimate_jobs.hpp"
#include "program/ledger.hpp"
#include "program/replay.hpp"

using namespace oomplan;

namespace {

/// Highest host level of every phase: ledgers are of the device.
std::map<std::string, Bytes> host_peaks(const Program& p) {
  std::map<std::string, Bytes> out;
  std::string phase;
  Bytes level = 0;
  expand(p, [&](const Event& e) {
    if (e.kind == Program::Kind::mark) {
      phase = p.labels[e.site];
      out[phase] = std::max(out[phase], level);
    }
    if ((e.kind == Program::Kind::alloc || e.kind == Program::Kind::free) && !on_device(e.pool)) {
      level += e.kind == Program::Kind::alloc ? e.bytes : -e.bytes;
      out[phase] = std::max(out[phase], level);
    }
    return true;
  });
  return out;
}

/// Does nothing happen in the phase? Weights from disk replace those in the server one by one.
bool silent(const Program& p, const std::string& phase) {
  bool within = false, silent = true;
  expand(p, [&](const Event& e) {
    if (e.kind == Program::Kind::mark)
      within = p.labels[e.site] == phase;
    else if (within)
      silent = false;
    return silent;
  });
  return silent;
}

std::string label(const Job& job, const PhaseFigure& f) {
  return job.roles[f.role].name + "." + std::string(phase_word(f.phase));
}

/// Shortened, so that a written program stays small. Levels do not depend on it.
Job shortened(const NamedJob& j) {
  Job job = job_of(j.text);
  for (auto& r : job.roles)
    if (!r.serves() && r.trainer.micro_batches == 0)  // a pipeline takes them in groups of its stages
      r.trainer.micro_batches = r.trainer.layout.pipeline > 1 ? 2 * r.trainer.layout.pipeline : 3;
  return job;
}

}  // namespace

TEST_CASE("every phase of every job: what is folded is what the written programs reach") {
  TapeStore store;
  for (const auto& j : all_jobs()) {
    INFO(j.name);
    const Job job = shortened(j);
    const Assembled a = assemble(job, Catalog::builtin(), store);
    for (std::size_t c = 0; c < a.classes.size(); ++c) {
      INFO(ranks_text(job, a.classes[c]));
      const auto& figures = a.folds[c].phases;
      std::vector<bool> seen(figures.size(), false);
      std::map<std::string, Bytes> host;
      for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
        const Program program = write_process(a, c, p, 1);
        for (const auto& ledger : ledger_by_phase(program)) {
          INFO(ledger.phase);
          const auto f =
              std::find_if(figures.begin(), figures.end(), [&](const PhaseFigure& x) { return label(job, x) == ledger.phase; });
          if (f == figures.end()) {
            CHECK(silent(program, ledger.phase));
            continue;
          }
          seen[static_cast<std::size_t>(f - figures.begin())] = true;
          // A phase comes several times while the others hold more or less; alone in its process group the figure is exact.
          if (a.classes[c].processes == 1)
            CHECK(f->needed == ledger.peak);
          else
            CHECK(f->needed - f->others <= ledger.peak);
        }
        if (a.classes[c].processes == 1)
          for (const auto& [phase, bytes] : host_peaks(program))
            for (const auto& f : figures)
              if (label(job, f) == phase) CHECK(f.host == bytes);
        CHECK(Bytes{0} <= trace(program).span.net);
      }
      for (std::size_t i = 0; i < figures.size(); ++i) {
        INFO(label(job, figures[i]));
        CHECK(seen[i]);
      }
    }
  }
}

TEST_CASE("processes that share a GPU: the joint level of their written programs, turn by turn, is what is needed") {
  TapeStore store;
  for (const auto& j : all_jobs()) {
    INFO(j.name);
    const Job job = shortened(j);
    const Assembled a = assemble(job, Catalog::builtin(), store);
    for (std::size_t c = 0; c < a.classes.size(); ++c) {
      const std::size_t n = a.classes[c].processes;
      // Levels and reserved bytes of every process, cut at the marks: turns of the same label follow each other in each program.
      struct Turn {
        std::string label;
        Bytes peak = 0, held = 0;
      };
      std::vector<std::vector<Turn>> turns(n);
      for (std::size_t p = 0; p < n; ++p) {
        const Program program = write_process(a, c, p, 1);
        Bytes level = 0, cached = 0, reserved = 0;
        expand(program, [&](const Event& e) {
          if (e.kind == Program::Kind::mark) turns[p].push_back({program.labels[e.site], level, 0});
          const Bytes bytes = e.kind == Program::Kind::alloc || e.kind == Program::Kind::resume ? e.bytes
                              : e.kind == Program::Kind::free || e.kind == Program::Kind::pause ? -e.bytes
                                                                                                : 0;
          if (bytes != 0 && on_device(e.pool)) {
            level += bytes;
            if (e.pool == Pool::torch) cached += bytes;
          }
          reserved = e.kind == Program::Kind::trim ? cached : std::max(reserved, cached);
          REQUIRE_FALSE(turns[p].empty());
          turns[p].back().peak = std::max(turns[p].back().peak, level);
          turns[p].back().held = level - cached + reserved;
          return true;
        });
      }
      // The timeline, played over these turns: a step takes turns of its role until the label belongs to another role's step.
      std::vector<std::size_t> at(n, 0);
      std::vector<Bytes> held(n, 0);
      std::map<std::string, Bytes> needed;
      const auto words_of = [](StepKind k) -> std::vector<std::string> {
        switch (k) {
          case StepKind::load:
            return {"load"};
          case StepKind::start:
            return {"start"};
          case StepKind::wake_weights:
          case StepKind::wake_cache:
            return {"wake"};
          case StepKind::generate:
            return {"generate"};
          case StepKind::sleep:
            return {"sleep"};
          case StepKind::step_aside:
          case StepKind::log_probs:
            return {"log_probs", "values"};
          case StepKind::train:
            return {"forward", "backward", "optimizer"};
          case StepKind::send:
            return {"send_weights"};
          case StepKind::receive:
            return {"receive_weights"};
          case StepKind::save:
            return {"save"};
        }
        return {};
      };
      const auto play = [&](const Step& s) {
        for (const auto& seat : a.classes[c].seats) {
          if (seat.role != s.role) continue;
          const std::size_t p = seat.process;
          bool once = false;
          while (at[p] < turns[p].size()) {
            const Turn& t = turns[p][at[p]];
            const auto words = words_of(s.kind);
            const std::string role = job.roles[s.role].name + ".";
            const bool mine =
                t.label.starts_with(role) && std::find(words.begin(), words.end(), t.label.substr(role.size())) != words.end();
            if (!mine || (once && s.kind != StepKind::train)) break;
            const bool one_update = !a.runs[seat.role].plan.step_every;
            if (once && one_update && t.label.ends_with("forward") && turns[p][at[p] - 1].label.ends_with("optimizer"))
              break;  // the next step's
            Bytes others = 0;
            for (std::size_t q = 0; q < n; ++q)
              if (q != p) others += held[q];
            needed[t.label] = std::max(needed[t.label], t.peak + others);
            held[p] = t.held;
            ++at[p];
            once = true;
          }
        }
      };
      for (const auto& s : a.timeline.init) play(s);
      for (int i = 0; i < 2; ++i)
        for (const auto& s : a.timeline.iteration) play(s);
      for (std::size_t p = 0; p < n; ++p) CHECK(at[p] == turns[p].size());
      for (const auto& f : a.folds[c].phases) {
        INFO(label(job, f));
        CHECK(f.needed == needed[label(job, f)]);
      }
    }
  }
}

namespace {

/// What a Megatron rank keeps from step to step though it is no resident of other engines: flat gradients, and the last input of
/// a stage's chunks with its gradient (docs/engines/megatron.md).
bool kept_by_megatron(const Site& s) {
  for (const char* const name :
       {".gradient_buffer", ".placeholder_gradients", ".fp32_gradient_shards", ".stage_input", ".stage_input_gradient"})
    if (s.name.ends_with(name)) return true;
  return false;
}

}  // namespace

TEST_CASE("what is alive at the end of a written program is what the role declares resident") {
  TapeStore store;
  for (const auto& j : all_jobs()) {
    INFO(j.name);
    const Job job = shortened(j);
    const Assembled a = assemble(job, Catalog::builtin(), store);
    for (std::size_t c = 0; c < a.classes.size(); ++c)
      for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
        const Program program = write_process(a, c, p, 1);
        std::map<std::int64_t, std::uint32_t> alive;
        expand(program, [&](const Event& e) {
          if (e.kind == Program::Kind::alloc) alive[e.tensor] = e.site;
          if (e.kind == Program::Kind::free) alive.erase(e.tensor);
          return true;
        });
        for (const auto& [tensor, site] : alive) {
          const Site& s = program.sites[site];
          INFO(s.name);
          const Role& role = job.roles[a.classes[c].seats[p].role];
          if (role.engine == EngineKind::megatron && kept_by_megatron(s)) continue;
          if (role.trainer.keep_gradients && s.category == Category::gradients) continue;
          if (role.engine == EngineKind::ddp && s.name.find(".gradient_bucket.") != std::string::npos) continue;  // the reducer's
          CHECK((s.holder == Holder::resident || !on_device(s.pool)));
          if (s.name.starts_with("server.")) continue;  // static inputs and outputs of CUDA graphs
          CHECK((s.category != Category::activations && s.category != Category::logits && s.category != Category::gradients));
        }
      }
  }
}

TEST_CASE("a few micro-batches drive the allocator where all of them do") {
  TapeStore store;
  for (const auto& j : job_matrix()) {
    if (!j.name.starts_with("areal") && !j.name.starts_with("sft") && !j.name.starts_with("verl, apart")) continue;
    INFO(j.name);
    Job job = job_of(j.text);
    for (auto& r : job.roles)
      if (!r.serves()) r.trainer.micro_batches = 24;
    const Assembled a = assemble(job, Catalog::builtin(), store);
    for (std::size_t c = 0; c < a.classes.size(); ++c)
      for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
        if (job.roles[a.classes[c].seats[0].role].serves()) continue;
        const FlatProgram few(write_process(a, c, p, kReplayedMicroBatches)), all(write_process(a, c, p, 1 << 20));
        for (const bool expandable : {false, true}) {
          AllocatorSettings settings;
          settings.expandable_segments = expandable;
          settings.device_total = a.estimate.gpus[c].usable;
          CHECK(replay(few, settings).reserved_peak == replay(all, settings).reserved_peak);
          // Between adapters of a few MiB the history decides which pages of an expandable segment are given back: two at most.
          const bool adapters = job.roles[a.classes[c].seats[0].role].trainer.lora.rank > 0;
          const Bytes near = adapters && expandable ? 2 * 20 * kMiB : 0;
          CHECK(std::abs(needed_capacity(few, settings) - needed_capacity(all, settings)) <= near);
        }
      }
  }
}
