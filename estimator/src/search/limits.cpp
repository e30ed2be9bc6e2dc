#include "search/limits.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "job/names.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

std::string gib(Bytes b) { return fmt::format("{:.2f} GiB", static_cast<double>(b) / static_cast<double>(kGiB)); }

/// What a configuration needs, with the server that leaves it most where they share GPUs.
Bytes need_of(const TrainerVerdict& v) { return !v.possible ? kNever : std::max(v.need, v.together); }
std::string phase_of(const Job& job, const TrainerVerdict& v) {
  return job.roles[v.role].name + "." + std::string(phase_word(v.phase));
}

/// For every value of an axis the least that any configuration with it needs; the best value is the axis' limit.
template <class Text>
void add_axis(std::vector<Limit>& out, const Job& job, const std::vector<TrainerVerdict>& verdicts, Bytes usable,
              const std::string& axis, Text&& text_of) {
  std::map<std::string, const TrainerVerdict*> least;
  for (const auto& v : verdicts) {
    if (need_of(v) >= kNever) continue;
    auto& at = least[text_of(v.point)];
    if (at == nullptr || need_of(v) < need_of(*at)) at = &v;
  }
  if (least.size() < 2) return;
  const auto best = std::min_element(least.begin(), least.end(),
                                     [](const auto& a, const auto& b) { return need_of(*a.second) < need_of(*b.second); });
  const TrainerVerdict& v = *best->second;
  Limit l;
  l.phase = phase_of(job, v);
  l.axis = axis;
  l.missing = need_of(v) - usable;
  l.text = fmt::format("{} = {} helps most and still leaves {} short by {}", axis, best->first, l.phase, gib(l.missing));
  out.push_back(std::move(l));
}

}  // namespace

std::vector<Limit> limits_of(const Job& job, const std::vector<TrainerVerdict>& trainers,
                             const std::vector<ServerVerdict>& servers, const TrainerSide& side, Bytes usable) {
  std::vector<Limit> out;
  const bool trainers_fit = std::any_of(trainers.begin(), trainers.end(), [&](const auto& v) { return need_of(v) <= usable; });
  const bool servers_start = servers.empty() || std::any_of(servers.begin(), servers.end(),
                                                            [](const auto& v) { return v.refusal == ServerRefusal::none; });
  if (!trainers.empty() && !trainers_fit && servers_start) {
    const std::string name = side.leader().name;
    add_axis(out, job, trainers, usable, name + ".tokens_per_micro_batch",
             [](const TrainerPoint& p) { return std::to_string(p.tokens); });
    add_axis(out, job, trainers, usable, name + ".layout",
             [](const TrainerPoint& p) { return fmt::format("d{}c{}", p.gpus / p.context, p.context); });
    add_axis(out, job, trainers, usable, name + ".recompute",
             [](const TrainerPoint& p) { return std::string(spelling(p.recompute)); });
    add_axis(out, job, trainers, usable, name + ".offload", [](const TrainerPoint& p) {
      return std::string(p.offload_parameters && p.offload_optimizer ? "[parameters, optimizer]"
                         : p.offload_parameters                      ? "[parameters]"
                         : p.offload_optimizer                       ? "[optimizer]"
                                                                     : "[]");
    });
    if (out.empty()) {
      const auto& v = *std::min_element(trainers.begin(), trainers.end(),
                                        [](const auto& a, const auto& b) { return need_of(a) < need_of(b); });
      const Bytes missing = need_of(v) - usable;
      if (v.possible)
        out.push_back({phase_of(job, v), name, missing, fmt::format("{} is short by {}", phase_of(job, v), gib(missing))});
    }
  }
  const bool servers_fit = std::any_of(servers.begin(), servers.end(),
                                       [&](const auto& v) { return v.refusal == ServerRefusal::none && v.need <= usable; });
  if (!servers.empty() && !servers_fit) {
    const auto short_of = [&](const ServerVerdict& v) { return v.refusal != ServerRefusal::none ? v.missing : v.need - usable; };
    const auto& v = *std::min_element(servers.begin(), servers.end(),
                                      [&](const auto& a, const auto& b) { return short_of(a) < short_of(b); });
    std::string role;
    for (const auto& r : job.roles)
      if (r.serves()) role = r.name;
    out.push_back({role + ".start", role + ".layout", short_of(v),
                   fmt::format("{}: the best of {} settings (t{}, fraction {:.2f}) is short by {}", role, servers.size(),
                               v.choice.tensor, v.choice.fraction, gib(short_of(v)))});
  }
  // One of the sides has no configuration at all: no layout of this number of GPUs.
  if (out.empty())
    out.push_back(
        {"", "gpus", 0, fmt::format("no split of {} GPUs gives every role a layout that its model allows", job.cluster.gpus)});
  std::stable_sort(out.begin(), out.end(), [](const Limit& a, const Limit& b) { return a.missing < b.missing; });
  return out;
}

Limit limit_of(const Estimate& e) {
  Limit l;
  for (const auto& g : e.gpus) {
    if (g.fits()) continue;
    const Moment& m = g.phases[g.worst];
    const Bytes missing = m.usage.capacity_needed - g.usable;
    if (missing > l.missing)
      l = {m.phase, "", missing,
           fmt::format("{} is short by {} in the allocator's replay: fragmentation", m.phase, gib(missing))};
  }
  for (const auto& h : e.hosts) {
    if (!l.text.empty() || h.usable == 0 || h.phases.empty() || h.phases[h.worst].second <= h.usable) continue;
    const Bytes missing = h.phases[h.worst].second - h.usable;
    l = {h.phases[h.worst].first, "host_memory", missing,
         fmt::format("{}: the host memory of a node is short by {}", h.phases[h.worst].first, gib(missing))};
  }
  for (const auto& s : e.servers)
    if (l.text.empty() && s.refused) l = {s.role + ".start", s.role, 0, s.shortage};
  return l;
}

}  // namespace oomplan
