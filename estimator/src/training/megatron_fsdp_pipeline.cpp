#include "training/megatron_fsdp_pipeline.hpp"

#include <algorithm>

namespace oomplan {

void FsdpPipeline::make(bool parameters, int bucket) {
  using enum FsdpEvent::Kind;
  if (!pooled(bucket)) return say(parameters ? weights : gradients, bucket, true);
  Pool& pool = parameters ? weight_pool_ : gradient_pool_;
  const int number = *pool.idle.begin();
  pool.idle.erase(pool.idle.begin());
  pool.used[bucket] = number;
  if (pool.made.insert(number).second) say(parameters ? pooled_weights : pooled_gradients, bucket, true, number);
}
void FsdpPipeline::drop(bool parameters, int bucket) {
  using enum FsdpEvent::Kind;
  if (!pooled(bucket)) return say(parameters ? weights : gradients, bucket, false);
  Pool& pool = parameters ? weight_pool_ : gradient_pool_;
  pool.idle.insert(pool.used.at(bucket));
  pool.used.erase(bucket);
}

/// Behind (backward: in front of) the ones asked for, until enough is added.
std::vector<int> FsdpPipeline::with_next(std::vector<int> buckets, bool forward) {
  std::set<std::int64_t> units;
  for (const int b : buckets)
    if (pooled(b)) units.insert(at(b).unit);
  std::int64_t added = 0;
  while (added < plan_.prefetch) {
    int next = forward ? buckets.front() + 1 : buckets.back() - 1;
    const auto there = [&](int b) { return std::find(buckets.begin(), buckets.end(), b) != buckets.end(); };
    while (there(next)) next += forward ? 1 : -1;
    if (next < 0 || next >= std::ssize(plan_.buckets)) break;
    if (plan_.double_buffer) {
      units.insert(at(next).unit);
      if (units.size() > 2) break;
    }
    added += at(next).elements;
    buckets.push_back(next);
    std::sort(buckets.begin(), buckets.end());
  }
  return buckets;
}

void FsdpPipeline::gather(const std::vector<int>& asked, Ahead ahead) {
  if (!plan_.splits_weights || asked.empty()) return;
  for (const int b : asked) releasable_[static_cast<std::size_t>(b)] = false;
  const std::vector<int> all = ahead == Ahead::none ? asked : with_next(asked, ahead == Ahead::forward);
  for (const int b : all) {
    const auto i = static_cast<std::size_t>(b);
    if (held_[i]) continue;
    releasable_[i] = false;
    held_[i] = true;
    recycle();
    make(true, b);
  }
}

void FsdpPipeline::release(const std::vector<int>& buckets, bool lazy) {
  for (const int b : buckets) {
    const auto i = static_cast<std::size_t>(b);
    if (!plan_.splits_weights || !held_[i]) continue;
    if (lazy) {
      releasable_[i] = true;
      continue;
    }
    drop(true, b);
    held_[i] = false;
  }
}

void FsdpPipeline::recycle() {
  for (std::size_t i = 0; i < releasable_.size(); ++i)
    if (releasable_[i]) {
      release({static_cast<int>(i)}, false);
      releasable_[i] = false;
    }
}

void FsdpPipeline::begin_backward() {
  for (std::size_t i = 0; i < releasable_.size(); ++i)
    if (plan_.buckets[i].unit != kOutsideLayers) releasable_[i] = true;
}

void FsdpPipeline::add(const std::vector<int>& buckets) {
  if (!plan_.splits_gradients) return;
  for (const int b : buckets) {
    if (gradients_.contains(b)) continue;
    if (plan_.double_buffer) keep_two_units(b);
    gradients_.insert(b);
    make(false, b);
  }
}

void FsdpPipeline::free_first() {
  const int b = queue_.front();
  queue_.pop_front();
  counted_[static_cast<std::size_t>(b)] = 0;
  if (gradients_.erase(b) > 0) drop(false, b);
}

void FsdpPipeline::wait_for_room() {
  std::int64_t waiting = 0;
  for (const int b : queue_) waiting += at(b).elements;
  while (waiting > plan_.queue) {
    waiting -= at(queue_.front()).elements;
    free_first();
  }
}

/// _enforce_double_buffer_limit: of what waits so much stays that there are no more than two units with the one that comes.
void FsdpPipeline::keep_two_units(int added) {
  std::set<std::int64_t> units;
  if (pooled(added)) units.insert(at(added).unit);
  auto keep = std::ssize(queue_);
  for (auto b = queue_.rbegin(); b != queue_.rend(); ++b) {
    units.insert(at(*b).unit);
    if (units.size() > 2) --keep;
  }
  // wait_for_previous_grad_reduce: at least one bucket of the model waits not at all
  keep = std::max<std::ptrdiff_t>(0, std::min(keep, std::ssize(plan_.buckets) - 1));
  while (std::ssize(queue_) > keep) free_first();
}

void FsdpPipeline::reduce(const std::vector<int>& buckets, bool reduces) {
  if (!reduces) return;
  for (const int b : buckets) {
    if (++counted_[static_cast<std::size_t>(b)] < at(b).modules) continue;
    wait_for_room();
    if (plan_.double_buffer) keep_two_units(b);
    if (plan_.strategy != MegatronFsdpStrategy::no_shard && !plan_.double_buffer) {
      say(FsdpEvent::Kind::reduced, b, true);
      say(FsdpEvent::Kind::reduced, b, false);
    }
    queue_.push_back(b);
  }
}

void FsdpPipeline::end_backward() {
  while (!queue_.empty()) free_first();
}

void FsdpPipeline::reset() {
  for (std::size_t i = 0; i < releasable_.size(); ++i) releasable_[i] = true;
  recycle();
}

}  // namespace oomplan
