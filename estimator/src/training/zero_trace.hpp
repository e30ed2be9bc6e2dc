// Which parameters ZeRO stage 3 has gathered, call by call: DeepSpeed's coordinator, replayed.
//
// deepspeedai/DeepSpeed 0.19.6, runtime/zero/partitioned_param_coordinator.py (PartitionedParameterCoordinator) with a complete
// trace, which it has from the third pass on. Every module calls it: fetch in front of its forward and of its backward pass,
// release behind.
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/job.hpp>

#include "layers/tape.hpp"

namespace oomplan {

struct ZeroParameter {
  std::int64_t elements = 0;
  bool stays = false;  ///< gathered for good: below the persistence threshold
  bool frozen = false;
};
/// A module begins (a fetch), a node of it has run, or it ends. One without parameters of its own calls too, and something is
/// gathered ahead.
struct ZeroCall {
  UseMoment moment = UseMoment::begins;
  int module = 0;               ///< two modules may have one parameter
  std::vector<int> parameters;  ///< numbers
  /// Parameters whose gathered buffer is saved and stays until the parameter's node has run, although the module releases it; the
  /// node's module gathers anew. A checkpoint which is not reentrant saves detached tensors when it computes again
  /// (torch/utils/checkpoint.py, pack_hook of _recomputation_hook, 2.13), and a view is saved with its storage.
  std::vector<int> saved{};
  bool derives = false;  ///< a backward pass, not a forward pass or a recomputation
  /// Of a recomputation: the module whose backward pass began last. Frozen parameters that are gathered belong to it too and go
  /// with it (update_recompute_parameters; release_sub_module, 0.19.8). They are saved as they are, which holds no buffer.
  int within = -1;
  bool reduces = false;          ///< gradients of the module's parameters have waited for the end of its backward pass
  bool whole = false;            ///< a module whose inner ones have no hooks (z3_leaf_module): all that is inside is its own
  std::vector<int> contained{};  ///< known where some module is whole: what modules inside of this one have
};
struct ZeroAction {
  enum class Kind : std::uint8_t {
    gather,           ///< a parameter alone, into its own buffer
    gather_together,  ///< a group, into one buffer
    copy_out,         ///< a parameter of a group gets a buffer of its own
    drop_together,    ///< the group's buffer goes: the last one of it was asked for
    release,          ///< the parameter's own buffer
    drop_saved,       ///< the buffer that something saved has kept although its module had released it
    reduce_waiting    ///< gradients that wait for the end of their block
  };
  Kind kind = Kind::gather;
  int of = 0;          ///< number of the parameter or of the group
  bool again = false;  ///< a parameter's second buffer: the first one is saved
};
struct ZeroTrace {
  std::vector<std::vector<ZeroAction>> actions;  ///< of every call
  std::vector<ZeroAction> at_end;                ///< what is left is released with the step
  std::vector<std::vector<int>> groups;          ///< parameters of each
};

/// `calls` of one forward and one backward pass. `one_by_one`: nothing is gathered together (a single rank).
ZeroTrace trace_gathers(const std::vector<ZeroParameter>&, const std::vector<ZeroCall>& calls, const Zero&, bool one_by_one);

}  // namespace oomplan
