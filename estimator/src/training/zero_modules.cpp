#include "training/zero_modules.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

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
  Walker(const Tape& tape, const ZeroSaves& saves) : tape_(tape), saves_(saves) {
    for (const TapeLeaf& leaf : tape.leaves) {
      out_.first.push_back(out_.count);
      out_.count += static_cast<int>(units(leaf.station));
    }
    find_outside();
    find_adapted();
    find_blocks();
    if (saves_.blocks) find_paths();
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

  /// Modules that peft has put one of its own around.
  void find_adapted() {
    for (const TapeLeaf& leaf : tape_.leaves)
      if (const auto at = leaf.name.find(kFirstOfPair); at != std::string::npos) adapted_.insert(leaf.name.substr(0, at));
  }
  bool is_adapted(const TapeLeaf& leaf) const { return adapted_.count(leaf.name.substr(0, leaf.name.rfind('.'))) > 0; }
  static bool is_first_of_pair(const TapeLeaf& leaf) { return leaf.name.find(kFirstOfPair) != std::string::npos; }

  /// What is in a block of experts that is one module.
  void find_blocks() {
    out_.waits.assign(tape_.leaves.size(), false);
    for (const TapeLeaf& stack : tape_.leaves) {
      if (!saves_.blocks || !is_stack(stack)) continue;
      for (std::size_t i = 0; i < tape_.leaves.size(); ++i)
        if (tape_.leaves[i].station == stack.station && tape_.leaves[i].name.find(kBlock) != std::string::npos)
          out_.waits[i] = true;
    }
  }
  void find_paths() {
    for (std::size_t i = 0; i < tape_.leaves.size(); ++i)
      for (std::int64_t u = 0; u < units(tape_.leaves[i].station); ++u)
        parameter_paths_.emplace_back(out_.parameter(i, u), path_of(i, u));
  }
  bool in_block(const TapeUse& use) const { return out_.waits[static_cast<std::size_t>(use.leaf)]; }

  bool in_layers(const TapeUse& use) const {
    return tape_.stations[tape_.leaves[static_cast<std::size_t>(use.leaf)].station].place == StationPlace::layers;
  }
  std::int64_t unit_of(const TapeUse& use, const ZeroPlace& here) const { return in_layers(use) ? here.unit : 0; }

  void enter_model(bool backward) {
    for (Path& path : paths_) path.clear();
    const std::size_t s = backward ? tape_.stations.size() - 1 : 0;
    place_ = {backward, s, backward ? units(s) - 1 : 0, 0};
    std::vector<int> own;
    for (std::size_t i = 0; i < tape_.leaves.size(); ++i)
      if (out_.outside[i]) own.push_back(out_.parameter(i, 0));
    put(UseMoment::begins, module("model's own call"), own);
    out_.calls.back().contained = contained_in({});
  }
  void walk(bool backward, std::size_t s, std::int64_t unit) {
    const Segment& segment = tape_.stations[s].segment(backward, kind(unit, units(s)));
    if (backward && tape_.stations[s].place == StationPlace::layers) begin_layer({backward, s, unit, 0});
    for (std::size_t i = 0; i < segment.uses.size(); ++i) {
      const TapeUse& use = segment.uses[i];
      if (out_.outside[static_cast<std::size_t>(use.leaf)]) continue;
      const ZeroPlace here{backward, s, unit, use.at};
      switch (use.moment) {
        case UseMoment::begins:
          enter(use, here);
          break;
        case UseMoment::ran:
          if (comes_again(segment, i)) break;
          place_ = here;
          put(UseMoment::ran, -1, {out_.parameter(static_cast<std::size_t>(use.leaf), unit_of(use, here))});
          break;
        case UseMoment::ends:
          if (in_block(use) && !use.derives) break;  // an inner module's
          if (!goes_on(segment, i)) leave(use, here);
          break;
        case UseMoment::opens:
          if (is_module_of_its_own(use)) open_around(use, here);
          break;
        case UseMoment::closes:
          if (!is_module_of_its_own(use)) break;
          leave_forward(here);
          leave_around(module_around(use, here), here);
          break;
      }
    }
    if (backward && tape_.stations[s].checkpointed) {
      place_ = {backward, s, unit, segment.events.size()};
      put(UseMoment::ends, layer(place_), {}, true);
    }
    if (tape_.stations[s].place == StationPlace::embedding && !backward) put(UseMoment::begins, module("rotary"), {});
  }

  /// Stacks of experts, which are one module's.
  static bool is_stack(const TapeLeaf& leaf) { return leaf.name.ends_with(kFirstStack) || leaf.name.ends_with(kSecondStack); }
  /// A loop over experts works with each stack again and again.
  bool comes_again(const Segment& segment, std::size_t at) const {
    const TapeUse& use = segment.uses[at];
    return std::any_of(segment.uses.begin() + static_cast<std::ptrdiff_t>(at) + 1, segment.uses.end(), [&](const TapeUse& o) {
      return o.leaf == use.leaf && o.moment == use.moment && o.derives == use.derives;
    });
  }
  /// The backward pass of a module with several parameters of its own is over with the last node that works with one of them.
  bool goes_on(const Segment& segment, std::size_t at) const {
    const auto inside = [&](const TapeUse& o) {
      return o.derives && (in_block(o) || is_stack(tape_.leaves[static_cast<std::size_t>(o.leaf)]));
    };
    return inside(segment.uses[at]) &&
           std::any_of(segment.uses.begin() + static_cast<std::ptrdiff_t>(at) + 1, segment.uses.end(), inside);
  }

  /// Its backward pass begins; a recomputation happens inside of it.
  void begin_layer(const ZeroPlace& here) {
    const Path path{"model", word_of(here.station, here.unit)};
    paths_[false] = path;
    contain(path, path.size(), true, here);
  }
  static std::string word_of(std::size_t station, std::int64_t unit) {
    return "layer " + std::to_string(station) + " " + std::to_string(unit);
  }

  /// Modules that contain this one call first, where they were not entered before.
  void enter(const TapeUse& use, const ZeroPlace& here) {
    if (in_block(use)) return enter_block(use, here);
    const TapeLeaf& leaf = tape_.leaves[static_cast<std::size_t>(use.leaf)];
    const Path path = path_of(use, here);
    const int own = module(joined(path)), parameter = number_of(use, here);
    if (!open_.empty() && open_.back().module == own && open_.back().derives == use.derives) {  // its bias, or it again
      place_ = here;
      if (leaf.name.ends_with(use.derives ? kFirstStack : kSecondStack)) put(UseMoment::begins, module("activation"), {});
      put_into(out_.calls[open_.back().call], parameter, use, here);
      return;
    }
    if (use.derives && (is_adapted(leaf) || in_pair(path))) open_around(use, here);
    leave_forward(here);
    go_to(path, use.derives, here);
    if (use.derives ? is_adapted(leaf) : is_first_of_pair(leaf)) put(UseMoment::begins, module("dropout of a pair"), {});
    begin(own, use.derives ? members_[own] : std::vector<int>{}, use, here);
    put_into(out_.calls.back(), parameter, use, here);
  }
  /// In a block that is one module, which may have opened already.
  void enter_block(const TapeUse& use, const ZeroPlace& here) {
    open_around(use, here);
    const int own = module_around(use, here);
    for (const Open& one : open_)
      if (one.module == own && one.derives == use.derives) put_into(out_.calls[one.call], number_of(use, here), use, here);
  }
  int number_of(const TapeUse& use, const ZeroPlace& here) const {
    return out_.parameter(static_cast<std::size_t>(use.leaf), unit_of(use, here));
  }
  Path path_of(const TapeUse& use, const ZeroPlace& here) const {
    return path_of(static_cast<std::size_t>(use.leaf), unit_of(use, here));
  }
  Path path_of(std::size_t number, std::int64_t unit) const {
    const TapeLeaf& leaf = tape_.leaves[number];
    Path path = split_name(leaf.name);
    path.pop_back();  // weight, bias
    if (tape_.stations[leaf.station].place == StationPlace::layers) {
      path[0] = word_of(leaf.station, unit);
      path.insert(path.begin(), "model");
    }
    if (is_adapted(leaf)) path.emplace_back("base_layer");
    return path;
  }
  static std::string joined(const Path& path) {
    std::string whole;
    for (const auto& word : path) whole += word + ".";
    return whole;
  }
  static bool in_pair(const Path& path) { return path.back() == "lora_A" || path.back() == "lora_B"; }
  void go_to(const Path& path, bool derives, const ZeroPlace& here) {
    place_ = here;
    activation_between(paths_[derives], path);
    contain(path, path.size() - 1, derives, here);
    paths_[derives] = path;
  }
  /// The first `depth` words of a path are modules that contain others.
  void contain(const Path& path, std::size_t depth, bool derives, const ZeroPlace& here) {
    place_ = here;
    Path& known = paths_[derives];
    for (std::size_t i = 0; i < depth; ++i)
      if (i >= known.size() || known[i] != path[i]) {
        known.assign(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        put(UseMoment::begins, module("container " + path[i]), {}, derives);
        out_.calls.back().contained = contained_in(known);
      }
  }
  /// Asked for only where a block is one module.
  std::vector<int> contained_in(const Path& path) const {
    std::vector<int> out;
    for (const auto& [parameter, whole] : parameter_paths_)
      if (whole.size() > path.size() && std::equal(path.begin(), path.end(), whole.begin())) out.push_back(parameter);
    return out;
  }
  void begin(int own, const std::vector<int>& parameters, const TapeUse& use, const ZeroPlace& here, bool around = false) {
    put(UseMoment::begins, own, parameters, use.derives);
    if (here.backward && !use.derives) out_.calls.back().within = deriving(here);
    open_.push_back({own, out_.calls.size() - 1, use.derives, around});
  }
  /// The module whose backward pass began last: of a recomputation that is not reentrant one inside of the layer.
  int deriving(const ZeroPlace& here) {
    for (std::size_t i = open_.size(); i-- > 0;)
      if (open_[i].derives) return open_[i].module;
    return layer(here);
  }
  int layer(const ZeroPlace& here) { return module("container " + word_of(here.station, here.unit)); }
  /// Of those around others: peft's around a base layer and its pair, of which it has the first matrix as an external parameter;
  /// a module of stacks; a block of experts where it is one module. Other blocks of experts contain theirs like all containers.
  bool is_module_of_its_own(const TapeUse& use) const {
    const TapeLeaf& leaf = tape_.leaves[static_cast<std::size_t>(use.leaf)];
    return in_block(use) || is_first_of_pair(leaf) || is_stack(leaf);
  }
  void open_around(const TapeUse& use, const ZeroPlace& here) {
    const Path path = path_around(use, here);
    const int own = module(joined(path));
    if (std::any_of(open_.begin(), open_.end(), [&](const Open& o) { return o.module == own && o.derives == use.derives; }))
      return;
    leave_forward(here);
    go_to(path, use.derives, here);
    if (!use.derives) members_[own] = members_around(use, here);
    begin(own, members_[own], use, here, true);
    out_.calls.back().whole = in_block(use);
  }
  Path path_around(const TapeUse& use, const ZeroPlace& here) const {
    Path path = path_of(use, here);
    if (in_block(use))
      path.resize(3);  // model, its layer, the block
    else if (!is_stack(tape_.leaves[static_cast<std::size_t>(use.leaf)]))
      path.pop_back();
    return path;
  }
  int module_around(const TapeUse& use, const ZeroPlace& here) { return module(joined(path_around(use, here))); }
  std::vector<int> members_around(const TapeUse& use, const ZeroPlace& here) const {
    if (!in_block(use)) return {number_of(use, here)};
    std::vector<int> out;
    for (std::size_t i = 0; i < tape_.leaves.size(); ++i)
      if (out_.waits[i] && tape_.leaves[i].station == here.station) out.push_back(out_.parameter(i, here.unit));
    return out;
  }
  void leave_around(int own, const ZeroPlace& here) {
    for (std::size_t i = open_.size(); i-- > 0;)
      if (open_[i].module == own && !open_[i].derives) leave(i, here);
  }
  /// The activation is a module too: gate_proj, act_fn, up_proj; in backward up_proj, act_fn, gate_proj.
  void activation_between(const Path& before, const Path& path) {
    const auto [last, next] = std::mismatch(before.begin(), before.end(), path.begin(), path.end());
    if (last == before.end() || next == path.end()) return;
    if ((*last == "gate_proj" && *next == "up_proj") || (*last == "up_proj" && *next == "gate_proj"))
      put(UseMoment::begins, module("activation"), {});
  }
  /// Operators that do not say when they end do so when the next module begins.
  void leave_forward(const ZeroPlace& here) {
    for (std::size_t i = open_.size(); i-- > 0;)
      if (!open_[i].derives && !open_[i].around) leave(i, here);
  }
  void leave(const TapeUse& use, const ZeroPlace& here) {
    for (std::size_t i = open_.size(); i-- > 0;) {
      const Open& one = open_[i];
      const std::vector<int>& own = out_.calls[one.call].parameters;
      const auto is = [&](int p) { return leaf_of(p) == static_cast<std::size_t>(use.leaf); };
      const bool pairs = one.around && !is_stack_or_block(use);
      if (one.derives != use.derives || pairs || !std::any_of(own.begin(), own.end(), is)) continue;
      const int module = one.module;
      leave(i, here);
      if (!use.derives) return;
      break_off(module);
      // the base layer was called first, so its backward pass is the last of those inside
      if (is_adapted(tape_.leaves[static_cast<std::size_t>(use.leaf)])) leave_pair(use, here);
      return;
    }
  }
  bool is_stack_or_block(const TapeUse& use) const {
    return in_block(use) || is_stack(tape_.leaves[static_cast<std::size_t>(use.leaf)]);
  }
  void leave_pair(const TapeUse& use, const ZeroPlace& here) {
    const int own = module_around(use, here);
    for (std::size_t i = open_.size(); i-- > 0;)
      if (open_[i].module == own && open_[i].derives) leave(i, here);
    break_off(own);
  }
  /// What a recomputation opened and did not close, because it had all that was saved.
  void break_off(int own) {
    std::erase_if(open_, [own](const Open& o) { return o.module == own && o.around && !o.derives; });
  }
  void leave(std::size_t number, const ZeroPlace& here) {
    const ZeroCall entered = out_.calls[open_[number].call];
    const bool derives = open_[number].derives;
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(number));
    place_ = here;
    put(UseMoment::ends, entered.module, entered.parameters, derives);
    const auto waits = [this](int p) { return static_cast<bool>(out_.waits[leaf_of(p)]); };
    out_.calls.back().whole = entered.whole;
    out_.calls.back().reduces = derives && std::any_of(entered.parameters.begin(), entered.parameters.end(), waits);
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
  /// A weight is, for its node; a linear layer's bias is not. A view is saved wherever a graph is made, trained or not.
  bool is_saved(const TapeUse& use, const ZeroPlace& here) const {
    const Station& station = tape_.stations[here.station];
    const TapeLeaf& leaf = tape_.leaves[static_cast<std::size_t>(use.leaf)];
    const bool view = saves_.views && is_stack(leaf), makes_graph = here.backward == station.checkpointed;
    if (use.derives || !makes_graph || !(view || (saves_.detaches && here.backward && leaf.trainable))) return false;
    const Segment& segment = station.segment(true, kind(here.unit, units(here.station)));
    return std::any_of(segment.uses.begin(), segment.uses.end(),
                       [&](const TapeUse& other) { return other.derives && other.leaf == use.leaf; });
  }
  void put(UseMoment moment, int module, std::vector<int> parameters, bool derives = false) {
    out_.calls.push_back({moment, module, std::move(parameters), {}, derives});
    out_.places.push_back(place_);
  }
  int module(const std::string& name) { return modules_.emplace(name, static_cast<int>(modules_.size())).first->second; }

  static constexpr std::string_view kFirstOfPair = ".lora_A.";
  static constexpr std::string_view kBlock = ".mlp.";
  static constexpr std::string_view kFirstStack = ".experts.gate_up_proj", kSecondStack = ".experts.down_proj";
  const Tape& tape_;
  ZeroSaves saves_;
  std::set<std::string> adapted_;
  ZeroModules out_;
  ZeroPlace place_;
  Path paths_[2];  ///< where a forward pass is, and where the backward pass is
  struct Open {
    int module;
    std::size_t call;
    bool derives;
    bool around = false;  ///< others are inside
  };
  std::vector<Open> open_;                             ///< modules that work just now
  std::vector<std::pair<int, Path>> parameter_paths_;  ///< known where a block is one module
  std::map<std::string, int> modules_;
  std::map<int, std::vector<int>> members_;  ///< of every module: the parameters that its forward pass uses
};

}  // namespace

ZeroModules zero_modules(const Tape& tape, const ZeroSaves& saves) { return Walker(tape, saves).run(); }

}  // namespace oomplan
