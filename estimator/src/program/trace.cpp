// Readers that need the whole expansion: the levels once more (as a check of the fold), and the live set at the peak.
#include <array>
#include <map>
#include <tuple>

#include <oomplan/program.hpp>

namespace oomplan {
namespace {

/// A tensor with what is needed to name it.
struct Alive {
  std::uint32_t site = 0;
  std::uint32_t phase = 0;  // label number + 1; 0: before the first mark
  bool lives = false;
};

using PausedPools = std::array<bool, kPools>;

std::vector<LiveTensor> merged(const Program& program, const std::vector<Alive>& tensors, const PausedPools& paused) {
  std::map<std::tuple<std::string, std::vector<std::int64_t>, DType, Category, Pool, Holder, std::uint32_t>, LiveTensor> rows;
  for (const Alive& alive : tensors) {
    if (!alive.lives) continue;
    const Site& site = program.sites[alive.site];
    if (!on_device(site.pool) || site.bytes == 0 || paused[static_cast<std::size_t>(site.pool)]) continue;
    auto& row = rows[{site.name, site.shape, site.dtype, site.category, site.pool, site.holder, alive.phase}];
    if (row.bytes == 0) {
      row = {site.name,
             site.shape,
             site.dtype,
             0,
             site.category,
             site.pool,
             site.holder,
             alive.phase == 0 ? "" : program.labels[alive.phase - 1],
             0};
    }
    row.bytes += site.bytes;
    ++row.count;
  }
  std::vector<LiveTensor> out;
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  std::stable_sort(out.begin(), out.end(), [](const LiveTensor& x, const LiveTensor& y) { return x.bytes > y.bytes; });
  return out;
}

/// What is alive while a program is expanded, and which pools do not count.
struct State {
  const Program& program;
  std::vector<Alive> tensors{};  // by number
  PausedPools paused{};
  std::uint32_t phase = 0;
  /// True for an event that can change a level.
  bool take(const Event& e) {
    switch (e.kind) {
      case Program::Kind::mark:
        phase = e.site + 1;
        return false;
      case Program::Kind::alloc:
        tensors.push_back({e.site, phase, true});
        return true;
      case Program::Kind::free:
        tensors[static_cast<std::size_t>(e.tensor)].lives = false;
        return true;
      case Program::Kind::pause:
      case Program::Kind::resume:
        paused[static_cast<std::size_t>(e.pool)] = e.kind == Program::Kind::pause;
        return true;
      default:
        return false;
    }
  }
};

/// The ordinal of the event behind which a phase is highest; -1 when no mark has the label.
std::int64_t witness_in(const Program& program, std::string_view label) {
  std::array<Bytes, kPools> held{};
  PausedPools paused{};
  std::int64_t ordinal = 0, witness = -1;
  Bytes highest = -1;
  bool inside = false;
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark) inside = program.labels[e.site] == label;
    if (!changes_levels(e.kind)) return true;
    const auto pool = static_cast<std::size_t>(e.pool);
    if (e.kind == Program::Kind::alloc) held[pool] += e.bytes;
    if (e.kind == Program::Kind::free) held[pool] -= e.bytes;
    if (e.kind == Program::Kind::pause) paused[pool] = true;
    if (e.kind == Program::Kind::resume) paused[pool] = false;
    Bytes level = 0;
    for (std::size_t i = 0; i < kPools; ++i)
      if (on_device(static_cast<Pool>(i)) && !paused[i]) level += held[i];
    if (inside && level > highest) highest = level, witness = ordinal;
    ++ordinal;
    return true;
  });
  return witness;
}

}  // namespace

Trace trace(const Program& program) {
  Trace out;
  out.device_by_category.assign(kCategories, 0);
  out.host_by_category.assign(kCategories, 0);
  PeakRecorder levels;  // one event at a time: no loops, no closed forms
  std::int64_t host_witness = -1;
  expand(program, [&](const Event& e) {
    const Bytes host_peak = levels.span().host_peak;
    switch (e.kind) {
      case Program::Kind::alloc:
        levels.add(e.pool, e.bytes);
        ++out.left;
        break;
      case Program::Kind::free:
        levels.add(e.pool, -e.bytes);
        --out.left;
        break;
      case Program::Kind::pause:
        levels.pause(e.pool, e.bytes);
        break;
      case Program::Kind::resume:
        levels.resume(e.pool, e.bytes);
        break;
      case Program::Kind::trim:
        levels.trim();
        break;
      default:
        break;
    }
    if (levels.span().host_peak > host_peak) host_witness = levels.span().events - 1;
    return true;
  });
  out.span = levels.span();
  // A second expansion knows where the peaks are: keeping ledgers and live sets for every new highest would cost more.
  State state{program};
  std::array<std::array<Bytes, kCategories>, kPools> held{};
  const auto add_up = [&](std::vector<Bytes>& sum, bool device) {
    for (std::size_t pool = 0; pool < kPools; ++pool)
      if (on_device(static_cast<Pool>(pool)) == device && !state.paused[pool])
        for (std::size_t c = 0; c < kCategories; ++c) sum[c] += held[pool][c];
  };
  std::int64_t ordinal = 0;
  expand(program, [&](const Event& e) {
    if (!state.take(e)) return true;
    const auto pool = static_cast<std::size_t>(e.pool);
    if (e.kind == Program::Kind::alloc) held[pool][static_cast<std::size_t>(program.sites[e.site].category)] += e.bytes;
    if (e.kind == Program::Kind::free) held[pool][static_cast<std::size_t>(program.sites[e.site].category)] -= e.bytes;
    if (ordinal == out.span.witness) {
      out.phase = state.phase == 0 ? "" : program.labels[state.phase - 1];
      out.live = merged(program, state.tensors, state.paused);
      add_up(out.device_by_category, true);
    }
    if (ordinal == host_witness) add_up(out.host_by_category, false);
    return ordinal++ < std::max(out.span.witness, host_witness);
  });
  return out;
}

std::vector<LiveTensor> live_in_phase(const Program& program, std::string_view label) {
  const std::int64_t witness = witness_in(program, label);
  std::vector<LiveTensor> out;
  if (witness < 0) return out;
  State state{program};
  std::int64_t ordinal = 0;
  expand(program, [&](const Event& e) {
    if (!state.take(e)) return true;
    if (ordinal++ < witness) return true;
    out = merged(program, state.tensors, state.paused);
    return false;
  });
  return out;
}

std::vector<std::pair<std::int64_t, Bytes>> timeline(const Program& program, std::int64_t stride) {
  std::vector<std::pair<std::int64_t, Bytes>> out;
  Bytes level = 0, highest = 0;
  std::int64_t ordinal = 0;
  expand(program, [&](const Event& e) {
    if (!changes_levels(e.kind)) return true;
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
