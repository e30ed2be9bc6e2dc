// The last token of a generator with a cache: what the layers keep of all earlier ones is there, and each makes its own anew.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "training/plan.hpp"
#include "training/player.hpp"

namespace oomplan {

template <class R>
class GenerationRun {
 public:
  /// Nothing where the plan has no such pass. REQUIRES: `r` and `plan` outlive this.
  GenerationRun(R& r, const TrainPlan& plan, std::string_view role) : r_(r), plan_(plan) {
    if (plan.decode == nullptr) return;
    player_.emplace(r, *plan.decode, plan.decode_counts, 1, role);
    for (const Station& station : plan.decode->stations) kept_.push_back(site(role, station));
  }
  void last_token() {
    if (!player_) return;
    const Tape& tape = *plan_.decode;
    each_kept(tape, [&](std::size_t s, Index at) { r_.alloc(kept_[s], at); });
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      player_->each_unit(s, false, [&](Unit unit, Index at) {
        // the layer's own events begin with what it had, and end without
        if (tape.stations[s].place == StationPlace::layers) r_.free(kept_[s], at);
        player_->play(s, false, unit, at, Index(0));
      });
  }

 private:
  template <class Do>
  void each_kept(const Tape& tape, Do&& act) {
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (tape.stations[s].place == StationPlace::layers) r_.repeat(tape.stations[s].count, [&](Index at) { act(s, at); });
  }
  /// Keys and values of one of the station's layers, up to the token before.
  SiteRef site(std::string_view role, const Station& station) {
    Site row;
    row.name = std::string(role) + ".cache.of_earlier_tokens";
    for (const TapeEvent& e : station.forward[0].events) {
      const TapeSite& made = plan_.decode->sites[e.site];
      if (e.kind == TapeEvent::Kind::alloc && made.name.ends_with("_before") && made.category == Category::kv_cache)
        row.bytes += made.bytes.value(plan_.decode_counts);
    }
    row.category = Category::kv_cache;
    row.holder = Holder::resident;
    if constexpr (R::kWrites)
      return r_.site(std::move(row));
    else
      return {0, row.bytes, Pool::torch};
  }

  R& r_;
  const TrainPlan& plan_;
  std::optional<Player<R>> player_;
  std::vector<SiteRef> kept_;
};

}  // namespace oomplan
