#include "layers/tape.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <tuple>

#include "layers/litgpt.hpp"
#include "layers/model.hpp"
#include "layers/tape_builder.hpp"
#include "layers/tape_turns.hpp"
#include "units/interruption.hpp"

namespace oomplan {
namespace {

/// One stretch of the simulator's events: station, unit, direction.
struct Stretch {
  int scope = 0;
  bool backward = false;
  std::vector<const EagerEvent*> events;
};

std::vector<Stretch> cut(const Eager& g) {
  std::vector<Stretch> out;
  for (const auto& e : g.events) {
    if (out.empty() || out.back().scope != e.scope || out.back().backward != e.backward) out.push_back({e.scope, e.backward, {}});
    out.back().events.push_back(&e);
  }
  return out;
}

/// Turns storages into sites. Units of one run share sites: the same name for the same time within a unit is the same site.
class Builder {
 public:
  Builder(const Eager& g, const ModelRun& run) : g_(g), run_(run) {}

  Tape build() {
    tape_.stations = run_.stations;
    const auto stretches = cut(g_);
    number_storages(stretches);
    for (const auto& s : stretches) add(s);
    check_inner();
    keep_segments();
    for (const auto& use : g_.uses) add(use);
    part_leaving();
    for (auto& station : tape_.stations)
      for (int u = 0; u < 3; ++u)
        for (Segment* segment : {&station.forward[u], &station.backward[u]}) complete(*segment);
    complete(tape_.leaving);
    return std::move(tape_);
  }

 private:
  struct Born {
    std::uint32_t site = 0;
    int station = 0, unit = 0;
    std::int64_t turn = -1, turns = 0;
  };

  void complete(Segment& segment) {
    segment.on_host = std::any_of(segment.events.begin(), segment.events.end(),
                                  [&](const TapeEvent& e) { return e.of_tensor() && tape_.sites[e.site].pool != Pool::torch; });
    segment.summary = summarise(segment, false);
    segment.summary_adding = summarise(segment, true);
    if (segment.events.empty()) return;
    segment.number = tape_.segments++;
    append(tape_.summaries, segment.summary);
  }

  /// The last events of the forward pass are a segment of their own.
  void part_leaving() {
    if (run_.leaving == 0) return;
    auto& events = tape_.stations.back().forward[0].events;
    if (events.size() < run_.leaving) throw Defect("names of the step go behind the forward pass");
    const auto from = events.end() - static_cast<std::ptrdiff_t>(run_.leaving);
    tape_.leaving.events.assign(from, events.end());
    events.erase(from, events.end());
  }

  void number_storages(const std::vector<Stretch>& stretches) {
    born_.resize(g_.storages.size());
    std::vector<int> freed_at(g_.storages.size(), -1);
    for (const auto& e : g_.events)
      if (e.kind == EagerEvent::Kind::free) freed_at[static_cast<std::size_t>(e.storage)] = e.scope;
    using Key = std::tuple<int, bool, bool, std::string, int>;  // tensors of a loop's turns share sites, too
    std::map<Key, std::vector<std::uint32_t>> known;
    std::map<std::tuple<int, bool, std::int64_t>, std::map<std::string, int>> all_times;
    for (const auto& s : stretches) {
      for (const EagerEvent* e : s.events) {
        if (e->kind != EagerEvent::Kind::alloc) continue;
        interruption_point_at(e->storage);
        const Storage& storage = g_.storages[static_cast<std::size_t>(e->storage)];
        // what a recomputation leaves belongs to the unit that is recomputed; what does not outlive it is its own
        const int owner = freed_at[static_cast<std::size_t>(e->storage)] == s.scope ? s.scope : storage.scope;
        const int station = station_of(owner);
        auto& sites = known[{station, s.backward, storage.turn >= 0, storage.name,
                             all_times[{owner, s.backward, storage.turn}][storage.name]++}];
        born_[static_cast<std::size_t>(e->storage)] = {site_of(storage, station, sites), station, unit_of(owner), storage.turn,
                                                       storage.turns};
      }
    }
  }
  /// Units that differ (the first behind frozen parameters computes fewer gradients) may have tensors of another size under a
  /// name and number.
  std::uint32_t site_of(const Storage& storage, int station, std::vector<std::uint32_t>& known) {
    const TapeSite made{storage.name,
                        storage.shape,
                        storage.dtype,
                        storage.category,
                        storage.saved,
                        elements(storage.shape) * Dim(row(storage.dtype).bits / 8),
                        static_cast<std::size_t>(station),
                        storage.gradient_of,
                        storage.column >= 0,
                        storage.pool,
                        storage.stream};
    for (const std::uint32_t at : known)
      if (const TapeSite& site = tape_.sites[at]; site.shape == made.shape && site.dtype == made.dtype) return at;
    known.push_back(static_cast<std::uint32_t>(tape_.sites.size()));
    tape_.sites.push_back(made);
    return known.back();
  }

  void add(const Stretch& s) {
    const auto station = static_cast<std::size_t>(station_of(s.scope));
    const int unit = unit_of(s.scope);
    auto& simulated = units_[{station, s.backward}];
    if (simulated.size() <= static_cast<std::size_t>(unit)) simulated.resize(static_cast<std::size_t>(unit) + 1);
    auto& events = simulated[static_cast<std::size_t>(unit)];
    for (const EagerEvent* e : s.events) {
      if (s.backward && ends_nested(e)) nested_ends_[{station, unit}] = events.size();
      const Born& b = born_[static_cast<std::size_t>(e->storage)];
      TapeEvent t;
      t.kind = static_cast<TapeEvent::Kind>(e->kind);
      t.site = b.site;
      const int simulated_units = tape_.stations[static_cast<std::size_t>(b.station)].simulated;
      // between the first and the last unit there are more than were simulated: a tensor that goes through all of them is named
      // from the end it comes from
      const bool across = simulated_units == kSimulatedUnits && std::abs(b.unit - unit) == kSimulatedUnits - 1;
      t.relative = simulated_units > 1 && b.station == static_cast<int>(station) && !across;
      t.offset = t.relative ? b.unit - unit : absolute(b);
      if (!t.relative && simulated_units == kSimulatedUnits && b.unit > 0 && b.unit < simulated_units - 1) {
        if (b.unit > 1) continue;  // the first inner unit stands for all
        t.all_inner = true;
      }
      t.turn = static_cast<std::int32_t>(b.turn);
      events.push_back({t, b.turns, e->turn, e->turns, static_cast<std::size_t>(e - g_.events.data())});
      interruption_point_at(events.size());
    }
  }
  /// Behind the events of its unit that came before. The leaf is still the simulator's.
  void add(const EagerUse& use) {
    const auto station = static_cast<std::size_t>(station_of(use.scope));
    const int unit = unit_of(use.scope), last = tape_.stations[station].simulated - 1;
    if (unit > 1 && unit != last) return;  // the first inner unit stands for all
    const int segment = unit == 0 ? 0 : unit == last ? 2 : 1;
    auto& segments = use.backward ? tape_.stations[station].backward : tape_.stations[station].forward;
    std::size_t at = 0;
    if (const auto known = units_.find({station, use.backward});
        known != units_.end() && static_cast<std::size_t>(unit) < known->second.size()) {
      const auto& raw = known->second[static_cast<std::size_t>(unit)];
      const auto behind = std::lower_bound(raw.begin(), raw.end(), use.event,
                                           [](const RawEvent& e, std::size_t number) { return e.number < number; });
      at = position(positions_[{station, use.backward, segment}], static_cast<std::size_t>(behind - raw.begin()));
    }
    segments[segment].uses.push_back({at, use.leaf, use.moment, use.derives});
  }

  /// The real number of a simulated unit, for references from other stations: only first and last can be meant.
  std::int32_t absolute(const Born& b) const {
    const Station& s = tape_.stations[static_cast<std::size_t>(b.station)];
    if (s.simulated <= 1 || b.unit == 0) return 0;
    return -1 - (s.simulated - 1 - b.unit);  // counted from the end: -1 is the last unit
  }

  void check_inner() const {
    for (const auto& [key, simulated] : units_)
      if (simulated.size() > 3 && !same(simulated[1], simulated[2])) throw Defect("two inner layers of a run behave differently");
  }
  static bool same(const std::vector<RawEvent>& a, const std::vector<RawEvent>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const RawEvent& r, const RawEvent& s) {
      const TapeEvent &x = r.event, &y = s.event;
      return x.kind == y.kind && x.site == y.site && x.relative == y.relative && x.offset == y.offset && x.turn == y.turn &&
             r.turn == s.turn;
    });
  }
  void keep_segments() {
    for (const auto& [key, simulated] : units_) {
      const auto [number, backward] = key;
      auto* segments = backward ? tape_.stations[number].backward : tape_.stations[number].forward;
      const std::size_t n = simulated.size();
      const auto keep = [&, station = number, back = backward](int segment, std::size_t unit) {
        auto& positions = positions_[{station, back, segment}];
        segments[segment].events = with_loops(simulated[unit], g_.most_turns == kSimulatedTurns, positions);
        if (back) segments[segment].nested_end = position(positions, nested_ends_[{station, static_cast<int>(unit)}]);
      };
      keep(0, 0);
      if (n > 1) keep(2, n - 1);
      if (n > 2) keep(1, 1);
    }
  }
  /// A place between events, which is in no loop.
  static std::size_t position(const std::vector<std::size_t>& positions, std::size_t raw) {
    const std::size_t out = raw < positions.size() ? positions[raw] : raw;
    if (out == kInLoop) throw UnlikeTurns();
    return out;
  }

  bool ends_nested(const EagerEvent* e) const {
    const auto number = static_cast<std::size_t>(e - g_.events.data());
    return std::find(g_.nested_ends.begin(), g_.nested_ends.end(), number) != g_.nested_ends.end();
  }

  TapeSum flat(const Polynomial& p) {
    TapeSum out;
    for (const auto& [m, bytes] : p.terms) {
      const auto at = std::find(tape_.monomials.begin(), tape_.monomials.end(), m);
      out.emplace_back(static_cast<std::uint32_t>(at - tape_.monomials.begin()), bytes);
      if (at == tape_.monomials.end()) tape_.monomials.push_back(m);
    }
    return out;
  }

  Summary summarise(const Segment& segment, bool adding) {
    struct High {
      Polynomial level;
      std::int64_t event;
    };
    Summary out;
    Polynomial level;
    std::vector<High> highs;
    bool rising = false;
    std::int64_t last_up = 0;
    const auto keep = [&](std::int64_t event) {
      for (const auto& h : highs)
        if (level.dominated_by(h.level)) return;
      std::erase_if(highs, [&](const High& h) { return h.level.dominated_by(level); });
      highs.push_back({level, event});
    };
    const auto pass = [&](const TapeEvent& e) {
      if (e.kind == TapeEvent::Kind::gradient && !adding) return;
      if (tape_.sites[e.site].pool != Pool::torch) {  // no change of the device's level
        ++out.events;
        return;
      }
      interruption_point_at(out.events);
      const Dim& bytes = tape_.sites[e.site].bytes;
      const bool up = e.kind == TapeEvent::Kind::alloc;
      if (rising && !up) keep(last_up);
      if (up) last_up = out.events;
      add(level, e, up ? bytes.coefficient : -bytes.coefficient);
      rising = up;
      ++out.events;
    };
    for (std::size_t i = 0; i < segment.events.size(); ++i) {
      const TapeEvent& e = segment.events[i];
      if (e.of_tensor()) {
        pass(e);
        continue;
      }
      // Every turn adds the same: what is highest in all of them is highest in the first or in the last one.
      const std::size_t end = end_of_loop(segment.events, i);
      const Polynomial before = level;
      const std::int64_t first = out.events;
      for (std::size_t k = i + 1; k < end; ++k) pass(segment.events[k]);
      if (rising) keep(last_up);
      const std::int64_t turn = out.events - first, between = e.turns() - 2;
      add_turns(level, before, between);
      if (last_up >= first) last_up += turn * between;
      out.events += turn * between;
      for (std::size_t k = i + 1; k < end; ++k) pass(segment.events[k]);
      i = end;
    }
    if (rising) keep(last_up);
    out.net = flat(level);
    for (const auto& h : highs) out.highs.push_back({flat(h.level), h.event});
    return out;
  }

  static void append(FlatSummaries& all, const Summary& s) {
    const auto put = [&](const TapeSum& sum, FlatSummaries::Line line) {
      line.terms = static_cast<std::uint32_t>(sum.size());
      all.lines.push_back(line);
      all.terms.insert(all.terms.end(), sum.begin(), sum.end());
    };
    put(s.net, {0, -1, s.events, static_cast<std::uint32_t>(s.highs.size())});
    for (const auto& h : s.highs) put(h.level, {0, h.event, 0, 0});
  }

  /// What a turn has added to `before`, so many times more.
  static void add_turns(Polynomial& level, const Polynomial& before, std::int64_t times) {
    Polynomial turn = level;
    for (const auto& [m, bytes] : before.terms) turn.add(m, -bytes);
    for (const auto& [m, bytes] : turn.terms) level.add(m, bytes * times);
  }
  /// One tensor, or those of all inner units: count - 2 of them.
  void add(Polynomial& level, const TapeEvent& e, Bytes coefficient) const {
    const Monomial m = monomial(tape_.sites[e.site].bytes);
    if (!e.all_inner) return level.add(m, coefficient);
    const std::int64_t count = tape_.stations[tape_.sites[e.site].station].count;
    if (count > 0) return level.add(m, coefficient * (count - 2));
    level.add(m + kTimesChunks, coefficient);
    level.add(m, -2 * coefficient);
  }

  int station_of(int scope) const { return scope / kUnitsPerStation; }
  int unit_of(int scope) const { return scope % kUnitsPerStation; }

  const Eager& g_;
  const ModelRun& run_;
  Tape tape_;
  std::vector<Born> born_;
  std::map<std::pair<std::size_t, bool>, std::vector<std::vector<RawEvent>>> units_;
  std::map<std::tuple<std::size_t, bool, int>, std::vector<std::size_t>> positions_;  ///< of raw events in the segments
  std::map<std::pair<std::size_t, int>, std::size_t> nested_ends_;                    ///< by station and unit
};

}  // namespace

std::int64_t TapeLeaf::elements() const {
  std::int64_t n = 1;
  for (const auto d : shape) n *= d;
  return n;
}

std::shared_ptr<Tape> build_tape(const Eager& g, const ModelRun& run) { return std::make_shared<Tape>(Builder(g, run).build()); }

std::size_t end_of_loop(const std::vector<TapeEvent>& events, std::size_t at) {
  while (events[at].kind != TapeEvent::Kind::end) ++at;
  return at;
}

namespace {

std::shared_ptr<const Tape> make_tape(const Architecture& a, const PassOptions& options, std::int64_t most_turns) {
  Eager g;
  g.most_turns = most_turns;
  const ModelRun run = run_model(g, a, options);
  auto tape = build_tape(g, run);
  for (const auto& leaf : g.leaves) {
    TapeLeaf t{leaf.name, {}, leaf.dtype, static_cast<std::size_t>(leaf.scope / kUnitsPerStation), leaf.trainable};
    if (leaf.scope % kUnitsPerStation != 0) continue;  // one unit of a run stands for all
    t.packed = leaf.packed;
    t.stored_as_is = leaf.stored_as_is;
    t.unreached = leaf.unreached;
    t.passive = leaf.passive;
    t.of_base = leaf.of_base;
    t.shared = leaf.shared;
    t.parts = leaf.replicated ? 1 : options.kernels.tensor;
    for (const auto& d : leaf.shape) t.shape.push_back(d.coefficient);
    tape->leaves.push_back(std::move(t));
  }
  // outside of the layers a gradient may be made in another station than its parameter's: Liger's fused head makes it in the loss
  const auto in_layers = [&](std::size_t station) { return tape->stations[station].place == StationPlace::layers; };
  for (auto& site : tape->sites) {
    if (site.leaf < 0) continue;
    const std::string& name = g.leaves[static_cast<std::size_t>(site.leaf)].name;
    site.leaf = -1;
    for (std::size_t i = 0; i < tape->leaves.size(); ++i)
      if (tape->leaves[i].name == name && (tape->leaves[i].station == site.station || !in_layers(site.station)))
        site.leaf = static_cast<int>(i);
  }
  for (auto& station : tape->stations)
    for (int unit = 0; unit < 3; ++unit)
      for (Segment* segment : {&station.forward[unit], &station.backward[unit]})
        for (auto& use : segment->uses) {
          const Leaf& used = g.leaves[static_cast<std::size_t>(use.leaf)];
          use.leaf = -1;
          for (std::size_t i = 0; i < tape->leaves.size(); ++i)
            if (tape->leaves[i].name == used.name &&
                tape->leaves[i].station == static_cast<std::size_t>(used.scope / kUnitsPerStation))
              use.leaf = static_cast<int>(i);
        }
  for (auto& station : tape->stations)
    for (auto& segment : station.backward)
      for (const auto& e : segment.events)
        if (e.kind == TapeEvent::Kind::gradient) {
          segment.gradients.push_back({e, tape->sites[e.site].leaf, tape->sites[e.site].bytes.coefficient});
          segment.gradient_bytes += segment.gradients.back().bytes;
        }
  tape->tied = a.tied && !options.critic && !is_litgpt(options.kernels.kernels) && options.kernels.kernels != Kernels::archon;
  return tape;
}

}  // namespace

std::shared_ptr<const Tape> make_tape(const Architecture& a, const PassOptions& options) {
  try {
    return make_tape(a, options, kSimulatedTurns);
  } catch (const UnlikeTurns&) {  // turns that are not alike are run all
    return make_tape_of_all_turns(a, options);
  }
}
std::shared_ptr<const Tape> make_tape_of_all_turns(const Architecture& a, const PassOptions& options) {
  return make_tape(a, options, std::numeric_limits<std::int64_t>::max());
}

std::vector<std::pair<TapeSite, int>> saved_of_layer(const Architecture& a, const PassOptions& given, int run_index) {
  PassOptions options = given;
  options.training = true;
  Eager g;
  const ModelRun run = run_model(g, a, options);
  std::vector<std::pair<TapeSite, int>> out;
  for (std::size_t s = 0; s < run.stations.size(); ++s) {
    const auto& station = run.stations[s];
    if (station.place != StationPlace::layers || station.run != run_index) continue;
    const int unit = station.simulated > 2 ? 1 : station.simulated - 1;
    const int scope = static_cast<int>(s) * kUnitsPerStation + unit;
    for (const auto& storage : g.storages) {
      if (storage.scope != scope || storage.backward || !storage.saved) continue;
      const TapeSite site{storage.name,
                          storage.shape,
                          storage.dtype,
                          storage.category,
                          true,
                          elements(storage.shape) * Dim(row(storage.dtype).bits / 8),
                          s,
                          -1,
                          storage.column >= 0,
                          storage.pool,
                          storage.stream};
      const auto at = std::find_if(out.begin(), out.end(), [&](const auto& p) {
        return p.first.shape == site.shape && p.first.dtype == site.dtype && p.first.one_more == site.one_more;
      });
      if (at == out.end())
        out.emplace_back(site, 1);
      else
        ++at->second;
    }
  }
  return out;
}

std::vector<std::int64_t> monomial_values(const Tape& tape, const TokenCounts& n) {
  std::vector<std::int64_t> out;
  out.reserve(tape.monomials.size());
  for (const Monomial m : tape.monomials) out.push_back(value(m, n));
  return out;
}

namespace {

Bytes sum_of(const TapeSum& sum, const std::vector<std::int64_t>& values) {
  Bytes out = 0;
  for (const auto& [m, bytes] : sum) out += bytes * values[m];
  return out;
}

/// A height counts when it is above all before it, or as high and earlier.
void raise(TorchSpan& span, Bytes level, std::int64_t event) {
  if (level > span.peak || (level == span.peak && level > 0 && event < span.witness)) {
    span.peak = level;
    span.witness = event;
  }
}

}  // namespace

TorchSpan evaluate(const Summary& s, const std::vector<std::int64_t>& values) {
  TorchSpan span;
  span.net = sum_of(s.net, values);
  span.events = s.events;
  for (const auto& h : s.highs) raise(span, sum_of(h.level, values), h.event);
  return span;
}

std::vector<TorchSpan> evaluate(const FlatSummaries& all, std::uint32_t segments, const std::vector<std::int64_t>& values) {
  std::vector<TorchSpan> spans(segments);
  const auto* line = all.lines.data();
  const auto* term = all.terms.data();
  const auto sum = [&](std::uint32_t terms) {
    Bytes out = 0;
    for (const auto* end = term + terms; term < end; ++term) out += term->second * values[term->first];
    return out;
  };
  for (TorchSpan& span : spans) {
    const FlatSummaries::Line& net = *line++;
    span.net = sum(net.terms);
    span.events = net.events;
    for (const auto* end = line + net.heights; line < end; ++line) raise(span, sum(line->terms), line->event);
  }
  return spans;
}

std::size_t Tape::station_at(StationPlace place) const {
  const auto found = std::find_if(stations.begin(), stations.end(), [&](const Station& s) { return s.place == place; });
  if (found == stations.end()) throw Defect("a tape without a station that every tape has");
  return static_cast<std::size_t>(found - stations.begin());
}

}  // namespace oomplan
