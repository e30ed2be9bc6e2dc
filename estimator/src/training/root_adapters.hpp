// Adapters and trained copies beside FSDP1's embedding and output layer. Those are no units, so what is trained there is a unit
// of its own inside of the root (peft/utils/other.py fsdp_auto_wrap_policy, 0.21.2).
//
// Each is gathered in front of its module, cast, flattened and reduced as a layer's unit is: a copy is as large as a table. The
// hooks take it into their order (torch/distributed/fsdp/_exec_order_utils.py): the root's gathers the output layer's last one
// ahead, the first layer's the embedding's.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "layers/tape.hpp"

namespace oomplan {

/// Numbers of the root's adapters at a station, as their modules run. `number(leaf)`: of the adapter that has this parameter; -1.
template <class Number>
std::vector<int> adapters_as_run(const Tape& tape, std::size_t station, Number&& number) {
  std::vector<int> out;
  for (const TapeUse& use : tape.stations[station].segment(false, Unit::first).uses) {
    const int one = use.moment == UseMoment::begins ? number(use.leaf) : -1;
    if (one >= 0 && std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
  }
  return out;
}

/// What a pass does at uses of their parameters (Player::play_uses). An engine gathers and reshards one unless that was done, and
/// gathers what ran before a station.
template <class Engine, class Reduce>
class RootAdapters {
 public:
  RootAdapters(Engine& engine, const Tape& tape, std::size_t station, Reduce reduce)
      : engine_(engine),
        tape_(tape),
        station_(station),
        reduce_(std::move(reduce)),
        order_(engine.root_adapters(tape, station)) {}
  bool operator()(const TapeUse& use, bool act) {
    if (use.moment != UseMoment::begins && use.moment != UseMoment::ends) return false;
    const auto here = std::find(order_.begin(), order_.end(), engine_.adapter_of(use.leaf));
    if (here == order_.end()) return false;
    if (!act) return true;
    if (use.moment == UseMoment::begins) {
      engine_.gather_root_adapter(*here);
      if (use.derives && engine_.gathers_ahead_in_front()) gather_before(*here);
    } else if (use.derives) {
      reduce_(*here, [this, one = *here] { gather_before(one); });
    } else {
      engine_.leave_root_adapter(*here);
    }
    return true;
  }

 private:
  void gather_before(int one) {
    const auto here = std::find(order_.begin(), order_.end(), one);
    if (here != order_.begin()) return engine_.gather_root_adapter(*(here - 1));
    engine_.gather_in_front_of(tape_, station_);
  }

  Engine& engine_;
  const Tape& tape_;
  std::size_t station_;
  Reduce reduce_;
  std::vector<int> order_;
};

}  // namespace oomplan
