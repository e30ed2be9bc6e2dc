// What a configuration of Megatron needs at least on its fullest stage, and how long its step takes, put together from layers
// that were looked at once.
//
// A layer's parameters and what it saves for backward depend on the ranks alone, a stage's layers on the split alone: a point is
// a sum over stages of counts times bytes, which takes a microsecond. It is a lower bound: what the engine holds besides
// (gradients in flight, buffers of a kernel) comes on top. Estimates judge what passes it.
#pragma once
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "catalog/catalog.hpp"
#include "search/megatron_points.hpp"
#include "search/time_model.hpp"

namespace oomplan {

class MegatronBound {
 public:
  /// REQUIRES: job, role and catalog outlive this; the role's engine is megatron.
  MegatronBound(const Job&, const Role&, const Catalog&);
  ~MegatronBound();

  /// What all points with these ranks and this split have in common.
  struct Stages {
    std::vector<std::vector<std::int64_t>> layers;  ///< by stage and run: how many
    std::vector<std::int64_t> smallest;             ///< by stage: layers of its smallest chunk
  };
  /// Null when the layers cannot be dealt so.
  const Stages* stages(const MegatronSplit&);

  /// Bytes of one layer of every run on these ranks.
  struct Layers {
    struct One {
      std::int64_t dense = 0, experts = 0;  ///< parameters
      Bytes saved = 0;                      ///< for backward, of one micro-batch
    };
    std::vector<One> runs;
    std::int64_t first = 0, last = 0;  ///< parameters of embedding, of output layer and final norm with blocks that predict
    std::int64_t last_experts = 0;     ///< of these blocks
    Bytes hidden = 0, logits = 0;      ///< of one micro-batch
    bool possible = true;              ///< false: the engine does not describe them
  };
  /// `selective`: modules that are computed again.
  const Layers& layers(const MegatronRanks&, const std::vector<std::string>& selective);

  /// Bytes of the fullest stage, at least.
  Bytes need(const MegatronSplit&, const Stages&, const MegatronRanks&, const MegatronRecompute&, const Layers&,
             std::int64_t data, std::int64_t micro_batches) const;
  /// Only to compare points of one job.
  double seconds(const MegatronSplit&, const MegatronRanks&, const MegatronRecompute&, std::int64_t data,
                 std::int64_t micro_batches) const;

 private:
  Layers look_at(const MegatronRanks&, const std::vector<std::string>& selective) const;
  using SplitKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  using RanksKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, std::vector<std::string>>;
  const Job& job_;
  const Role& role_;
  const Architecture& model_;
  const Gpu& gpu_;
  ModelCost cost_;
  Bytes constants_ = 0;
  std::int64_t sequences_ = 1, tokens_ = 1;  ///< of a micro-batch
  std::map<SplitKey, std::unique_ptr<Stages>> stages_;
  std::map<RanksKey, Layers> layers_;
  mutable std::map<RanksKey, std::vector<MegatronBound::Layers::One>> saved_;
};

}  // namespace oomplan
