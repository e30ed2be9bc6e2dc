#include "training/megatron_fsdp_stops.hpp"

#include <algorithm>
#include <string_view>

#include <oomplan/units/errors.hpp>

namespace oomplan {
namespace {

constexpr std::string_view kGradient = ".weight_gradient";
constexpr std::array<std::pair<std::string_view, FsdpModule>, 6> kModules{{{"linear_proj", FsdpModule::proj},
                                                                           {"linear_qkv", FsdpModule::qkv},
                                                                           {"linear_fc1", FsdpModule::fc1},
                                                                           {"linear_fc2", FsdpModule::fc2},
                                                                           {"output_layer", FsdpModule::head},
                                                                           {"embedding", FsdpModule::embedding}}};

FsdpModule module_of(std::string_view site) {
  for (const auto& [name, module] : kModules)
    if (site.ends_with(std::string(name) + std::string(kGradient))) return module;
  throw Defect("a gradient of a matrix that no bucket has");
}

/// Names of sites that only a backward pass makes.
bool derived(std::string_view site) { return site.find("_backward") != std::string_view::npos || site.ends_with(kGradient); }

FsdpStops stops_of(const Tape& tape, const Segment& segment, bool again) {
  FsdpStops out;
  bool found = false;
  for (std::size_t i = 0; i < segment.events.size(); ++i) {
    const TapeEvent& e = segment.events[i];
    const std::string& site = tape.sites[e.site].name;
    const bool makes = e.kind == TapeEvent::Kind::alloc;
    if (again && makes && !found) {
      if (derived(site)) {
        out.derives = out.computes_again ? i : 0;
        found = true;
      } else {
        out.computes_again = true;
      }
    }
    if (e.kind == TapeEvent::Kind::free && site.ends_with(kGradient)) out.gradients.emplace_back(i, module_of(site));
  }
  return out;
}

}  // namespace

FsdpStopsOfTape fsdp_stops(const Tape& tape, const MegatronFsdpPlan& plan) {
  FsdpStopsOfTape out;
  for (const Station& s : tape.stations) {
    out.stations.emplace_back();
    for (const Unit u : {Unit::first, Unit::inner, Unit::last}) {
      const bool again = plan.computes_again && s.place == StationPlace::layers;
      FsdpStops stops = stops_of(tape, s.segment(true, u), again);
      if (plan.tied && s.place != StationPlace::layers && !stops.gradients.empty()) {
        // the last gradient that goes is the sum of both
        const bool last = s.place == StationPlace::embedding;
        stops.gradients = last ? std::vector{std::pair{stops.gradients.back().first, FsdpModule::embedding}}
                               : std::vector<std::pair<std::size_t, FsdpModule>>{};
      }
      out.stations.back()[static_cast<std::size_t>(u)] = std::move(stops);
    }
  }
  return out;
}

}  // namespace oomplan
