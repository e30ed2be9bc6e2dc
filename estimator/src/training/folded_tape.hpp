// The segments of a tape as Spans, for some token counts. Roles that run the same pass share one: actor and reference do.
#pragma once
#include <algorithm>
#include <vector>

#include <oomplan/program.hpp>

#include "layers/tape.hpp"

namespace oomplan {

/// What becomes of a leaf's gradient: it stays (first micro-batch), or is added into the one that is there (or copied into a
/// bucket), or that one goes with it, because their sum is copied into a bucket.
enum class LeafGradients : std::uint8_t { keep, add, move };

class FoldedTape {
 public:
  /// Nothing is evaluated before the first segment is asked for; then all are. REQUIRES: the tape outlives this.
  FoldedTape(const Tape& tape, const TokenCounts& counts) : tape_(&tape), counts_(counts) {}
  bool is_of(const Tape& tape, const TokenCounts& counts) const { return tape_ == &tape && counts_ == counts; }

  /// REQUIRES: the segment has events.
  const TorchSpan& segment(const Segment& s) {
    if (spans_.empty()) [[unlikely]]
      evaluate_all();
    return spans_[s.number];
  }
  /// The same where a leaf's gradient is added into the one that is there.
  TorchSpan segment_adding(const Segment& s) {
    if (spans_.empty()) evaluate_all();
    return evaluate(s.summary_adding, values_);
  }
  /// The same where the gradient that is there goes too.
  TorchSpan segment_moving(const Segment& s) { return part(s, 0, s.events.size(), LeafGradients::move); }
  /// Events `from` to `to` of a segment. A pipeline asks for the same part with every micro-batch.
  TorchSpan part(const Segment& s, std::size_t from, std::size_t to, LeafGradients gradients) {
    constexpr std::size_t kFew = 24, kMost = 64;
    if (to < from + kFew) return evaluated(s, from, to, gradients);
    for (const Part& p : parts_)
      if (p.of == &s && p.from == from && p.to == to && p.gradients == gradients) return p.span;
    const TorchSpan span = evaluated(s, from, to, gradients);
    if (parts_.size() < kMost) parts_.push_back({&s, from, to, gradients, span});
    return span;
  }

  /// What events `from` to `to` of a segment do to the host's memory: their number is that of segment() or part().
  Span host(const Segment& s, std::size_t from, std::size_t to) const {
    Span span;
    for (std::size_t i = from; i < to; ++i) {
      const TapeEvent& e = s.events[i];
      if (!e.of_tensor()) {
        const std::size_t end = end_of_loop(s.events, i);
        span = then(span, repeat(host(s, i + 1, end), e.turns()));
        i = end;
        continue;
      }
      const TapeSite& site = tape_->sites[e.site];
      if (site.pool == Pool::torch) continue;
      const Bytes bytes = site.bytes.value(counts_);
      span.host_net += e.kind == TapeEvent::Kind::alloc ? bytes : -bytes;
      span.host_peak = std::max(span.host_peak, span.host_net);
    }
    return span;
  }

 private:
  struct Part {
    const Segment* of;
    std::size_t from, to;
    LeafGradients gradients;
    TorchSpan span;
  };
  TorchSpan evaluated(const Segment& s, std::size_t from, std::size_t to, LeafGradients gradients) const {
    TorchSpan span;
    const auto put = [&](Bytes bytes) { span = then(span, {bytes, std::max<Bytes>(bytes, 0), 1, bytes > 0 ? 0 : -1}); };
    for (std::size_t i = from; i < to; ++i) {
      const TapeEvent& e = s.events[i];
      if (!e.of_tensor()) {
        const std::size_t end = end_of_loop(s.events, i);
        span = then(span, repeat(evaluated(s, i + 1, end, gradients), e.turns()));
        i = end;
        continue;
      }
      const bool gradient = e.kind == TapeEvent::Kind::gradient;
      if (gradient && gradients == LeafGradients::keep) continue;
      const TapeSite& site = tape_->sites[e.site];
      if (site.pool != Pool::torch) {
        put(0);
        continue;
      }
      const std::int64_t units = tape_->stations[site.station].count;
      const Bytes bytes = site.bytes.value(counts_) * (e.all_inner ? (units > 0 ? units : counts_.n) - 2 : 1);
      put(e.kind == TapeEvent::Kind::alloc ? bytes : -bytes);
      if (gradient && gradients == LeafGradients::move) put(-bytes);
    }
    return span;
  }

  [[gnu::noinline]] void evaluate_all() {
    values_ = monomial_values(*tape_, counts_);
    spans_ = evaluate(tape_->summaries, tape_->segments, values_);
  }

  const Tape* tape_;
  TokenCounts counts_;
  std::vector<std::int64_t> values_;  ///< of the tape's monomials
  std::vector<TorchSpan> spans_;      ///< by number of the segment
  std::vector<Part> parts_;           ///< that were asked for
};

}  // namespace oomplan
