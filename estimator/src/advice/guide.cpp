// guide(): every point of a framework's guide judged by an estimate of its own.
#include <oomplan/guide.hpp>

#include <algorithm>
#include <map>

#include "frontends/dialect.hpp"

namespace oomplan {
namespace {

/// What the fullest GPU of every phase needs.
std::map<std::string, Bytes> by_phase(const Estimate& e) {
  std::map<std::string, Bytes> out;
  for (const auto& gpu : e.gpus)
    for (const Moment& m : gpu.phases) {
      Bytes& most = out[m.phase];
      most = std::max(most, m.usage.capacity_needed);
    }
  return out;
}
Bytes worst(const Estimate& e) {
  Bytes most = 0;
  for (const auto& [phase, needed] : by_phase(e)) most = std::max(most, needed);
  return most;
}

void judge(GuidePoint& point, const Estimate& before, const Estimate& after) {
  point.gain = worst(before) - worst(after);
  point.fits = after.fits();
  const std::map<std::string, Bytes> then = by_phase(after);
  for (const auto& [phase, needed] : by_phase(before)) {
    const auto now = then.find(phase);
    if (now == then.end() || needed - now->second <= point.phase_gain) continue;
    point.phase = phase;
    point.phase_gain = needed - now->second;
  }
}

}  // namespace

Guide guide(const Source& source, const Catalog* given) {
  const Catalog& catalog = given != nullptr ? *given : Catalog::builtin();
  const std::unique_ptr<TextWords> words = words_of(source, catalog);
  Guide out{words->reading(), {}, std::string(words->guide_source()), {}};
  out.points = words->guide();
  if (out.points.empty())
    throw InputError(Problem{{"command line", 0, 0, "--guide"},
                             "a job whose framework has no guide that is known",
                             "RL of verl, slime or Relax, or training by Oumi",
                             {},
                             "not supported yet"});
  out.estimate = estimate(out.reading.job, &catalog);
  for (GuidePoint& point : out.points) {
    if (point.overrides.empty()) continue;
    Rewrite rewrite;
    rewrite.overrides = point.overrides;
    try {
      judge(point, out.estimate, estimate(words->job_with(rewrite), &catalog));
    } catch (const InputError& error) {
      point.overrides.clear();
      point.why = error.problems.empty() ? "refused" : error.problems.front().why;
    }
  }
  return out;
}

}  // namespace oomplan
