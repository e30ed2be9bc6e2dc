#include "layers/tape_turns.hpp"

#include <algorithm>

namespace oomplan {
namespace {

constexpr std::int64_t kHalf = kSimulatedTurns / 2;

/// Neighbours that belong to one turn: what runs in it, or frees of what was made in it, one after another.
struct Block {
  std::int64_t turn = -1, turns = 0;
  bool runs = false;
  std::size_t first = 0, end = 0;
};

class Loops {
 public:
  Loops(const std::vector<RawEvent>& raw, bool cut_short, std::vector<std::size_t>& positions)
      : raw_(raw), cut_short_(cut_short), positions_(positions) {}

  std::vector<TapeEvent> run() {
    positions_.assign(raw_.size() + 1, kInLoop);
    const std::vector<Block> blocks = blocks_of();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!in_the_middle(blocks[i])) {
        put(blocks[i]);
        continue;
      }
      // turns 2, 3, 4, 5 or 5, 4, 3, 2: the two in the middle become the loop
      const std::int64_t step = i + 1 < blocks.size() ? blocks[i + 1].turn - blocks[i].turn : 0;
      if (i == 0 || i + 2 >= blocks.size() || (step != 1 && step != -1)) throw UnlikeTurns();
      for (const std::size_t other : {i - 1, i + 1, i + 2})
        if (!alike(blocks[i], blocks[other], (static_cast<std::int64_t>(other) - static_cast<std::int64_t>(i)) * step))
          throw UnlikeTurns();
      put_loop(blocks[i], step);
      ++i;
    }
    positions_[raw_.size()] = out_.size();
    return std::move(out_);
  }

 private:
  bool in_the_middle(const Block& b) const {
    return cut_short_ && b.turns > kSimulatedTurns && (b.turn == kHalf - 1 || b.turn == kHalf);
  }
  Block key_of(const RawEvent& e) const {
    if (e.turn >= 0) return {e.turn, e.turns, true};
    if (e.event.kind == TapeEvent::Kind::free && e.event.turn >= 0) return {e.event.turn, e.tensor_turns, false};
    return {};
  }
  std::vector<Block> blocks_of() const {
    std::vector<Block> out;
    for (std::size_t i = 0; i < raw_.size(); ++i) {
      Block key = key_of(raw_[i]);
      if (out.empty() || out.back().turn != key.turn || out.back().turns != key.turns || out.back().runs != key.runs) {
        key.first = i;
        out.push_back(key);
      }
      out.back().end = i + 1;
    }
    return out;
  }
  /// Equal, but for the turns, which are `shift` more.
  bool alike(const Block& a, const Block& b, std::int64_t shift) const {
    if (a.turns != b.turns || a.runs != b.runs || b.turn - a.turn != shift || a.end - a.first != b.end - b.first) return false;
    for (std::size_t i = 0; i < a.end - a.first; ++i) {
      const RawEvent &x = raw_[a.first + i], &y = raw_[b.first + i];
      const TapeEvent &e = x.event, &f = y.event;
      if (e.kind != f.kind || e.site != f.site || e.offset != f.offset || e.relative != f.relative ||
          e.all_inner != f.all_inner || x.tensor_turns != y.tensor_turns)
        return false;
      if (e.turn < 0 ? f.turn >= 0 : f.turn - e.turn != shift || x.tensor_turns != a.turns) return false;
    }
    return true;
  }
  /// The real number of a simulated turn.
  std::int64_t real(std::int64_t turn, std::int64_t turns) const {
    return !cut_short_ || turn < kHalf || turns <= kSimulatedTurns ? turn : turns - kSimulatedTurns + turn;
  }
  void put(const Block& b) {
    for (std::size_t i = b.first; i < b.end; ++i) {
      positions_[i] = out_.size();
      TapeEvent e = raw_[i].event;
      if (e.turn >= 0) e.turn = static_cast<std::int32_t>(real(e.turn, raw_[i].tensor_turns));
      out_.push_back(e);
    }
  }
  void put_loop(const Block& b, std::int64_t step) {
    positions_[b.first] = out_.size();
    TapeEvent loop;
    loop.kind = TapeEvent::Kind::loop;
    loop.offset = static_cast<std::int32_t>(real(b.turn, b.turns));
    loop.turn = static_cast<std::int32_t>(b.turns - kSimulatedTurns + 2);
    loop.relative = step < 0;
    out_.push_back(loop);
    for (std::size_t i = b.first; i < b.end; ++i) {
      TapeEvent e = raw_[i].event;
      e.turning = e.turn >= 0;
      if (e.turning) e.turn = static_cast<std::int32_t>(e.turn - b.turn);
      out_.push_back(e);
    }
    loop.kind = TapeEvent::Kind::end;
    out_.push_back(loop);
  }

  const std::vector<RawEvent>& raw_;
  bool cut_short_;
  std::vector<std::size_t>& positions_;
  std::vector<TapeEvent> out_;
};

}  // namespace

std::vector<TapeEvent> with_loops(const std::vector<RawEvent>& raw, bool cut_short, std::vector<std::size_t>& positions) {
  return Loops(raw, cut_short, positions).run();
}

}  // namespace oomplan
