// Readers that need the whole expansion: the levels once more (as a check of the fold), and the live set at the peak.
#include <map>
#include <tuple>
#include <unordered_map>

#include <oomplan/program.hpp>

namespace oomplan {
namespace {

/// Everything that is alive, with what is needed to name it.
struct Alive {
  std::uint32_t site = 0;
  std::uint32_t phase = 0;  // label number + 1; 0: before the first mark
};

std::vector<LiveTensor> merged(const Program& program, const std::unordered_map<std::int64_t, Alive>& live) {
  std::map<std::tuple<std::string, std::vector<std::int64_t>, std::uint8_t, std::uint32_t>, LiveTensor> rows;
  for (const auto& [tensor, alive] : live) {
    const Site& site = program.sites[alive.site];
    if (!on_device(site.pool) || site.bytes == 0) continue;
    auto& row = rows[{site.name, site.shape, static_cast<std::uint8_t>(site.dtype), alive.phase}];
    if (row.bytes == 0) {
      row = {site.name, site.shape, site.dtype, 0, site.category, site.pool, site.holder,
             alive.phase == 0 ? "" : program.labels[alive.phase - 1], 0};
    }
    row.bytes += site.bytes;
    ++row.count;
  }
  std::vector<LiveTensor> out;
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  std::stable_sort(out.begin(), out.end(), [](const LiveTensor& x, const LiveTensor& y) { return x.bytes > y.bytes; });
  return out;
}

}  // namespace

Trace trace(const Program& program) {
  Trace out;
  out.device_by_category.assign(kCategories, 0);
  out.host_by_category.assign(kCategories, 0);
  std::uint32_t phase = 0;
  PeakRecorder levels;  // one event at a time: no loops, no closed forms
  Bytes host_peak = 0;
  std::vector<Bytes> device(kCategories, 0), host(kCategories, 0);
  expand(program, [&](const Event& e) {
    switch (e.kind) {
      case Program::Kind::mark: phase = e.site + 1; return true;
      case Program::Kind::trim: levels.trim(); return true;
      case Program::Kind::pause: levels.pause(e.pool, e.bytes); return true;
      case Program::Kind::resume: levels.resume(e.pool, e.bytes); return true;
      default: break;
    }
    const Bytes sign = e.kind == Program::Kind::alloc ? 1 : -1;
    const auto category = static_cast<std::size_t>(program.sites[e.site].category);
    (on_device(e.pool) ? device : host)[category] += sign * e.bytes;
    const std::int64_t peak_event = levels.span().witness;
    levels.add(e.pool, sign * e.bytes);
    if (levels.span().witness != peak_event) {
      out.device_by_category = device;
      out.phase = phase == 0 ? "" : program.labels[phase - 1];
    }
    if (levels.span().host_peak > host_peak) {
      host_peak = levels.span().host_peak;
      out.host_by_category = host;
    }
    return true;
  });
  out.span = levels.span();
  // A second expansion stops at the peak: keeping every live set on the way would cost more than it.
  std::unordered_map<std::int64_t, Alive> live;
  std::int64_t ordinal = 0;
  phase = 0;
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark) phase = e.site + 1;
    if (e.kind == Program::Kind::alloc) live[e.tensor] = {e.site, phase};
    if (e.kind == Program::Kind::free) live.erase(e.tensor);
    const bool counted = e.kind != Program::Kind::mark && e.kind != Program::Kind::trim;
    if (counted && ordinal == out.span.witness) out.live = merged(program, live);
    if (counted) ++ordinal;
    return true;
  });
  out.left = static_cast<std::int64_t>(live.size());
  return out;
}

std::vector<std::pair<std::int64_t, Bytes>> timeline(const Program& program, std::int64_t stride) {
  std::vector<std::pair<std::int64_t, Bytes>> out;
  Bytes level = 0, highest = 0;
  std::int64_t ordinal = 0;
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark || e.kind == Program::Kind::trim) return true;
    const bool adds = e.kind == Program::Kind::alloc || e.kind == Program::Kind::resume;
    if (on_device(e.pool)) level += adds ? e.bytes : -e.bytes;
    if (level > highest || ordinal % stride == 0) out.emplace_back(ordinal, level);
    highest = std::max(highest, level);
    ++ordinal;
    return true;
  });
  return out;
}

}  // namespace oomplan
