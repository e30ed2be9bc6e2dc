// Variables saved for backward that TRL and torchtune copy to the host one by one, on a stream of their own.
//
// TRL 1.16.0, trl/models/activation_offloading.py, and torchtune 0.6.1, torchtune/training/_activation_offloading.py
// (OffloadActivations, with its defaults). Every saved variable has a number. One of 1024 bytes or more that is no parameter is
// copied to pinned memory and stays on the device as long as its number is among the last five. In backward it comes back for
// its node and stays until the next node with such a variable is through, unless something else refers to it, which then keeps
// it. The first node of backward ends what forward had kept. Output layers are called without these hooks.
//
// TRL's differ from torchtune's: parameters' views stay as well; of variables that begin at the same place of a storage, one that
// is saved while another is on the device or kept stays until its node; what is no block is made one first, and so the variable
// itself goes. Its hooks are in force in backward too, for what reentrant checkpoints compute again.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "layers/eager.hpp"
#include "layers/tape.hpp"

namespace oomplan {

class StashOffload : public SavedHooks {
 public:
  /// REQUIRES: `g` outlives this.
  StashOffload(Eager& g, OffloadActivations how, bool checkpointed)
      : g_(g), trl_(how == OffloadActivations::trl), checkpointed_(checkpointed) {}

  std::shared_ptr<PackedVariable> pack(const Tensor&) override;
  /// Behind the whole backward pass.
  void leave_backward() { returned_.clear(); }

  bool in_layers = false;  ///< what is saved now belongs to a layer

 private:
  using Number = std::int64_t;
  using Place = std::tuple<int, int, DType>;  ///< storage, where in it, format

  std::shared_ptr<PackedVariable> keep(const Tensor&, Number, const Place&);
  Tensor as_block(const Tensor&);
  Tensor bring_back(Number, Tensor& host, const std::string& name);
  void end_window(Number);
  void forget(Number);
  void after_node(Number, bool came_back, const std::vector<Number>& before);
  Tensor made(const std::string& name, const Tensor& like, Pool);

  Eager& g_;
  bool trl_, checkpointed_;
  Number number_ = 0;
  std::map<Number, Tensor> window_;    ///< on the device until the copy is made
  std::map<Number, Tensor> returned_;  ///< came back, and stay a while
  std::map<Place, Number> places_;
  std::shared_ptr<Node> node_;
  int graph_ = -1;
};

/// Layers that run before those in the middle of a run are alike: the window is full behind two layers that save all, and behind
/// more than five that save one variable each. Judged by models of nine layers.
std::int64_t stash_warm_up(const PassOptions&);
/// Whether hooks are off for the output layer: TRL looks for `lm_head`, torchtune for `output`.
bool stash_spares_head(const PassOptions&);
inline bool offloads_by_stash(OffloadActivations how) {
  return how == OffloadActivations::trl || how == OffloadActivations::torchtune;
}

}  // namespace oomplan
