// Plays the stations of a tape into a recorder: folded summaries into a PeakRecorder, single events into a ProgramWriter.
#pragma once
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/program.hpp>

#include "layers/tape.hpp"
#include "training/folded_tape.hpp"

namespace oomplan {

/// Which of a unit's gradients: a loop variable of the reduction still holds the last parameter's one while the others are gone.
enum class Which : std::uint8_t { all, all_but_last, last };
/// Where a backward segment can be cut in two: in front of what makes its last gradient of a leaf, where that is accumulated
/// (behind the node that made it, which has let go of what it had saved), or behind a reentrant checkpoint's own backward pass.
enum class Cut : std::uint8_t { last_gradient, last_accumulated, nested_end };

template <class R>
class Player {
 public:
  /// `role` stands before the names of sites. `folded`: of this tape and these counts, where roles share one.
  /// REQUIRES: tape and folded outlive the player.
  Player(R& r, const Tape& tape, const TokenCounts& counts, std::int64_t chunks, std::string_view role,
         FoldedTape* folded = nullptr)
      : r_(r), tape_(tape), counts_(counts), chunks_(chunks), own_(tape, counts), folded_(folded != nullptr ? *folded : own_) {
    if constexpr (R::kWrites)
      register_sites(role.empty() ? "" : std::string(role) + ".");
    else
      (void)role;
  }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  const Tape& tape() const { return tape_; }
  std::int64_t count(std::size_t station) const {
    return tape_.stations[station].count == 0 ? chunks_ : tape_.stations[station].count;
  }

  /// The next output layer that is played backward makes `site` behind its first tensor, which is the first matrix product of
  /// autograd's thread: a gradient, or of a head in chunks its logits, which it computes again.
  void make_at_product(const SiteRef& site) { at_product_ = site; }
  /// What runs when the model has returned, in front of the loss.
  void before_loss(std::function<void()> act) { before_loss_ = std::move(act); }
  /// Makes it now, when no output layer has come.
  void make_if_not_made() {
    if (at_product_) r_.alloc(*std::exchange(at_product_, std::nullopt));
  }

  /// One unit of a station. `at` is its number within the station (opaque inside a repeat).
  void play(std::size_t station, bool backward, Unit unit, Index at, Index micro_batch,
            LeafGradients gradients = LeafGradients::keep) {
    if (before_loss_ && !backward && tape_.stations[station].place == StationPlace::loss) [[unlikely]]
      before_loss_();
    const Segment& segment = tape_.stations[station].segment(backward, unit);
    if (at_product_ && backward && multiplies(tape_.stations[station].place)) [[unlikely]] {
      const std::size_t behind = behind_first_tensor(segment);
      play_part(segment, 0, behind, at, micro_batch, gradients);
      make_if_not_made();
      return play_part(segment, behind, segment.events.size(), at, micro_batch, gradients);
    }
    if constexpr (R::kWrites) {
      write(segment.events, 0, segment.events.size(), at, micro_batch, gradients);
    } else {
      if (segment.events.empty()) return;
      if (gradients == LeafGradients::add)
        r_.call(folded_.segment_adding(segment));
      else if (gradients == LeafGradients::move)
        r_.call(folded_.segment_moving(segment));
      else
        r_.call(folded_.segment(segment));
      if (segment.on_host) [[unlikely]]
        r_.call(folded_.host(segment, 0, segment.events.size()));
    }
  }

  /// Behind the forward pass, and behind a reference's: what the step's names hold goes.
  void leave_step(Index micro_batch) {
    if (tape_.leaving.events.empty()) return;
    play_part(tape_.leaving, 0, tape_.leaving.events.size(), Index(0), micro_batch, LeafGradients::keep);
  }

  /// A unit's backward pass with `between` at the cut; the end when there is none such.
  template <class Between>
  void play_cut(std::size_t station, Unit unit, Index at, Index micro_batch, Cut cut, LeafGradients gradients,
                Between&& between) {
    const Segment& segment = tape_.stations[station].segment(true, unit);
    const std::size_t n = segment.events.size(), where = place_of(segment, cut);
    const std::size_t middle = where == 0 ? n : where;
    play_part(segment, 0, middle, at, micro_batch, gradients);
    between();
    play_part(segment, middle, n, at, micro_batch, gradients);
  }

  /// A unit's segment, stopped at every use of a parameter for which on_use(use, false) holds, where on_use(use, true) acts; and
  /// at the cut, if there is one, as play_cut.
  template <class OnUse, class Between>
  void play_uses(std::size_t station, bool backward, Unit unit, Index at, Index micro_batch, std::optional<Cut> cut,
                 LeafGradients gradients, OnUse&& on_use, Between&& between) {
    const Segment& segment = tape_.stations[station].segment(backward, unit);
    const std::size_t n = segment.events.size(), where = cut ? place_of(segment, *cut) : 0;
    const std::size_t middle = where == 0 ? n : where;
    std::size_t from = 0;
    bool is_cut = !cut.has_value();
    const auto go_to = [&](std::size_t to) {
      if (to > from) play_part(segment, from, to, at, micro_batch, gradients);
      from = to;
    };
    const auto pass_cut = [&] {
      go_to(middle);
      is_cut = true;
      between();
    };
    for (const TapeUse& use : segment.uses) {
      if (!on_use(use, false)) continue;
      if (!is_cut && middle < use.at) pass_cut();  // what ends where it is has ended
      go_to(use.at);
      on_use(use, true);
    }
    if (!is_cut) pass_cut();
    go_to(n);
  }
  /// A unit's pass with `between` in front of the last tensor whose name has `part`; behind the pass when there is none such.
  template <class Between>
  void play_around(std::size_t station, bool backward, Unit unit, Index at, Index micro_batch, std::string_view part,
                   Between&& between) {
    const Segment& segment = tape_.stations[station].segment(backward, unit);
    const std::size_t all = segment.events.size(), middle = last_of(segment, part);
    play_part(segment, 0, middle, at, micro_batch, LeafGradients::keep);
    between();
    play_part(segment, middle, all, at, micro_batch, LeafGradients::keep);
  }

  /// Events `from` to `to` of a unit's segment.
  void play_events(const Segment& segment, std::size_t from, std::size_t to, Index at, Index micro_batch,
                   LeafGradients gradients = LeafGradients::keep) {
    play_part(segment, from, to, at, micro_batch, gradients);
  }
  /// Frees one of the gradients that a unit's backward pass has left.
  void free_gradient(const LeftGradient& gradient, Index at, Index micro_batch) {
    if constexpr (R::kWrites)
      r_.free(refs_[gradient.event.site], gradient.event.relative ? at : resolve(gradient.event), micro_batch);
    else
      r_.free(gradient.bytes);
  }

  /// Frees the gradients that the unit's backward pass has left (they have been reduced).
  void free_gradients(std::size_t station, Unit unit, Index at, Index micro_batch, Which which = Which::all, int last_leaf = -1) {
    const Segment& segment = tape_.stations[station].segment(true, unit);
    if constexpr (R::kWrites) {
      for (const auto& g : segment.gradients) {
        const bool is_last = g.leaf == last_leaf;
        if (which == Which::all_but_last ? is_last : which == Which::last && !is_last) continue;
        r_.free(refs_[g.event.site], g.event.relative ? at : resolve(g.event), micro_batch);
      }
    } else {
      Bytes sum = segment.gradient_bytes;
      if (which != Which::all) {
        Bytes last = 0;
        for (const auto& g : segment.gradients) last += g.leaf == last_leaf ? g.bytes : 0;
        sum = which == Which::last ? last : sum - last;
      }
      if (sum > 0) r_.free(sum);
    }
  }

  /// Stations without hooks between their units: every unit in order (or in reverse).
  void play_all(std::size_t station, bool backward, Index micro_batch, LeafGradients gradients = LeafGradients::keep) {
    each_unit(station, backward, [&](Unit unit, Index at) { play(station, backward, unit, at, micro_batch, gradients); });
  }

  /// body(Unit, Index) for every unit: first and last singly, the inside as one repeat.
  template <class Body>
  void each_unit(std::size_t station, bool backward, Body&& body) {
    const std::int64_t n = count(station);
    if (n == 1) return body(Unit::first, Index(0));
    body(backward ? Unit::last : Unit::first, Index(backward ? n - 1 : 0));
    r_.repeat(
        n - 2, [&](Index i) { body(Unit::inner, i); }, backward ? Direction::backward : Direction::forward, backward ? n - 2 : 1);
    body(backward ? Unit::first : Unit::last, Index(backward ? 0 : n - 1));
  }

 private:
  static bool multiplies(StationPlace place) { return place == StationPlace::chunks || place == StationPlace::head; }
  static std::size_t behind_first_tensor(const Segment& segment) {
    for (std::size_t i = 0; i < segment.events.size(); ++i)
      if (segment.events[i].kind == TapeEvent::Kind::alloc) return i + 1;
    return segment.events.size();
  }
  void play_part(const Segment& segment, std::size_t from, std::size_t to, Index at, Index micro_batch, LeafGradients gradients) {
    if constexpr (R::kWrites)
      write(segment.events, from, to, at, micro_batch, gradients);
    else {
      r_.call(folded_.part(segment, from, to, gradients));
      if (segment.on_host) [[unlikely]]
        r_.call(folded_.host(segment, from, to));
    }
  }
  /// The last event for which `matches`; 0 when there is none.
  template <class Matches>
  static std::size_t last_event(const Segment& segment, Matches&& matches) {
    for (std::size_t i = segment.events.size(); i-- > 0;)
      if (matches(segment.events[i])) return i;
    return 0;
  }
  /// The last event that makes a tensor whose name has `part`; their number when there is none.
  std::size_t last_of(const Segment& segment, std::string_view part) {
    for (const auto& [of, name, at] : named_)
      if (of == &segment && name == part) return at;
    const auto makes = [&](const TapeEvent& e) {
      return e.kind == TapeEvent::Kind::alloc && tape_.sites[e.site].name.find(part) != std::string::npos;
    };
    const auto found = std::find_if(segment.events.rbegin(), segment.events.rend(), makes);
    const auto behind = static_cast<std::size_t>(segment.events.rend() - found);
    named_.push_back({&segment, std::string(part), behind > 0 ? behind - 1 : segment.events.size()});
    return named_.back().at;
  }
  std::size_t place_of(const Segment& segment, Cut cut) const {
    using Kind = TapeEvent::Kind;
    if (cut == Cut::nested_end) return segment.nested_end;
    if (cut == Cut::last_accumulated) return last_event(segment, [](const TapeEvent& e) { return e.kind == Kind::gradient; });
    return last_event(segment, [this](const TapeEvent& e) { return e.kind == Kind::alloc && tape_.sites[e.site].leaf >= 0; });
  }
  void register_sites(const std::string& prefix) {
    for (const auto& s : tape_.sites) {
      Site row;
      row.name = prefix + s.name;
      for (const auto& d : s.shape) row.shape.push_back(d.value(counts_));
      row.dtype = s.dtype;
      row.bytes = s.bytes.value(counts_);
      row.category = s.category;
      row.pool = s.pool;
      row.stream = s.stream;
      row.holder = s.pool != Pool::torch               ? Holder::resident
                   : s.saved                           ? Holder::saved_for_backward
                   : s.category == Category::gradients ? Holder::autograd
                                                       : Holder::local;
      refs_.push_back(r_.site(std::move(row)));
    }
  }
  Index resolve(const TapeEvent& e) const {
    if (e.offset >= 0) return Index(e.offset);
    return Index(count(tape_.sites[e.site].station) + e.offset);
  }
  void write(const std::vector<TapeEvent>& events, std::size_t from, std::size_t to, Index at, Index micro_batch,
             LeafGradients gradients) {
    for (std::size_t i = from; i < to; ++i) {
      const TapeEvent& e = events[i];
      if (e.of_tensor()) {
        write(e, at, e.of_turn() ? Index(e.turn) : micro_batch, gradients);
        continue;
      }
      const std::size_t end = end_of_loop(events, i);
      const auto turn = [&](Index now) {
        for (std::size_t k = i + 1; k < end; ++k) {
          const TapeEvent& in = events[k];
          write(in, at, in.turning ? now + in.turn : in.of_turn() ? Index(in.turn) : micro_batch, gradients);
        }
      };
      r_.repeat(e.turns(), turn, e.descends() ? Direction::backward : Direction::forward, e.first_turn());
      i = end;
    }
  }
  /// `number`: the tensor's second index, of its micro-batch or turn.
  void write(const TapeEvent& e, Index at, Index number, LeafGradients gradients) {
    if (e.kind == TapeEvent::Kind::gradient && gradients == LeafGradients::keep) return;
    if (e.all_inner) {
      const auto body = [&](Index i) {
        if (e.kind == TapeEvent::Kind::alloc)
          r_.alloc(refs_[e.site], i, number);
        else
          r_.free(refs_[e.site], i, number);
      };
      r_.repeat(count(tape_.sites[e.site].station) - 2, body, Direction::forward, 1);
      return;
    }
    const Index a = e.relative ? at + e.offset : resolve(e);
    if (e.kind == TapeEvent::Kind::alloc)
      r_.alloc(refs_[e.site], a, number);
    else
      r_.free(refs_[e.site], a, number);
    if (e.kind == TapeEvent::Kind::gradient && gradients == LeafGradients::move) r_.free(refs_[e.site], a, Index(0));
  }

  R& r_;
  const Tape& tape_;
  TokenCounts counts_;
  std::int64_t chunks_;
  struct Named {
    const Segment* of;
    std::string part;
    std::size_t at;
  };
  std::vector<Named> named_;  ///< what last_of() found
  std::vector<SiteRef> refs_;
  std::optional<SiteRef> at_product_;
  std::function<void()> before_loss_;
  FoldedTape own_;
  FoldedTape& folded_;
};

}  // namespace oomplan
