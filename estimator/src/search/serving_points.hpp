// The points of a search over a server's settings: which values each axis has. Internal to search/.
#pragma once
#include <tuple>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace oomplan {

/// A model in the formats of one variant, with the engine's facts for it.
struct ServingVariant {
  DType weights = DType::bf16;
  std::optional<DType> kv = DType::bf16;
  bool as_stored = true;
  ServerModel model;
  ServerFacts facts;
  int changes = 0;  ///< formats that differ from the job's
};

struct ServingPoint {
  std::size_t variant = 0;
  std::int64_t tensor = 1, pipeline = 1, expert = 1, data = 1;
  std::int64_t attention_data = 1;
  std::int64_t groups = 1;  ///< with requests and a cache of their own: Role::cache_groups()
  std::int64_t max_running = 0, batched = 0, max_model_len = 0;
  double fraction = 0;
  bool eager = false;
  /// Points of one shape differ only in how much of the card and of a batch they take.
  auto shape() const { return std::tuple(variant, tensor, pipeline, expert, attention_data, eager, max_model_len); }
};

class ServingPoints {
 public:
  /// REQUIRES: all outlive this; one role, which serves.
  ServingPoints(const Job&, const Space&, const Catalog&);
  const std::vector<ServingVariant>& variants() const { return variants_; }
  /// Every point on so many GPUs, without its fraction.
  template <class Visit>
  void each(std::int64_t gpus, const Visit& visit) const {
    for (const ServingPoint& layout : layouts(gpus))
      for (std::size_t v = 0; v < variants_.size(); ++v)
        for (const bool eager : eagers())
          for (const auto length : lengths())
            for (const auto running : runnings(layout))
              for (const auto batched : batches()) {
                ServingPoint p = layout;
                p.variant = v;
                p.eager = eager;
                p.max_model_len = length;
                p.max_running = running;
                p.batched = batched;
                if (allowed(p)) visit(p);
              }
  }
  /// Largest first.
  std::vector<double> fractions() const;
  Job job_of(const ServingPoint&) const;
  /// Settings that differ from the job's.
  int changes_of(const ServingPoint&) const;

 private:
  const char* fraction_key() const;
  bool free_to(Effect, const char* knob) const;
  void make_variants(const Catalog&);
  void add(const Catalog&, DType weights, bool as_stored, std::optional<DType> kv, int changes);
  std::vector<ServingPoint> layouts(std::int64_t gpus) const;
  std::vector<bool> eagers() const;
  std::vector<std::int64_t> lengths() const;
  std::vector<std::int64_t> runnings(const ServingPoint& layout) const;
  std::vector<std::int64_t> batches() const;
  bool allowed(const ServingPoint&) const;
  bool runs(const ServingPoint&) const;

  const Job& job_;
  const Space& space_;
  const Role& role_;
  const Server& own_;
  const Gpu& gpu_;
  std::vector<ServingVariant> variants_;
};

}  // namespace oomplan
