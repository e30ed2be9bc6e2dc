// What Megatron-FSDP gathers, reduces and frees, hook by hook: its two pipelines as they are written.
//
// megatron-core 0.16.1, megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py: AllGatherPipeline and
// GradReducePipeline with the allocators of buckets. Collectives are waited for where their result is used, so that a bucket is
// either there or not.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "training/megatron_fsdp_plan.hpp"

namespace oomplan {

struct FsdpEvent {
  /// weights, gradients: a whole bucket; pooled: one that stays for ever; reduced: a rank's part of one, for a moment
  enum class Kind : std::uint8_t { weights, gradients, pooled_weights, pooled_gradients, reduced };
  Kind kind = Kind::weights;
  int bucket = 0;  ///< of pooled ones a bucket of their size
  int number = 0;  ///< pooled: which of the two
  bool made = true;
};

class FsdpPipeline {
 public:
  /// REQUIRES: the plan outlives this.
  explicit FsdpPipeline(const MegatronFsdpPlan& plan)
      : plan_(plan), held_(plan.buckets.size()), releasable_(plan.buckets.size()), counted_(plan.buckets.size()) {}

  enum class Ahead : std::uint8_t { none, forward, backward };
  /// all_gather_params
  void gather(const std::vector<int>& buckets, Ahead ahead);
  /// release_bucket. `lazy`: when the next one is gathered.
  void release(const std::vector<int>& buckets, bool lazy);
  /// _root_pre_backward
  void begin_backward();
  /// A module's gradients are there: their buckets are made if they are not.
  void add(const std::vector<int>& buckets);
  /// They have been added up: buckets that are complete are reduced, where `reduces`.
  void reduce(const std::vector<int>& buckets, bool reduces);
  /// _root_post_backward, finish_grad_sync
  void end_backward();
  /// synchronize_param_gather
  void reset();

  /// What the model is moved into its buffers by. `there`: it is made; otherwise it goes.
  void place(int bucket, bool there) {
    if (!plan_.splits_weights) return;
    if (there)
      make(true, bucket);
    else
      drop(true, bucket);
  }

  /// What has happened since it was last asked.
  std::vector<FsdpEvent> take() { return std::exchange(events_, {}); }

 private:
  struct Pool {
    std::set<int> idle{0, 1};
    std::map<int, int> used;  ///< number by bucket
    std::set<int> made;
  };
  void say(FsdpEvent::Kind kind, int bucket, bool made, int number = 0) { events_.push_back({kind, bucket, number, made}); }
  void make(bool parameters, int bucket);
  void drop(bool parameters, int bucket);
  void recycle();
  std::vector<int> with_next(std::vector<int> buckets, bool forward);
  void wait_for_room();
  void keep_two_units(int added);
  void free_first();
  const FsdpBucket& at(int bucket) const { return plan_.buckets[static_cast<std::size_t>(bucket)]; }
  bool pooled(int bucket) const { return plan_.pooled[static_cast<std::size_t>(bucket)]; }

  const MegatronFsdpPlan& plan_;
  std::vector<bool> held_, releasable_;
  std::set<int> gradients_;            ///< buckets of gradients that are there
  std::vector<std::int64_t> counted_;  ///< modules whose gradients a bucket has
  std::deque<int> queue_;              ///< reduced, not yet freed
  Pool weight_pool_, gradient_pool_;
  std::vector<FsdpEvent> events_;
};

}  // namespace oomplan
