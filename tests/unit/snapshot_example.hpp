// A small snapshot made by hand: two devices, one with a history that ends out of memory, one with its state alone.
#pragma once
#include "snapshot/snapshot.hpp"

namespace oomplan::snapshot {

inline Snapshot example() {
  constexpr Bytes kBase = Bytes{1} << 40;
  Snapshot s;
  s.settings = {{"PYTORCH_CUDA_ALLOC_CONF", ""}, {"max_split_size", "-1"}, {"expandable_segments", "False"}};
  s.frames = {{"??", "c10::cuda::CUDACachingAllocator::malloc", 0},
              {"/venv/torch/nn/modules/linear.py", "forward", 125},
              {"/home/me/job/model.py", "mlp", 31},
              {"/home/me/job/train.py", "step", 7},
              {"", "at::cuda::getNewWorkspace()", 0}};
  s.stacks = {{}, {0, 1, 2}, {0, 3}, {0, 4}};
  using enum Action;
  // Before the first event: 64 MiB of weights in a segment of their own, and 2 MiB in one of 20 MiB, freed later.
  const Bytes weights = kBase, cut = kBase - 20 * kMiB, acts = cut - 512 * kMiB, more = acts - 256 * kMiB;
  const std::int64_t t = 1'772'688'692'000'000;
  s.traces.push_back({{segment_alloc, acts, 512 * kMiB, 0, t, 1},
                      {alloc, acts, 512 * kMiB - 100, 0, t + 10, 1},
                      {segment_alloc, more, 256 * kMiB, 0, t + 20, 2},
                      {alloc, more, 256 * kMiB, 0, t + 30, 2},
                      {alloc, cut + 2 * kMiB, 8 * kMiB + 200, 0, t + 40, 3},
                      {oom, 300 * kMiB, 512 * kMiB, 0, t + 50, 1},
                      {free_requested, more, 256 * kMiB, 0, t + 60, 2},
                      {free_completed, more, 256 * kMiB, 0, t + 60, 2},
                      {free_requested, cut, 2 * kMiB, 0, t + 70, 2},
                      {free_completed, cut, 2 * kMiB, 0, t + 70, 2},
                      {snapshot, 0, 0, 0, 2'000'000 + t, 0}});
  using enum BlockState;
  const Bytes used = 8 * kMiB + 512;
  s.segments = {
      {0, more, 256 * kMiB, 0, false, false, {0, 0}, {{more, 256 * kMiB, 0, inactive, 0}}},
      {0, acts, 512 * kMiB, 0, false, false, {0, 0}, {{acts, 512 * kMiB, 512 * kMiB - 100, active, 1}}},
      {0,
       cut,
       20 * kMiB,
       0,
       false,
       false,
       {0, 0},
       {{cut, 2 * kMiB, 0, inactive, 0},
        {cut + 2 * kMiB, used, used - 312, active, 3},
        {cut + 2 * kMiB + used, 18 * kMiB - used, 0, inactive, 0}}},
      {0, weights, 64 * kMiB, 0, false, false, {0, 0}, {{weights, 64 * kMiB, 64 * kMiB, active, 0}}},
      {1, kBase, 2 * kMiB, 0, true, false, {0, 0}, {{kBase, 512, 4, active, 0}, {kBase + 512, 2 * kMiB - 512, 0, inactive, 0}}}};
  s.traces.push_back({{snapshot, 0, 512, 0, 2'000'000 + t, 0}});
  return s;
}

}  // namespace oomplan::snapshot
