// ZeRO's gradients: the bucket that they are collected in, what a reduction makes, and the fp32 gradients of the optimizer's
// step.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "training/engine_sites.hpp"
#include "training/plan.hpp"
#include "training/player.hpp"

namespace oomplan {

template <class R>
class ZeroGradients : EngineSites<R> {
  using EngineSites<R>::site;

 public:
  /// REQUIRES: the plan has a ZeroPlan.
  ZeroGradients(R& r, const TrainPlan& plan, std::string_view role)
      : EngineSites<R>(r, role), r_(r), plan_(plan), zero_(*plan.zero) {
    const auto local = [this](std::string_view name, Bytes bytes, Category category) {
      return site("", name, bytes, category, Holder::communication, kStream);
    };
    bucket_ = local("gradient_bucket", zero_.bucket, Category::communication);
    shards_ = local("sharded_gradients", zero_.gradients, Category::gradients);
    staging_ = local("gradient_staging", zero_.gpu_staging, Category::communication);
    piece_ = local("gradients_of_the_partition", zero_.in_partition, Category::gradients);
    next_piece_ = local("gradients_of_the_partition.added", zero_.in_partition, Category::gradients);
    more_in_step_ = local("gradients_of_the_partition.more", zero_.more_in_step, Category::gradients);
    norm_ = site("", "gradient_as_double", zero_.norm, Category::temporaries, Holder::local);
    if constexpr (R::kWrites)
      for (const std::int64_t n : zero_.sub_groups) steps_.push_back(step_sites(n));
  }

  void load() {
    if (zero_.stage == 3) r_.alloc(bucket_);
    r_.alloc(shards_);
    r_.alloc(staging_);
  }
  void begin(bool first) {
    first_ = first;
    piece_there_ = in_fp32() && piece_there_ && !first;
  }
  /// setup_buckets: with the first gradient of a backward pass.
  bool has_bucket() const { return zero_.stage == 3 || bucket_there_; }
  void make_bucket() {
    if (has_bucket()) return;
    r_.alloc(bucket_);
    bucket_there_ = true;
  }
  /// A gradient of unit `number`, which lies at `at`, is complete.
  void take(Player<R>& player, const LeftGradient& gradient, Index at, std::int64_t number, Index micro) {
    const std::int64_t n = gradient.bytes / zero_.element;
    if (elements_ + n > zero_.bucket_elements && elements_ > 0) reduce(player, micro);
    const std::int64_t start = start_of(gradient, number);
    if (zero_.contiguous && elements_ + n <= zero_.bucket_elements)
      player.free_gradient(gradient, at, micro);  // copied into the bucket
    else
      apart_.push_back({&gradient, at, goes(start, n)});
    elements_ += n;
    ++parameters_;
    const std::int64_t shard = ceil_div(n, zero_.ranks);
    largest_ = std::max(largest_, shard);
    padded_ += shard * zero_.ranks;
    unequal_ = unequal_ || n % zero_.ranks != 0;
    if (zero_.stage == 3) return;
    mine_ = mine_ || has_piece(start, n);
    const std::int64_t piece = zero_.sub_groups.front();
    for (std::int64_t from = start; from < start + n;) {
      const std::int64_t rank = from / piece, to = std::min(start + n, (rank + 1) * piece);
      const bool by_itself = in_fp32() && rank == zero_.rank;  // each goes to its place in the flat piece
      if (slices_.empty() || slices_.back().rank != rank || by_itself) slices_.push_back({rank, 0});
      slices_.back().elements += to - from;
      from = to;
    }
  }
  void end(Player<R>& player, Index micro, bool last) {
    if (zero_.stage == 1 && !last) return;  // the bucket stays until the last micro-batch
    reduce(player, micro);
    for (const Apart& one : kept_) player.free_gradient(*one.gradient, one.at, micro);
    kept_.clear();
    if (zero_.stage == 3) return;
    if (bucket_there_) r_.free(bucket_);
    bucket_there_ = false;
    if (piece_there_ && accumulates() && !in_fp32()) r_.free(next_piece_);  // added to what is there
  }
  /// The gradients become fp32 sub-group by sub-group, then the optimizer steps. With offload it does so on the host.
  void step() {
    if (zero_.offloads_optimizer) return;
    if (zero_.stage < 3) r_.alloc(more_in_step_);
    r_.alloc(norm_);
    r_.free(norm_);
    for (std::size_t i = 0; i < zero_.sub_groups.size(); ++i) {
      const Step s = step_of(i);
      const Index at(static_cast<std::int64_t>(i));
      r_.alloc(s.flat, at);
      r_.alloc(s.fp32, at);
      r_.free(s.flat, at);
      if (zero_.stage < 3 && !in_fp32()) free_piece();
      r_.alloc(s.temporaries, at);
      r_.free(s.temporaries, at);
      if (zero_.stage < 3 && in_fp32()) free_piece();
      r_.free(s.fp32, at);
    }
  }

 private:
  static constexpr std::uint8_t kStream = 2;  ///< reduce_and_partition_stream
  static constexpr Bytes kFp32 = 4;
  struct Step {
    SiteRef flat, fp32, temporaries;
  };
  struct Apart {
    const LeftGradient* gradient;
    Index at;
    bool goes;  ///< as soon as it is reduced
  };
  /// Elements of the bucket that one rank updates, in a row.
  struct Slice {
    std::int64_t rank, elements;
  };
  Step step_sites(std::int64_t n) {
    Step s;
    // what is fp32 already: in stage 3 the flat copy is the optimizer's, in stage 2 the piece itself
    s.flat = transient("sub_group.gradients_flat", in_fp32() ? 0 : n * zero_.element);
    s.fp32 = transient("sub_group.gradients_fp32", in_fp32() && zero_.stage < 3 ? 0 : n * kFp32);
    s.temporaries = transient("optimizer.temporaries", n * kFp32 * zero_.optimizer_form_copies);
    return s;
  }
  Step step_of(std::size_t i) {
    if constexpr (R::kWrites)
      return steps_[i];
    else
      return step_sites(zero_.sub_groups[i]);
  }
  /// One site for every size.
  SiteRef transient(const std::string& name, Bytes bytes) {
    if constexpr (R::kWrites) {
      const auto [known, fresh] = sizes_.try_emplace({name, bytes});
      if (fresh) known->second = site("", name, bytes, Category::temporaries, Holder::local, kStream);
      return known->second;
    } else {
      (void)name;
      return {0, bytes, Pool::torch};
    }
  }
  void pass(const SiteRef& s) {
    r_.alloc(s);
    r_.free(s);
  }
  /// Of the flat tensor; stage 3 has none.
  std::int64_t start_of(const LeftGradient& gradient, std::int64_t number) const {
    const auto leaf = static_cast<std::size_t>(gradient.leaf);
    return zero_.stage == 3 ? 0 : zero_.offset[leaf] + number * zero_.stride[leaf];
  }
  bool has_piece(std::int64_t start, std::int64_t elements) const {
    const std::int64_t piece = zero_.sub_groups.front();
    return start < (zero_.rank + 1) * piece && start + elements > zero_.rank * piece;
  }
  bool accumulates() const { return !first_ && zero_.stage != 1; }
  /// Gradients are reduced and added up in fp32, whatever the parameters are: DeepSpeed has no 16-bit mode on.
  bool in_fp32() const { return zero_.reduced != zero_.element; }
  /// A gradient beside the bucket goes when it is reduced, but stage 1 clears what the rank has no piece of when backward is
  /// over, and so does stage 2 in fp32 with what it has copied.
  bool goes(std::int64_t start, std::int64_t elements) const {
    if (zero_.stage == 3) return true;
    return in_fp32() ? !has_piece(start, elements) : zero_.stage != 1 || has_piece(start, elements);
  }
  void free_piece() {
    r_.free(piece_);
    r_.free(more_in_step_);
  }

  void reduce(Player<R>& player, Index micro) {
    if (parameters_ == 0) return;
    zero_.stage == 3 ? scatter() : average();
    for (const Apart& one : apart_) {
      if (one.goes)
        player.free_gradient(*one.gradient, one.at, micro);
      else
        kept_.push_back(one);
    }
    apart_.clear();
    slices_.clear();
    elements_ = parameters_ = largest_ = padded_ = 0;
    unequal_ = mine_ = false;
  }
  /// reduce_scatter_coalesced: the gradients rank by rank in a buffer of their own, unless there is but one. A shard on its way
  /// to the host comes back for its norm and as fp32.
  void scatter() {
    const SiteRef converted = transient("gradients_beside_the_bucket_fp32", in_fp32() ? beside_bucket() * kFp32 : 0);
    const SiteRef together = transient("gradients_by_rank", parameters_ > 1 || unequal_ ? padded_ * zero_.reduced : 0);
    r_.alloc(converted);
    r_.alloc(together);
    r_.free(converted);
    if (zero_.offloads_optimizer) {
      const SiteRef one = transient("gradient_shard", largest_ * zero_.reduced);
      r_.alloc(one);
      pass(transient("gradient_shard_as_double", std::min(zero_.norm, largest_ * 2 * kFp32)));
      pass(transient("gradient_shard_fp32", in_fp32() ? 0 : largest_ * kFp32));
      r_.free(one);
    }
    r_.free(together);
  }
  std::int64_t beside_bucket() const {
    std::int64_t out = 0;
    for (const Apart& one : apart_) out += one.gradient->bytes / zero_.element;
    return out;
  }
  /// allreduce_and_scatter: slices of several ranks are reduced in a copy, as soon as they are more than a bucket; one alone is
  /// reduced where it is.
  void reduce_slices() {
    std::int64_t elements = 0, slices = 0;
    const auto flush = [&] {
      const SiteRef together = transient("bucket_of_several_ranks", slices > 1 ? elements * zero_.element : 0);
      r_.alloc(together);
      pass(transient("bucket_fp32", in_fp32() ? elements * kFp32 : 0));
      r_.free(together);
      elements = slices = 0;
    };
    for (const Slice& slice : slices_) {
      elements += slice.elements;
      ++slices;
      if (elements > zero_.bucket_elements) flush();
    }
    flush();
  }
  /// average_tensor. Then this rank's slices are copied into a tensor of their own, which is made with the first.
  void average() {
    const std::int64_t piece = zero_.sub_groups.front();
    const bool mine =
        zero_.stage == 2 || mine_;  // of ranks that keep as much, stage 2's highest is the one whose slices come first
    if (in_fp32() && mine && !std::exchange(piece_there_, true)) r_.alloc(piece_);
    reduce_slices();
    if (in_fp32()) return;
    if (zero_.offloads_optimizer) {
      pass(transient("gradient_piece_as_double", std::min(largest_whole(), piece) * 2 * kFp32));
      return pass(transient("gradient_piece_fp32", std::min(largest_whole(), piece) * kFp32));
    }
    if (mine && !piece_there_) r_.alloc(accumulates() ? next_piece_ : piece_);
    piece_there_ = piece_there_ || mine;
  }
  std::int64_t largest_whole() const { return largest_ * zero_.ranks; }

  R& r_;
  const TrainPlan& plan_;
  const ZeroPlan& zero_;
  SiteRef bucket_, shards_, staging_, piece_, next_piece_, more_in_step_, norm_;
  std::vector<Step> steps_;                                 ///< only when a program is written
  std::map<std::pair<std::string, Bytes>, SiteRef> sizes_;  ///< the same
  std::vector<Apart> apart_, kept_;                         ///< gradients larger than a bucket: in it, and reduced but kept
  std::vector<Slice> slices_;                               ///< of the bucket, stages 1 and 2
  std::int64_t elements_ = 0, parameters_ = 0, largest_ = 0, padded_ = 0;
  bool mine_ = false;  ///< something in the bucket is this rank's
  bool unequal_ = false, first_ = true, bucket_there_ = false, piece_there_ = false;
};

}  // namespace oomplan
