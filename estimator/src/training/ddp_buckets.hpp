// The buckets of DistributedDataParallel: flat buffers of the gradients' format, through which gradients are reduced.
//
// torch 2.13, torch/csrc/distributed/c10d/reducer.cpp and torch/nn/parallel/distributed.py: the constructor makes one bucket of
// all that is trained; the first forward pass behind a backward pass that reduced cuts it anew, in the order in which gradients
// had come. They stay for ever: zero_grad does not reach them. With find_unused_parameters, without a static graph, the
// constructor cuts them, in the order of the parameters, and nothing is cut anew.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "training/plan.hpp"

namespace oomplan {

/// Bytes of the buckets behind the first step, in the order in which the backward pass fills them.
std::vector<Bytes> rebuilt_buckets(const TrainPlan&);
/// Bytes of the buckets that are never cut anew.
std::vector<Bytes> constructed_buckets(const TrainPlan&);

template <class R>
class DdpBuckets {
 public:
  /// REQUIRES: `plan` outlives this. Without buckets in the plan nothing happens.
  DdpBuckets(R& r, const TrainPlan& plan, std::string_view role) : r_(r), plan_(plan) {
    if (plan.buckets == 0) return;
    whole_ = site(role, "gradient_bucket.first_step", plan.buckets);
    if constexpr (R::kWrites) {
      std::map<Bytes, SiteRef> known;
      std::map<Bytes, std::int64_t> times;
      for (const Bytes bytes : plan.rebuilds_buckets ? rebuilt_buckets(plan) : constructed_buckets(plan)) {
        const auto [at, fresh] = known.try_emplace(bytes);
        if (fresh) at->second = site(role, "gradient_bucket." + std::to_string(known.size() - 1), bytes);
        parts_.push_back({at->second, Index(times[bytes]++)});
      }
    }
  }

  void make() {
    if (plan_.buckets == 0) return;
    if (plan_.rebuilds_buckets)
      r_.alloc(whole_);
    else
      make_parts();
  }
  /// Gradients that are views hold the old bucket until they have been copied into the new ones.
  void rebuild(bool gradients) {
    if (plan_.buckets == 0 || !plan_.rebuilds_buckets) return;
    const bool held = gradients && plan_.bucket_views;
    if (!held) r_.free(whole_);
    make_parts();
    if (held) r_.free(whole_);
  }

 private:
  struct Bucket {
    SiteRef site;
    Index number;
  };
  void make_parts() {
    if constexpr (R::kWrites)
      for (const Bucket& b : parts_) r_.alloc(b.site, b.number);
    else
      r_.alloc(whole_);
  }
  SiteRef site(std::string_view role, const std::string& name, Bytes bytes) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = (role.empty() ? "" : std::string(role) + ".") + name;
      row.bytes = bytes;
      row.category = plan_.bucket_views ? Category::gradients : Category::communication;
      row.holder = Holder::communication;
      return r_.site(std::move(row));
    } else {
      (void)role;
      (void)name;
      return {0, bytes, Pool::torch};
    }
  }

  R& r_;
  const TrainPlan& plan_;
  SiteRef whole_;
  std::vector<Bucket> parts_;  ///< only when a program is written
};

}  // namespace oomplan
