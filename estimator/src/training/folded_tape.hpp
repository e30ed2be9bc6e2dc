// The segments of a tape as Spans, for some token counts. Roles that run the same pass share one: actor and reference do.
#pragma once
#include <vector>

#include <oomplan/program.hpp>

#include "layers/tape.hpp"

namespace oomplan {

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

 private:
  [[gnu::noinline]] void evaluate_all() {
    values_ = monomial_values(*tape_, counts_);
    spans_ = evaluate(tape_->summaries, tape_->segments, values_);
  }

  const Tape* tape_;
  TokenCounts counts_;
  std::vector<std::int64_t> values_;  ///< of the tape's monomials
  std::vector<TorchSpan> spans_;      ///< by number of the segment
};

}  // namespace oomplan
