// A stage of Megatron's, folded and written out.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "training/megatron.hpp"

namespace oomplan {

/// Two steps of the stage, folded and written out event by event.
inline void folds_as_it_expands(const MegatronStage& plan, std::int64_t micro_batches) {
  const auto record = [&](auto& recorder) {
    MegatronEngine engine(recorder, plan, "trainer");
    engine.load();
    for (int step = 0; step < 2; ++step) {
      engine.passes(micro_batches, [](bool) {});
      engine.optimizer_step();
    }
  };
  PeakRecorder folded;
  record(folded);
  ProgramWriter writer;
  record(writer);
  const Program program = writer.take();
  Bytes level = 0, peak = 0;
  expand(program, [&](const Event& e) {
    if (e.kind != Program::Kind::alloc && e.kind != Program::Kind::free) return true;
    level += e.kind == Program::Kind::alloc ? e.bytes : -e.bytes;
    peak = std::max(peak, level);
    return true;
  });
  CHECK(folded.span().peak == peak);
  CHECK(folded.span().net == level);
}

/// Highest levels of the second step's last micro-batch, above what is there in front of it.
struct PassLevels {
  Bytes forward = 0, backward = 0;
};
inline PassLevels pass_levels(const MegatronStage& stage) {
  PeakRecorder r;
  MegatronEngine engine(r, stage, "");
  PassLevels out;
  Bytes level = 0, floor = 0;
  Bytes* highest = nullptr;
  const auto cut = [&](Bytes* next) {
    if (highest != nullptr) *highest = level + r.span().peak - floor;
    level += r.span().net;
    r = PeakRecorder();
    highest = next;
  };
  engine.load();
  for (int step = 0; step < 2; ++step) {
    engine.passes(2, [&](bool backward) {
      cut(nullptr);
      if (!backward) floor = level;
      highest = backward ? &out.backward : &out.forward;
    });
    cut(nullptr);
    engine.optimizer_step();
  }
  return out;
}

/// Above what is there between two passes without gradients, the highest level of the second one.
inline Bytes forward_alone(const MegatronStage& stage) {
  const auto events = [&](int passes) {
    ProgramWriter writer;
    MegatronEngine engine(writer, stage, "trainer");
    engine.load();
    for (int pass = 0; pass < passes; ++pass) engine.forward_passes(1);
    std::vector<Bytes> levels{0};
    expand(writer.take(), [&](const Event& e) {
      if (e.kind != Program::Kind::alloc && e.kind != Program::Kind::free) return true;
      levels.push_back(levels.back() + (e.kind == Program::Kind::alloc ? e.bytes : -e.bytes));
      return true;
    });
    return levels;
  };
  const std::vector<Bytes> once = events(1), twice = events(2);
  return *std::max_element(twice.begin() + std::ssize(once), twice.end()) - once.back();
}

}  // namespace oomplan
