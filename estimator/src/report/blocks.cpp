#include "report/blocks.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

namespace oomplan {
namespace {

/// A role and its ranks, of "actor 0-3,8, ref 0-3,8".
using RoleRanks = std::pair<std::string, std::set<std::int64_t>>;

std::int64_t number_in(std::string_view text) {
  std::int64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

std::vector<RoleRanks> roles_in(std::string_view text) {
  std::vector<RoleRanks> out;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(", "));
    text.remove_prefix(std::min(text.size(), part.size() + 2));
    const std::size_t gap = std::min(part.rfind(' '), part.size());
    RoleRanks role{std::string(part.substr(0, gap)), {}};
    for (std::string_view ranks = part.substr(std::min(part.size(), gap + 1)); !ranks.empty();) {
      const std::string_view range = ranks.substr(0, ranks.find(','));
      ranks.remove_prefix(std::min(ranks.size(), range.size() + 1));
      const std::size_t dash = range.find('-');
      const std::int64_t first = number_in(range.substr(0, dash));
      const std::int64_t last = dash == std::string_view::npos ? first : number_in(range.substr(dash + 1));
      for (std::int64_t r = first; r <= last; ++r) role.second.insert(r);
    }
    out.push_back(std::move(role));
  }
  return out;
}

std::string text_of(const std::vector<RoleRanks>& roles) {
  std::string out;
  for (const auto& [name, ranks] : roles) {
    out += (out.empty() ? "" : ", ") + name + " ";
    for (auto it = ranks.begin(); it != ranks.end();) {
      const std::int64_t first = *it;
      std::int64_t last = first;
      for (++it; it != ranks.end() && *it == last + 1; ++it) last = *it;
      out += (first == *ranks.begin() ? "" : ",") + std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
    }
  }
  return out;
}

Bytes need(const GpuAnswer& gpu, std::size_t phase) { return gpu.phases[phase].usage.capacity_needed; }

/// Nothing when they are not of one kind.
bool same_kind(const GpuAnswer& a, const GpuAnswer& b) {
  if (a.gpu != b.gpu || a.usable != b.usable || a.phases.size() != b.phases.size() || a.worst != b.worst) return false;
  const auto same_phase = [](const Moment& x, const Moment& y) { return x.phase == y.phase && x.bound == y.bound; };
  if (!std::equal(a.phases.begin(), a.phases.end(), b.phases.begin(), same_phase)) return false;
  const auto mine = roles_in(a.ranks), others = roles_in(b.ranks);
  return std::equal(mine.begin(), mine.end(), others.begin(), others.end(),
                    [](const RoleRanks& x, const RoleRanks& y) { return x.first == y.first; });
}

/// Are the worst moments of all of them within a hundredth of the GPU?
bool alike(const std::vector<const GpuAnswer*>& members, const GpuAnswer& gpu) {
  return std::all_of(members.begin(), members.end(), [&](const GpuAnswer* member) {
    if (gpu.phases.empty()) return true;
    const Bytes apart = need(*member, gpu.worst) - need(gpu, gpu.worst);
    return (apart < 0 ? -apart : apart) <= gpu.usable / 100;
  });
}

/// The largest difference between any class of the block and this one.
Bytes spread_with(const std::vector<const GpuAnswer*>& members, const GpuAnswer& gpu) {
  Bytes out = 0;
  for (const GpuAnswer* member : members)
    for (std::size_t i = 0; i < gpu.phases.size(); ++i) {
      const Bytes apart = need(*member, i) - need(gpu, i);
      out = std::max(out, apart < 0 ? -apart : apart);
    }
  return out;
}

void take_in(GpuAnswer& into, const GpuAnswer& gpu) {
  auto roles = roles_in(into.ranks);
  const auto more = roles_in(gpu.ranks);
  for (std::size_t i = 0; i < roles.size(); ++i) roles[i].second.insert(more[i].second.begin(), more[i].second.end());
  into.ranks = text_of(roles);
  into.gpus.insert(into.gpus.end(), gpu.gpus.begin(), gpu.gpus.end());
  std::sort(into.gpus.begin(), into.gpus.end());
  for (std::size_t i = 0; i < into.phases.size(); ++i)
    if (need(gpu, i) > need(into, i)) into.phases[i] = gpu.phases[i];
  for (std::size_t i = 0; i < into.phases.size(); ++i)
    if (need(into, i) > need(into, into.worst)) into.worst = i;
}

}  // namespace

std::vector<GpuBlock> blocks_of(const std::vector<GpuAnswer>& classes) {
  std::vector<GpuBlock> out;
  std::vector<std::vector<const GpuAnswer*>> members;  // of each block
  for (const GpuAnswer& gpu : classes) {
    std::size_t at = 0;
    for (; at < out.size(); ++at)
      if (same_kind(*members[at].front(), gpu) && alike(members[at], gpu)) break;
    if (at == out.size()) {
      out.push_back({gpu, 0});
      members.push_back({&gpu});
      continue;
    }
    out[at].spread = std::max(out[at].spread, spread_with(members[at], gpu));
    take_in(out[at].shown, gpu);
    members[at].push_back(&gpu);
  }
  return out;
}

}  // namespace oomplan
