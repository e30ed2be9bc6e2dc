#include "search/limits.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "job/names.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

std::string gib(Bytes b) { return fmt::format("{:.2f} GiB", static_cast<double>(b) / static_cast<double>(kGiB)); }

/// For every value of an axis the least that any configuration with it needs; the best value is the axis' limit.
template <class Text>
void add_axis(std::vector<Limit>& out, const Job& job, const std::vector<TrainerVerdict>& verdicts, Bytes usable, const std::string& axis, Text&& text_of) {
  std::map<std::string, const TrainerVerdict*> least;
  for (const auto& v : verdicts) {
    auto& at = least[text_of(v.point)];
    if (at == nullptr || v.need < at->need) at = &v;
  }
  if (least.size() < 2) return;
  const auto best = std::min_element(least.begin(), least.end(), [](const auto& a, const auto& b) { return a.second->need < b.second->need; });
  const TrainerVerdict& v = *best->second;
  Limit l;
  l.phase = job.roles[v.role].name + "." + std::string(phase_word(v.phase));
  l.axis = axis;
  l.missing = v.need - usable;
  l.text = fmt::format("{} = {} helps most and still leaves {} short by {}", axis, best->first, l.phase, gib(l.missing));
  out.push_back(std::move(l));
}

}  // namespace

std::vector<Limit> limits_of(const Job& job, const std::vector<TrainerVerdict>& trainers, const std::vector<ServerVerdict>& servers, const TrainerSide& side,
                             Bytes usable) {
  std::vector<Limit> out;
  const bool trainers_fit = std::any_of(trainers.begin(), trainers.end(), [&](const auto& v) { return v.need <= usable; });
  if (!trainers.empty() && !trainers_fit) {
    const std::string name = side.leader().name;
    add_axis(out, job, trainers, usable, name + ".tokens_per_micro_batch", [](const TrainerPoint& p) { return std::to_string(p.tokens); });
    add_axis(out, job, trainers, usable, name + ".layout", [](const TrainerPoint& p) { return fmt::format("d{}c{}", p.gpus / p.context, p.context); });
    add_axis(out, job, trainers, usable, name + ".recompute", [](const TrainerPoint& p) { return std::string(spelling(p.recompute)); });
    add_axis(out, job, trainers, usable, name + ".offload", [](const TrainerPoint& p) {
      return std::string(p.offload_parameters ? "parameters, optimizer" : p.offload_optimizer ? "optimizer" : "none");
    });
    if (out.empty()) {
      const auto& v = *std::min_element(trainers.begin(), trainers.end(), [](const auto& a, const auto& b) { return a.need < b.need; });
      const std::string phase = job.roles[v.role].name + "." + std::string(phase_word(v.phase));
      out.push_back({phase, name, v.need - usable, fmt::format("{} is short by {}", phase, gib(v.need - usable))});
    }
  }
  const bool servers_fit = std::any_of(servers.begin(), servers.end(), [&](const auto& v) { return v.refusal == ServerRefusal::none && v.need <= usable; });
  if (!servers.empty() && !servers_fit) {
    const auto short_of = [&](const ServerVerdict& v) { return v.refusal != ServerRefusal::none ? v.missing : v.need - usable; };
    const auto& v = *std::min_element(servers.begin(), servers.end(), [&](const auto& a, const auto& b) { return short_of(a) < short_of(b); });
    std::string role;
    for (const auto& r : job.roles)
      if (r.serves()) role = r.name;
    out.push_back({role + ".start", role + ".layout", short_of(v),
                   fmt::format("{}: the best of {} settings (t{}, fraction {:.2f}) is short by {}", role, servers.size(), v.choice.tensor, v.choice.fraction, gib(short_of(v)))});
  }
  if (out.empty()) out.push_back({"", "", 0, "each side fits alone, but not on the same GPUs"});
  std::stable_sort(out.begin(), out.end(), [](const Limit& a, const Limit& b) { return a.missing < b.missing; });
  return out;
}

}  // namespace oomplan
