#include "layers/vision_counted.hpp"

#include <algorithm>
#include <string>

#include "layers/model.hpp"

namespace oomplan {
namespace {

/// What comes in front of the layer's number: rows of blocks of one kind have it in common.
std::string stack_of(const Parameter& p) { return p.name.substr(0, p.name.find("{l}")); }

}  // namespace

CountedTower::CountedTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations)
    : VisionTower(g, a, o, stations) {
  Group front, rest{StationPlace::merge, -1, 1, {}};
  std::vector<Group> stacks;
  for (Parameter& p : parameters(a)) {
    if (p.part != ParameterPart::tower || p.kind == ParameterKind::table) continue;
    if (p.layers == 1) {
      (stacks.empty() ? front : rest).rows.push_back(std::move(p));
      continue;
    }
    if (stacks.empty() || stack_of(stacks.back().rows.front()) != stack_of(p))
      stacks.push_back({StationPlace::layers, -1, p.layers, {}});
    stacks.back().rows.push_back(std::move(p));
  }
  groups_.push_back(std::move(front));
  for (Group& stack : stacks) groups_.push_back(std::move(stack));
  groups_.push_back(std::move(rest));
}

void CountedTower::plan(std::vector<Station>& stations, std::size_t first_run) {
  for (Group& group : groups_) {
    if (group.place == StationPlace::layers) group.run = static_cast<int>(first_run++);
    Station s;
    s.place = group.place;
    s.run = group.run;
    s.count = group.count;
    s.simulated = static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, group.count));
    stations.push_back(s);
  }
}

void CountedTower::declare() {
  first_leaf_ = g_.leaves.size();
  for (const Group& group : groups_)
    for (int unit = 0; unit < std::min<std::int64_t>(kSimulatedUnits, group.count); ++unit) {
      enter(group.place, group.run, unit);
      for (const Parameter& p : group.rows)
        for (std::int64_t copy = 0; copy < p.copies; ++copy)
          g_.parameter(p.name, Shape(p.shape.begin(), p.shape.end()), o_.kernels.parameters, false);
    }
  last_leaf_ = g_.leaves.size();
}

}  // namespace oomplan
