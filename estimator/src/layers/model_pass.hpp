// One pass of a model in the simulator, as run_model carries it out: where its tensors are made (stations and parameters,
// model.cpp), its decoder (model_decoder.cpp), what becomes of hidden states (model_heads.cpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "layers/activation_offload.hpp"
#include "layers/every_nth.hpp"
#include "layers/gemma3n.hpp"
#include "layers/heads_trl.hpp"
#include "layers/layer_inputs.hpp"
#include "layers/litgpt.hpp"
#include "layers/model.hpp"
#include "layers/ops.hpp"
#include "layers/preamble.hpp"
#include "layers/stash_offload.hpp"
#include "layers/vision.hpp"

namespace oomplan {

class ModelPass {
 public:
  ModelPass(Eager&, const Architecture&, const PassOptions&);
  ModelRun run();

 private:
  // Stations, parameters and what stands around the pass: model.cpp.
  int simulated_layers() const;
  void begin_offload();
  /// verl takes an output layer that is a unit for one more layer.
  bool head_is_group() const {
    return o_.kernels.offload_activations == OffloadActivations::verl && o_.kernels.head_is_unit && !o_.critic;
  }
  void leave_step();
  void plan_stations();
  /// Layers of a run that are simulated.
  int units(std::size_t run) const { return static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, a_.runs[run].count)); }
  void enter(StationPlace place, int run = -1, int unit = 0);
  void declare();
  void leave_to_others();
  void declare_head(DType outer, DType dtype, int table);
  int trained_copy(int original, std::string name);
  void freeze();
  void choose_norms(std::vector<bool>& adapter) const;
  void train_whole_units(const std::vector<bool>& adapter);

  // Token ids to hidden states: model_decoder.cpp.
  bool altup() const { return a_.runs.front().layer.altup_inputs > 0; }
  bool counts_positions() const;
  bool marks_tokens() const;
  void mark_tokens();
  Tensor embed();
  Tensor adapted_embedding(Tensor bare);
  void collect_gradient(Tensor& out);
  Tensor position_rows();
  Preamble preamble(DType dtype);
  LayerContext arguments(LayerContext given);
  Tensor cast_hidden(const Tensor& hidden);
  Tensor cast_output(Tensor out, bool is_unit, std::string_view name);
  void add_features(Tensor& hidden, const VisionNames& images, std::size_t layer);
  Tensor run_one(std::size_t r, std::size_t number, const LayerContext& context, const Tensor& x);
  Tensor run_unhooked(std::size_t r, std::size_t number, const LayerContext& context, const Tensor& x);
  Tensor with_layer_input(const Layer& layer, const LayerLeaves& leaves, const LayerContext& given, const Tensor& x);
  Tensor titan_decoder();
  Tensor language_model();
  Tensor own_tokens(const Tensor& whole, VisionNames& images);
  Tensor decoder();

  // Hidden states to a loss: model_heads.cpp.
  bool computes_metrics(LossHead h) const;
  Tensor hidden_loss_inside(const HeadOptions& head, const std::function<void(int)>& scope);
  Tensor hidden_loss(const HeadOptions& head, const std::function<void(int)>& scope);
  Tensor logits(const Tensor& hidden);
  DType format_of_logits() const;
  void name_earlier_tokens();
  Tensor output_layer(Tensor in);
  Tensor output_group(const Tensor& in);
  void soft_cap(Tensor& logits);
  void clone_outputs(Tensor& loss, Tensor& output);
  void leave_names(Tensor& output, const HeadOptions& head);
  Tensor teach(Tensor output);
  Tensor forward();

  Eager& g_;
  const SpacedRuns spaced_;
  const Architecture& a_ = spaced_.architecture;  ///< as this rank holds it
  const PassOptions& o_;
  const FamilyCode& code_;
  KernelOptions kernels_;    ///< of o_, and whether dropout acts
  std::int64_t vocabulary_;  ///< whole
  ModelRun out_;
  const bool idle_ = o_.kernels.vision.idle;                                          ///< of the tower: no image comes
  const std::unique_ptr<VisionTower> parts_ = make_tower(g_, a_, o_, out_.stations);  ///< its parameters, whether it runs or not
  VisionTower* const tower_ = idle_ ? nullptr : parts_.get();                         ///< that runs
  const std::size_t deepstack_layers_ = o_.kernels.vision.has_features() ? static_cast<std::size_t>(a_.tower.deepstack) : 0;
  const std::int64_t width_ = a_.embedding_width > 0 ? a_.embedding_width : a_.hidden;  ///< of the embedding and the head
  int project_in_ = -1, project_out_ = -1;
  int embedding_ = -1, position_table_ = -1, head_ = -1, head_bias_ = -1;
  int embedding_in_ = -1, embedding_out_ = -1;     ///< peft's pair beside the embedding: [r, V], [H, r]
  std::vector<int> saved_copies_;                  ///< trained copies of modules (modules_to_save)
  const Dim all_{Dim(kernels_.tensor) * axis::S};  ///< tokens of a whole sequence
  /// Of ids and embeddings: beside a tower those are cut among the ranks of Ulysses behind the images alone.
  const Dim embedded_{tower_ != nullptr ? Dim(kernels_.ulysses) * all_ : all_};
  NormLeaf norm_, embedding_norm_;
  std::vector<LayerLeaves> layers_;
  LayerInputLeaves layer_inputs_;
  CopyLeaves copies_;
  LitgptBefore before_;
  std::vector<Tensor> logged_;  ///< names of the step like step_names_
  std::optional<ActivationOffload> offload_;
  std::optional<StashOffload> stash_;
  Tensor input_ids_, labels_, padding_, packed_positions_, tree_mask_, positions_, kept_outputs_, input_leaf_, input_gradient_,
      step_names_;
  /// Names of Gemma 4's model around its language model.
  struct MarkedTokens {
    std::vector<Tensor> masks;
    Tensor ids, embeds, layer_tokens;
  };
  MarkedTokens marked_;
  Tensor bare_embedding_;  ///< `inputs_embeds`, beside what it is multiplied to: a name of the model
  /// Keyword arguments of a layer: a reentrant checkpoint's node has them as attributes, which live as long as the graph does.
  struct Arguments {
    LayerContext context;
    Tensor positions;
  };
  std::vector<Tensor> caches_;        ///< of packages, for all layers
  std::vector<Arguments> arguments_;  ///< of every layer: those of windowed and full ones differ
};

}  // namespace oomplan
