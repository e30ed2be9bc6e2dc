// Vision towers beside Megatron-core's language model, as mbridge and Megatron-Bridge build them of Megatron-core's own layers
// on the first stage: Qwen2.5-VL (mbridge) and Qwen3-VL (both).
//
// ISEEKYAN/mbridge mbridge/models/{qwen2_5_vl,qwen3_vl}/{model,vision_model,transformer_config,attention}.py (641a5a0);
// NVIDIA-NeMo/Megatron-Bridge models/qwen_vl/modelling_qwen3_vl (0.5.2). Legend: P patches of the micro-batch, v width of the
// tower, V = P / 4 merged patches, h hidden size of the language model, t ranks of tensor parallelism.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/megatron.hpp"
#include "layers/megatron_hf_tower.hpp"

namespace oomplan {

/// Units of a tower's blocks in a row that run alike: blocks, or runs of a checkpoint.
struct TowerGroup {
  std::int64_t count = 0, blocks = 1;  ///< units, and blocks of one
  bool checkpoint = false;
  std::vector<std::int64_t> feeds = {};  ///< blocks of the last unit whose output is merged for a layer of the language model
};
std::vector<TowerGroup> tower_groups(const Tower&, const ChunkOptions&);

/// The tower's blocks as a model of Megatron-core's by itself, and how they run: without sequence parallelism, unfused.
Architecture tower_model(const Tower&);
ChunkOptions tower_options(const Tower&, const ChunkOptions&);

/// Runs the tower in front of the embedding, and joins what it gives with the text.
class MegatronTower {
 public:
  using Enter = std::function<void(StationPlace, int run, int unit)>;

  /// REQUIRES: all outlive this. `enter`: of the chunk's stations.
  MegatronTower(Eager& g, const Architecture& a, const ChunkOptions& o, Enter enter);
  MegatronTower(const MegatronTower&) = delete;
  MegatronTower& operator=(const MegatronTower&) = delete;

  /// Adds the stations between the batch and the embedding.
  /// `stations` outlive this.
  void plan(std::vector<Station>& stations);
  /// The pixels come with the batch, to every stage.
  void enter_inputs();
  void run();
  /// The embedding of all tokens, its clone, the images' features, and the rows packed again: [T, 1, h], of which this rank keeps
  /// a view.
  Tensor joined(const Tensor& embedded);
  /// Positions and the table of angles, which every forward pass makes anew, on every stage.
  void make_tables();
  /// Behind a layer of the language model that gets features of an inner block.
  Tensor with_features(const Tensor& hidden, const Tensor& feature);
  /// Features that layers of the group get, from its first one on. REQUIRES: it gets some; run() and joined() were called.
  std::vector<Tensor> features_of(const LayerGroup& group) const;
  /// Megatron-Bridge adds features inside of a layer's checkpoint, mbridge behind it.
  bool adds_in_checkpoint() const { return o_.settings.maker == ModelMaker::megatron_bridge; }
  /// What every layer's checkpoint is given beside hidden states.
  std::vector<Tensor> arguments() const;
  /// The model has returned: its names are gone.
  void leave_model();
  /// The forward pass is over, and the batch gone.
  void leave_forward();

 private:
  void make_features();
  Tensor patches();
  Tensor with_positions(Tensor hidden);
  Tensor sum_of_taps(const Tensor& taps);
  Tensor run_unit(const TowerGroup& group, bool merges, const Tensor& in);
  Tensor merged(const Tensor& hidden, bool behind_block);
  Tensor weighted(Tensor out, const char* node, const Tensor& kept, Shape of_weight, const std::string& name);
  Tensor copied(const Tensor& x, const std::string& name);
  Tensor packed(const Tensor& rows, const std::string& name);
  Tensor own_stretches(const Tensor& all);
  void run_blocks(Tensor& hidden);
  void pack_features();
  Tensor own_pixels();
  void gather(Tensor& x);
  Tensor with_images(const Tensor& x);
  void take_parts();
  Tensor scattered(const Tensor& embedded);
  /// Of the micro-batch, on every rank of a context.
  Dim all_tokens() const { return Dim(o_.te.context) * o_.te.whole(); }
  Dim image_rows() const { return Dim(rows_.coefficient / unit_); }

  Eager& g_;
  const Architecture& a_;
  const ChunkOptions& o_;
  const Tower& t_ = a_.tower;
  const VisionPass& vision_ = o_.vision;
  const Enter enter_;
  const Architecture model_ = tower_model(t_);
  const ChunkOptions options_ = tower_options(t_, o_);
  const std::vector<TowerGroup> groups_ = tower_groups(t_, o_);
  const bool qwen3_ = t_.kind == "qwen3_vl";
  std::unique_ptr<HfTower> hf_;  ///< transformers' own, instead of Megatron-core's layers
  const std::int64_t unit_ = t_.merge * t_.merge;
  const Dim rows_{vision_.patches() / o_.image_rows};  ///< patches of one sequence's images
  Tensor pixels_, rotary_, position_rows_, images_;
  Tensor image_mask_;               ///< of embeds_before_tower
  Tensor positions_, table_;        ///< of the language model
  Tensor dealt_;                    ///< pixels of all images, put in the order of the ranks
  std::vector<Tensor> names_;       ///< of the model's forward pass, which nothing reads any more
  std::vector<Tensor> features_;    ///< of inner blocks
  bool merges_with_graph_ = false;  ///< mergers are trained
};

}  // namespace oomplan
