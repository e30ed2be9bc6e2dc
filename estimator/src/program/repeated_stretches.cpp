#include "program/repeated_stretches.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace oomplan {
namespace {

/// Stretches that come again together, at most: forward and backward passes of as many micro-batches as a pipeline has in flight.
constexpr std::size_t kMostTogether = 64;
/// Events that are left out at least, for a loop.
constexpr std::size_t kWorthFolding = 1000;

/// Events [first, end) and the loops inside them.
struct Stretch {
  std::size_t first = 0, end = 0;
  std::size_t first_loop = 0, end_loop = 0;
  std::uint64_t hash = 0;
};

class Folder {
 public:
  Folder(FlatProgram& program, const std::vector<std::size_t>& marks) : of_(program) {
    std::size_t loop = 0, turn_end = 0;
    for (std::size_t i = 0; i < marks.size(); ++i) {
      Stretch s{marks[i], i + 1 < marks.size() ? marks[i + 1] : of_.events.size(), loop, 0, 0};
      while (loop < of_.loops.size() && of_.loops[loop].end <= s.end) ++loop;
      s.end_loop = loop;
      s.hash = hash_of(s);
      while (turn_end < of_.turn_ends.size() && of_.turn_ends[turn_end] <= s.first) ++turn_end;
      const bool ends_turn = turn_end < of_.turn_ends.size() && of_.turn_ends[turn_end] <= s.end;
      if (ends_turn) s.hash = i;  // alone of its kind
      stretches_.push_back(s);
      apart_.push_back(ends_turn);
    }
  }

  void run() {
    if (stretches_.empty()) return;
    copy(0, stretches_.front().first, 0, stretches_.front().first_loop);
    for (std::size_t i = 0; i < stretches_.size();) {
      const auto [together, times] = repeated(i);
      const std::size_t first = out_.events.size(), inside = out_.loops.size();
      for (std::size_t k = i; k < i + together; ++k) copy(stretches_[k]);
      if (times > 1) out_.loops.push_back({first, out_.events.size(), static_cast<std::int64_t>(times) - 1, inside});
      i += together * times;
    }
    of_.events = std::move(out_.events);
    of_.loops = std::move(out_.loops);
    of_.uncounted = std::move(out_.uncounted);
    of_.turn_ends = std::move(out_.turn_ends);
  }

 private:
  struct Out {
    std::vector<FlatProgram::Event> events;
    std::vector<FlatProgram::Loop> loops;
    std::vector<std::size_t> uncounted, turn_ends;
  };

  std::uint64_t hash_of(const Stretch& s) const {
    std::uint64_t h = s.end - s.first;
    for (std::size_t i = s.first; i < s.end; ++i) {
      const FlatProgram::Event& e = of_.events[i];
      const auto small = static_cast<std::uint64_t>(static_cast<std::uint32_t>(e.slot)) << 8 | static_cast<std::uint64_t>(e.op);
      h = (h ^ static_cast<std::uint64_t>(e.bytes) ^ small << 20) * 0x9E3779B97F4A7C15ULL;
      h ^= h >> 32;
    }
    return h;
  }
  bool same(const Stretch& x, const Stretch& y) const {
    if (x.hash != y.hash || x.end - x.first != y.end - y.first || x.end_loop - x.first_loop != y.end_loop - y.first_loop)
      return false;
    for (std::size_t i = 0; i < x.end_loop - x.first_loop; ++i) {
      const FlatProgram::Loop &a = of_.loops[x.first_loop + i], &b = of_.loops[y.first_loop + i];
      if (a.first - x.first != b.first - y.first || a.end - x.first != b.end - y.first || a.more != b.more) return false;
    }
    const auto event = [&](std::size_t i) { return of_.events.begin() + static_cast<std::ptrdiff_t>(i); };
    return std::equal(event(x.first), event(x.end), event(y.first));
  }
  /// How many stretches from number `i` on come again together, and how often they are there.
  std::pair<std::size_t, std::size_t> repeated(std::size_t i) const {
    const std::size_t n = stretches_.size();
    for (std::size_t p = 1; p <= kMostTogether && i + 2 * p <= n; ++p) {
      std::size_t equal = 0;
      while (i + p + equal < n && !apart_[i + equal] && same(stretches_[i + equal], stretches_[i + p + equal])) ++equal;
      const std::size_t times = 1 + equal / p;
      if ((times - 1) * (stretches_[i + p - 1].end - stretches_[i].first) >= kWorthFolding) return {p, times};
    }
    return {1, 1};
  }

  void copy(const Stretch& s) { copy(s.first, s.end, s.first_loop, s.end_loop); }
  void copy(std::size_t first, std::size_t end, std::size_t first_loop, std::size_t end_loop) {
    const std::size_t to = out_.events.size(), loops_to = out_.loops.size();
    const auto event = [&](std::size_t i) { return of_.events.begin() + static_cast<std::ptrdiff_t>(i); };
    out_.events.insert(out_.events.end(), event(first), event(end));
    for (std::size_t i = first_loop; i < end_loop; ++i) {
      const FlatProgram::Loop& l = of_.loops[i];
      out_.loops.push_back({l.first - first + to, l.end - first + to, l.more, l.inside - first_loop + loops_to});
    }
    for (; uncounted_ < of_.uncounted.size() && of_.uncounted[uncounted_] < end; ++uncounted_)
      if (of_.uncounted[uncounted_] >= first) out_.uncounted.push_back(of_.uncounted[uncounted_] - first + to);
    for (; turn_end_ < of_.turn_ends.size() && of_.turn_ends[turn_end_] <= end; ++turn_end_)
      if (of_.turn_ends[turn_end_] > first) out_.turn_ends.push_back(of_.turn_ends[turn_end_] - first + to);
  }

  FlatProgram& of_;
  std::vector<Stretch> stretches_;
  std::vector<bool> apart_;
  Out out_;
  std::size_t uncounted_ = 0, turn_end_ = 0;  // of the program, that are copied or left out
};

}  // namespace

void fold_repeats(FlatProgram& program, const std::vector<std::size_t>& marks) { Folder(program, marks).run(); }

}  // namespace oomplan
