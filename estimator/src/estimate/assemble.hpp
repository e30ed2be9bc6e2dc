// What estimate(), explain() and program() share: roles resolved, GPUs merged, every class folded.
#pragma once
#include <vector>

#include "estimate/fold.hpp"

namespace oomplan {

struct Assembled {
  std::vector<RoleRun> runs;
  Timeline timeline;
  std::vector<GpuClass> classes;
  std::vector<ClassFold> folds;  ///< of classes
  Estimate estimate;             ///< gpus in the order of classes
};
/// REQUIRES: job outlives the result.
Assembled assemble(const Job&, const Catalog&, TapeStore&);
/// Sorts the GPUs, and takes the evidence for the first.
void worst_first(Estimate&, const Job&);

/// Micro-batches between the first and the last that are written down for the replay. Equal micro-batches drive the allocator
/// into a state that repeats after two or three of them, small tensors beside expandable segments after eleven; a test compares
/// with all.
inline constexpr std::int64_t kReplayedMicroBatches = 12;
/// How many micro-batches there are between the first and the last of those that the process's program writes by number: where
/// it is none or one, write_process() gives the same for every `inner`.
std::int64_t inner_micro_batches(const Assembled&, std::size_t gpu_class, std::size_t process);
/// The program of one process of a class: init and two iterations (the second has optimizer states from its beginning). Of the
/// micro-batches between the first and the last `inner` are written: levels need one (each of them ends where it began), the
/// allocator's history more. `last`: becomes the number of the mark that the last iteration begins with, the first one being 0.
/// `ends_turns`: the mark kTurnEnd behind every turn of the process.
Program write_process(const Assembled&, std::size_t gpu_class, std::size_t process, std::int64_t inner, int iterations = 2,
                      std::size_t* last = nullptr, bool ends_turns = false);

}  // namespace oomplan
