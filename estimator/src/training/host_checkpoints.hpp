// Inputs of checkpointed layers in pinned host memory, from the layer's forward pass to its backward pass.
//
// transformers 5.23, modeling_utils.py activation_checkpointing_enable(offload=True): every checkpoint is called under
// torch.autograd.graph.save_on_cpu(pin_memory=True), which copies on the stream of the computation.
#pragma once
#include <string_view>

#include "training/engine_sites.hpp"
#include "training/plan.hpp"

namespace oomplan {

template <class R>
class HostCheckpoints : EngineSites<R> {
 public:
  /// REQUIRES: `plan` outlives this. Without checkpoints on the host nothing happens.
  HostCheckpoints(R& r, const TrainPlan& plan, std::string_view role)
      : EngineSites<R>(r, role), r_(r), kept_(plan.host_checkpoint > 0) {
    if (kept_) input_ = this->host_site("layer", "checkpoint on the host", plan.host_checkpoint);
  }
  /// Unit `at` of the station has run forward.
  void keep(const Tape& tape, std::size_t station, Index at) {
    if (kept_ && tape.stations[station].checkpointed) r_.alloc(input_, at + before(tape, station));
  }
  /// Its backward pass begins.
  void drop(const Tape& tape, std::size_t station, Index at) {
    if (kept_ && tape.stations[station].checkpointed) r_.free(input_, at + before(tape, station));
  }

 private:
  static std::int64_t before(const Tape& tape, std::size_t station) {
    std::int64_t n = 0;
    for (std::size_t s = 0; s < station; ++s)
      if (tape.stations[s].checkpointed) n += tape.stations[s].count;
    return n;
  }

  R& r_;
  bool kept_;
  SiteRef input_;
};

}  // namespace oomplan
