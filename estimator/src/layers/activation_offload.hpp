// Variables saved for backward that lie in host memory until then.
//
// torch 2.13, torch/autograd/graph.py: save_on_cpu copies every variable that an operator saves, once for each operator, and
// brings it back for the node that needs it; torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py: offload_wrapper is
// the same, pinned, around a module. verl, verl/utils/activation_offload.py (b178a3cd, January 2026): variables of a layer are a
// group. Behind layer g those of layer g - 1 leave the device, and the copy of those of layer g begins; in backward those of
// layer g - 1 come back in front of layer g. The last layer's stay. Parameters are left alone; variables that share a storage
// share a copy.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layers/eager.hpp"
#include "layers/tape.hpp"

namespace oomplan {

class ActivationOffload : public SavedHooks {
 public:
  /// `layers`: how many will commit(), an output layer that is a unit of FSDP2 among them. REQUIRES: `g` outlives this.
  ActivationOffload(Eager& g, OffloadActivations how, int layers) : g_(g), how_(how), layers_(layers) {}

  /// In force for the model's whole forward pass, not for each layer's.
  bool around_model() const { return how_ == OffloadActivations::save_on_cpu || how_ == OffloadActivations::save_on_cpu_pinned; }
  /// Layers' variables move together.
  bool in_groups() const { return how_ == OffloadActivations::verl; }

  std::shared_ptr<PackedVariable> pack(const Tensor&) override;
  /// Behind a layer's forward pass; `out` is what it returns.
  Tensor commit(Tensor out);

 private:
  /// A variable as its node will see it; empty while only its storage's copy is there.
  struct Variable {
    Tensor tensor;
    std::size_t copy = 0;  ///< in Group::copies
  };
  struct Copy {
    int storage = -1, part = 0;  ///< of which
    Tensor host, device;
  };
  struct Group {
    int scope = 0;
    std::vector<std::shared_ptr<Variable>> variables;
    std::vector<Tensor> leaving;  ///< on the device until the copies are made
    std::vector<Copy> copies;
  };

  std::shared_ptr<PackedVariable> pack_alone(const Tensor&);
  std::shared_ptr<PackedVariable> pack_into_group(const Tensor&);
  Tensor copy_of(const Tensor&, const std::string& suffix, Pool);
  std::string name_of(const Tensor&) const;
  void begin_copies(Group&);
  void bring_back(Group&);
  void commit_backward();

  Eager& g_;
  OffloadActivations how_;
  int layers_;
  std::vector<Group> groups_;  ///< the last one is being filled
  std::size_t current_ = 0;
};

/// Why this pass cannot be run with its offload of activations; "" when it can.
std::string unsupported_offload(const Architecture&, const PassOptions&);

}  // namespace oomplan
