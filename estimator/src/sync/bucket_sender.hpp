// Weight updates of slime and its kin: Megatron's parameters, bucket by bucket.
//
// On shared GPUs (slime/backends/megatron_utils/update_weight/update_weight_from_tensor.py, hf_weight_iterator_direct.py,
// common.py: all_gather_params_async; 0.1.0: update_weight_utils.py) every rank has all parameters of a bucket: its part, loaded
// from the host or broadcast by the stage or the expert ranks that have it. Of those that ranks share all parts are gathered,
// into pieces and, inside of NCCL's all-gather of a list, into one flat tensor that the handle keeps
// (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: allgather, newLikeFlat, 2.5 to 2.9). The pieces are put together by a copy.
// Then copies take the checkpoint's form, and one tensor gets all of the bucket, which the server maps.
//
// Legend: S bytes of a bucket, t ranks that share its parameters: S/t + 3 S while it is gathered; then S + copies + S.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "sync/sync.hpp"
#include "sync/sync_sites.hpp"

namespace oomplan {

template <class R>
class BucketSender {
 public:
  BucketSender(R& r, const SyncPlan& p) : r_(r), p_(p), sites_(r, p) {}

  void shared() {
    for (std::size_t b = 0; b < p_.buckets.size(); ++b) {
      const SyncBucket& now = p_.buckets[b];
      gather_all(now);
      for (std::size_t i = now.first; i < now.last; ++i) convert(i);
      if (p_.point.keeps_last && b > 0) forget(p_.buckets[b - 1]);
      in_one_tensor(b);
      if (p_.point.keeps_last) {
        // what has been converted is not what was gathered
        for (std::size_t i = now.first; i < now.last; ++i)
          if (of(i).converted > 0) free(i, sites_.gathered(tensor(i)));
      } else {
        for (std::size_t i = now.first; i < now.last; ++i) free(i, sites_.gathered(tensor(i)));
        for (std::size_t i = now.first; i < now.last; ++i)
          if (of(i).converted > 0) free(i, sites_.converted(tensor(i)));
      }
      if (p_.point.keeps_parts) free_parts(now);
      if (p_.point.empties_between) r_.trim();
    }
    if (p_.point.keeps_last && !p_.buckets.empty()) forget(p_.buckets.back());
    if (p_.point.keeps_sent && p_.point.flattens && !p_.buckets.empty()) r_.free(in_one_, Index(std::ssize(p_.buckets) - 1));
    if (p_.point.staging > 0) routed();
    r_.trim();  // the pool of these tensors goes
  }

  /// A stage's first rank, which sends, and the others, which take part in the gathers.
  void of_stage() {
    for (const SyncBucket& bucket : p_.buckets)
      if (of(bucket.first).expert)
        experts(bucket);
      else
        others(bucket);
    if (held_ >= 0) close();
  }

 private:
  std::uint32_t tensor(std::size_t i) const { return p_.model->order[i].tensor; }
  const SyncTensor& of(std::size_t i) const { return p_.model->tensors[tensor(i)]; }
  void alloc(std::size_t i, const SiteRef& site) { r_.alloc(site, layer_of(p_.model->order[i]), copy_of(p_.model->order[i])); }
  void free(std::size_t i, const SiteRef& site) { r_.free(site, layer_of(p_.model->order[i]), copy_of(p_.model->order[i])); }
  Bytes sent_of(const SyncBucket& bucket) const {
    Bytes sum = 0;
    for (std::size_t i = bucket.first; i < bucket.last; ++i) sum += of(i).sent;
    return sum;
  }

  void gather_all(const SyncBucket& now) {
    const auto each_shared = [&](auto&& act) {
      for (std::size_t i = now.first; i < now.last; ++i)
        if (of(i).part > 0) act(i);
    };
    for (std::size_t i = now.first; i < now.last; ++i)
      alloc(i, of(i).part > 0 ? sites_.part(tensor(i)) : sites_.gathered(tensor(i)));
    each_shared([&](std::size_t i) {
      alloc(i, sites_.pieces(tensor(i)));
      alloc(i, sites_.flat(tensor(i)));
    });
    each_shared([&](std::size_t i) { alloc(i, sites_.gathered(tensor(i))); });
    each_shared([&](std::size_t i) {
      free(i, sites_.pieces(tensor(i)));
      free(i, sites_.flat(tensor(i)));
    });
    if (!p_.point.keeps_parts) free_parts(now);
  }
  void free_parts(const SyncBucket& now) {
    for (std::size_t i = now.first; i < now.last; ++i)
      if (of(i).part > 0) free(i, sites_.part(tensor(i)));
  }
  void convert(std::size_t i) {
    merge(i);
    if (of(i).converted > 0) alloc(i, sites_.converted(tensor(i)));
  }
  /// Relax's checkpoint engine merges an adapter into the whole parameter (device_direct.py: _merge_full_base, redai-studio/Relax
  /// 0a91dd1d): in fp32 three times as much at once.
  void merge(std::size_t i) {
    if (of(i).adapter == 0) return;
    const SiteRef site = sites_.buffer("merged in fp32", 6 * of(i).stored + of(i).adapter);
    r_.alloc(site);
    r_.free(site);
  }
  void forget(const SyncBucket& bucket) {
    for (std::size_t i = bucket.first; i < bucket.last; ++i)
      free(i, of(i).converted > 0 ? sites_.converted(tensor(i)) : sites_.gathered(tensor(i)));
  }
  void in_one_tensor(std::size_t bucket) {
    if (!p_.point.flattens) return;
    const SiteRef last = std::exchange(in_one_, sites_.buffer("bucket in one tensor", sent_of(p_.buckets[bucket])));
    const Index at(static_cast<std::int64_t>(bucket));
    r_.alloc(in_one_, at);
    if (!p_.point.keeps_sent) return r_.free(in_one_, at);
    if (bucket > 0) r_.free(last, at - 1);
  }
  /// Buffers for experts stay from layer to layer.
  void routed() {
    const SiteRef staging = sites_.buffer("experts on their way", p_.point.staging);
    r_.alloc(staging);
    const SiteRef sent = sites_.buffer("experts in one tensor", p_.point.staged);
    r_.alloc(sent);
    r_.free(sent);
    r_.free(staging);
  }

  /// all_gather_param: with one rank, or of what every rank has, the parameter itself.
  void gather(std::size_t i) {
    if (of(i).part == 0) return;
    alloc(i, sites_.pieces(tensor(i)));
    alloc(i, sites_.flat(tensor(i)));
    free(i, sites_.flat(tensor(i)));
    alloc(i, sites_.gathered(tensor(i)));
    free(i, sites_.pieces(tensor(i)));
  }
  /// A bucket goes when the next parameter is there; what was converted stays with it until the next one.
  void others(const SyncBucket& bucket) {
    if (!p_.point.sender) {
      for (std::size_t i = bucket.first; i < bucket.last; ++i) {
        gather(i);
        if (of(i).part > 0) free(i, sites_.gathered(tensor(i)));
      }
      return;
    }
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      gather(i);
      if (i == bucket.first && !p_.point.converts_first && held_ >= 0) close();
      convert(i);
      if (i == bucket.first && p_.point.converts_first && held_ >= 0) close();
      if (of(i).converted > 0 && of(i).part > 0 && !p_.point.keeps_gathered) free(i, sites_.gathered(tensor(i)));
    }
    held_ = static_cast<std::int64_t>(&bucket - p_.buckets.data());
  }
  void close() {
    const SyncBucket& bucket = p_.buckets[static_cast<std::size_t>(held_)];
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      if (of(i).converted > 0) free(i, sites_.converted(tensor(i)));
      if (of(i).part > 0 && (of(i).converted == 0 || p_.point.keeps_gathered)) free(i, sites_.gathered(tensor(i)));
    }
    held_ = -1;
  }
  /// A rank's experts are gathered one by one, then those of all ranks at once, when the next bucket's first one is there; what
  /// the handles keep stays until all has been sent.
  void experts(const SyncBucket& bucket) {
    if (held_ >= 0) close();
    const bool first = bucket.first == 0 || !of(bucket.first - 1).expert;
    const auto own = [&](std::size_t i) {
      gather(i);
      merge(i);
    };
    for (std::size_t i = bucket.first + (first ? 0 : 1); i < bucket.last; ++i) own(i);
    if (bucket.last < p_.model->order.size()) own(bucket.last);
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      alloc(i, sites_.of_all_ranks(tensor(i)));
      alloc(i, sites_.all_flat(tensor(i)));
    }
    for (std::size_t i = bucket.first; i < bucket.last; ++i)
      if (of(i).part > 0) free(i, sites_.gathered(tensor(i)));
    const auto each_converted = [&](auto&& act) {
      for (std::size_t i = bucket.first; i < bucket.last && p_.point.sender; ++i)
        if (of(i).converted > 0) act(i);
    };
    each_converted([&](std::size_t i) { alloc(i, sites_.converted(tensor(i))); });
    each_converted([&](std::size_t i) { free(i, sites_.converted(tensor(i))); });
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      free(i, sites_.all_flat(tensor(i)));
      free(i, sites_.of_all_ranks(tensor(i)));
    }
  }

  R& r_;
  const SyncPlan& p_;
  SyncSites<R> sites_;
  SiteRef in_one_;
  std::int64_t held_ = -1;  ///< a bucket that is full, and not sent
};

}  // namespace oomplan
