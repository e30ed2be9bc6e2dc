#include "training/zero_modules.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

namespace oomplan {
namespace {

using Path = std::vector<std::string>;

Path split_name(std::string_view name) {
  Path out;
  while (!name.empty()) {
    const auto dot = name.find('.');
    out.emplace_back(name.substr(0, dot));
    name = dot == std::string_view::npos ? std::string_view{} : name.substr(dot + 1);
  }
  return out;
}

class Walker {
 public:
  Walker(const Tape& tape, bool detaches) : tape_(tape), detaches_(detaches) {
    for (const TapeLeaf& leaf : tape.leaves) {
      out_.first.push_back(out_.count);
      out_.count += static_cast<int>(units(leaf.station));
    }
    find_outside();
  }

  ZeroModules run() {
    const std::size_t n = tape_.stations.size();
    enter_model(false);
    for (std::size_t s = 0; s < n; ++s)
      for (std::int64_t u = 0; u < units(s); ++u) walk(false, s, u);
    if (has_backward()) {
      leave_forward({true, n - 1, units(n - 1) - 1, 0});
      enter_model(true);
      for (std::size_t s = n; s-- > 0;)
        for (std::int64_t u = units(s); u-- > 0;) walk(true, s, u);
    }
    return std::move(out_);
  }

 private:
  std::int64_t units(std::size_t station) const { return std::max<std::int64_t>(1, tape_.stations[station].count); }
  bool has_backward() const {
    return std::any_of(tape_.stations.begin(), tape_.stations.end(),
                       [](const Station& s) { return !s.backward[0].events.empty(); });
  }
  static Unit kind(std::int64_t unit, std::int64_t units) {
    return unit == 0 ? Unit::first : unit + 1 == units ? Unit::last : Unit::inner;
  }
  /// A fused loss takes the output layer's weight, not the layer: the weight becomes an external parameter of the model, which
  /// gathers it when it is called and never releases it (parameter_offload.py: ZeROOrderedDict; release_sub_module).
  void find_outside() {
    out_.outside.assign(tape_.leaves.size(), false);
    for (const Station& station : tape_.stations) {
      if (station.place != StationPlace::loss && station.place != StationPlace::chunks) continue;
      for (const TapeUse& use : station.forward[0].uses) out_.outside[static_cast<std::size_t>(use.leaf)] = true;
    }
  }

  bool in_layers(const TapeUse& use) const {
    return tape_.stations[tape_.leaves[static_cast<std::size_t>(use.leaf)].station].place == StationPlace::layers;
  }
  std::int64_t unit_of(const TapeUse& use, const ZeroPlace& here) const { return in_layers(use) ? here.unit : 0; }

  void enter_model(bool backward) {
    path_.clear();
    const std::size_t s = backward ? tape_.stations.size() - 1 : 0;
    place_ = {backward, s, backward ? units(s) - 1 : 0, 0};
    std::vector<int> own;
    for (std::size_t i = 0; i < tape_.leaves.size(); ++i)
      if (out_.outside[i]) own.push_back(out_.parameter(i, 0));
    put(UseMoment::begins, module("model's own call"), own);
  }
  void walk(bool backward, std::size_t s, std::int64_t unit) {
    const Segment& segment = tape_.stations[s].segment(backward, kind(unit, units(s)));
    for (const TapeUse& use : segment.uses) {
      if (out_.outside[static_cast<std::size_t>(use.leaf)]) continue;
      const ZeroPlace here{backward, s, unit, use.at};
      switch (use.moment) {
        case UseMoment::begins:
          enter(use, here);
          break;
        case UseMoment::ran:
          place_ = here;
          put(UseMoment::ran, -1, {out_.parameter(static_cast<std::size_t>(use.leaf), unit_of(use, here))});
          break;
        case UseMoment::ends:
          leave(use, here);
          break;
      }
    }
    if (tape_.stations[s].place == StationPlace::embedding && !backward) put(UseMoment::begins, module("rotary"), {});
  }

  /// Modules that contain this one call first, where they were not entered before. Derivatives come behind a recomputation of the
  /// whole layer, which has left all of them.
  void enter(const TapeUse& use, const ZeroPlace& here) {
    const TapeLeaf& leaf = tape_.leaves[static_cast<std::size_t>(use.leaf)];
    const bool layers = in_layers(use);
    const std::int64_t unit = unit_of(use, here);
    Path path = split_name(leaf.name);
    path.pop_back();  // weight, bias
    if (layers) {
      path[0] = "layer " + std::to_string(leaf.station) + " " + std::to_string(unit);
      path.insert(path.begin(), "model");
    }
    std::string whole;
    for (const auto& word : path) whole += word + ".";
    const int own = module(whole);
    const int parameter = out_.parameter(static_cast<std::size_t>(use.leaf), unit);
    if (!open_.empty() && open_.back().module == own && open_.back().derives == use.derives) {  // its bias, or it again
      put_into(out_.calls[open_.back().call], parameter, use, here);
      return;
    }
    leave_forward(here);
    place_ = here;
    if (use.derives != derives_) path_.clear();
    derives_ = use.derives;
    activation_between(path);
    for (std::size_t depth = 0; depth + 1 < path.size(); ++depth)
      if (depth >= path_.size() || path_[depth] != path[depth]) {
        path_.assign(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(depth) + 1);
        put(UseMoment::begins, module("container " + path[depth]), {});
      }
    path_ = path;
    put(UseMoment::begins, own, use.derives ? members_[own] : std::vector<int>{});
    put_into(out_.calls.back(), parameter, use, here);
    open_.push_back({own, out_.calls.size() - 1, use.derives});
  }
  /// The activation is a module too: gate_proj, act_fn, up_proj; in backward up_proj, act_fn, gate_proj.
  void activation_between(const Path& path) {
    if (path_.empty() || path_.size() != path.size()) return;
    const bool pair =
        (path_.back() == "gate_proj" && path.back() == "up_proj") || (path_.back() == "up_proj" && path.back() == "gate_proj");
    if (pair) put(UseMoment::begins, module("activation"), {});
  }
  /// Operators that do not say when they end do so when the next module begins.
  void leave_forward(const ZeroPlace& here) {
    for (std::size_t i = open_.size(); i-- > 0;)
      if (!open_[i].derives) leave(i, here);
  }
  void leave(const TapeUse& use, const ZeroPlace& here) {
    for (std::size_t i = open_.size(); i-- > 0;) {
      const Open& one = open_[i];
      const std::vector<int>& own = out_.calls[one.call].parameters;
      const auto is = [&](int p) { return leaf_of(p) == static_cast<std::size_t>(use.leaf); };
      if (one.derives == use.derives && std::any_of(own.begin(), own.end(), is)) return leave(i, here);
    }
  }
  void leave(std::size_t number, const ZeroPlace& here) {
    const ZeroCall entered = out_.calls[open_[number].call];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(number));
    place_ = here;
    put(UseMoment::ends, entered.module, entered.parameters);
  }
  std::size_t leaf_of(int parameter) const {
    const auto behind = std::upper_bound(out_.first.begin(), out_.first.end(), parameter);
    return static_cast<std::size_t>(behind - out_.first.begin()) - 1;
  }
  static void add(std::vector<int>& known, int parameter) {
    if (std::find(known.begin(), known.end(), parameter) == known.end()) known.push_back(parameter);
  }
  void put_into(ZeroCall& call, int parameter, const TapeUse& use, const ZeroPlace& here) {
    add(call.parameters, parameter);
    if (!use.derives) add(members_[call.module], parameter);
    if (is_saved(use, here)) add(call.saved, parameter);
  }
  /// A weight is, for its node; a linear layer's bias is not.
  bool is_saved(const TapeUse& use, const ZeroPlace& here) const {
    const Station& station = tape_.stations[here.station];
    if (!detaches_ || !here.backward || use.derives || !station.checkpointed) return false;
    const Segment& segment = station.segment(true, kind(here.unit, units(here.station)));
    return std::any_of(segment.uses.begin(), segment.uses.end(),
                       [&](const TapeUse& other) { return other.derives && other.leaf == use.leaf; });
  }
  void put(UseMoment moment, int module, std::vector<int> parameters) {
    out_.calls.push_back({moment, module, std::move(parameters)});
    out_.places.push_back(place_);
  }
  int module(const std::string& name) { return modules_.emplace(name, static_cast<int>(modules_.size())).first->second; }

  const Tape& tape_;
  bool detaches_;
  ZeroModules out_;
  ZeroPlace place_;
  Path path_;
  bool derives_ = false;
  struct Open {
    int module;
    std::size_t call;
    bool derives;
  };
  std::vector<Open> open_;  ///< modules that work just now
  std::map<std::string, int> modules_;
  std::map<int, std::vector<int>> members_;  ///< of every module: the parameters that its forward pass uses
};

}  // namespace

ZeroModules zero_modules(const Tape& tape, bool detaches) { return Walker(tape, detaches).run(); }

}  // namespace oomplan
