#include "layers/stash_offload.hpp"

#include <algorithm>

namespace oomplan {
namespace {

constexpr Bytes kSmallest = 1024;    // min_offload_size
constexpr std::int64_t kKept = 5;    // max_fwd_stash_size
constexpr std::uint8_t kStream = 3;  // s1, whose blocks no other stream gets

int references(const Eager& g, const Tensor& x) { return g.storages[static_cast<std::size_t>(x.storage())].references; }

/// What counts tokens is taken to be large.
bool is_small(const Tensor& x) {
  const Dim n = elements(x.shape);
  return n == Dim(n.coefficient) && n.coefficient * (row(x.dtype).bits / 8) < kSmallest;
}

}  // namespace

Tensor StashOffload::made(const std::string& name, const Tensor& like, Pool pool) {
  Tensor out = g_.make(name, like.shape, like.dtype, pool == Pool::torch ? Category::activations : Category::host_copy);
  Storage& storage = g_.storages.back();
  storage.name = name;
  storage.pool = pool;
  if (pool == Pool::torch) storage.stream = kStream;
  return out;
}

/// The variable, or a copy of one that begins inside of its storage or has gaps.
Tensor StashOffload::as_block(const Tensor& x) {
  const Storage& storage = g_.storages[static_cast<std::size_t>(x.storage())];
  const bool whole = x.part == 0 && elements(x.shape) == elements(storage.shape);
  if (trl_ && (x.transposed || !whole)) return g_.make("contiguous", x.shape, x.dtype);
  return x.alias(x.shape);
}

/// Drops what is too old. Checkpoints of equal layers are equal tensors: the last one but this goes in place of the oldest, so
/// that layers in the middle of a run do the same.
void StashOffload::end_window(Number number) {
  while (!window_.empty() && window_.begin()->first <= number - kKept) {
    Tensor &oldest = window_.begin()->second, &newest = window_.rbegin()->second;
    const bool equal = oldest.shape == newest.shape && oldest.dtype == newest.dtype;
    if (checkpointed_ && in_layers && !g_.in_backward && equal && references(g_, oldest) == 1 && references(g_, newest) == 1)
      std::swap(oldest, newest);
    forget(window_.begin()->first);
    window_.erase(window_.begin());
  }
}

void StashOffload::forget(Number number) {
  std::erase_if(places_, [&](const auto& one) { return one.second == number; });
}

std::shared_ptr<PackedVariable> StashOffload::keep(const Tensor& x, Number number, const Place& place) {
  places_[place] = number;
  auto packed = std::make_shared<PackedVariable>();
  packed->eager = &g_;
  auto kept = std::make_shared<Tensor>(x.alias(x.shape));
  packed->unpack = [this, number, kept] {
    forget(number);
    return std::exchange(*kept, {});
  };
  return packed;
}

std::shared_ptr<PackedVariable> StashOffload::pack(const Tensor& x) {
  const Number number = ++number_;
  if (x.leaf >= 0 || x.storage() < 0) return nullptr;
  const Place place{x.storage(), x.part, x.dtype};
  if (trl_ && places_.contains(place)) return keep(x, number, place);
  if (is_small(x)) return nullptr;
  Storage& storage = g_.storages[static_cast<std::size_t>(x.storage())];
  storage.saved = true;
  // a checkpoint's input belongs to the layer that it is the input of
  if (checkpointed_ && in_layers && !g_.in_backward) storage.scope = g_.scope;
  const std::string name = storage.name;
  Tensor block = as_block(x);
  end_window(number);
  auto host = std::make_shared<Tensor>(made(name + ".on_host", x, Pool::pinned));
  window_.emplace(number, std::move(block));
  if (trl_) places_[place] = number;
  auto packed = std::make_shared<PackedVariable>();
  packed->eager = &g_;
  packed->unpack = [this, number, host, name] { return bring_back(number, *host, name + ".from_host"); };
  return packed;
}

Tensor StashOffload::bring_back(Number number, Tensor& host, const std::string& name) {
  if (graph_ < 0) graph_ = g_.graph();
  std::vector<Number> before;
  if (g_.graph() == graph_ && g_.running() != node_) {
    node_ = g_.running();
    for (const auto& one : returned_) before.push_back(one.first);
  }
  const auto at = window_.find(number);
  const bool came_back = at == window_.end();
  if (came_back) returned_[number] = made(name, host, Pool::torch);
  Tensor out = came_back ? returned_[number] : at->second;
  host.reset();
  forget(number);
  g_.after_node([this, number, came_back, before] { after_node(number, came_back, before); });
  return out;
}

void StashOffload::after_node(Number number, bool came_back, const std::vector<Number>& before) {
  if (came_back && returned_.contains(number) && references(g_, returned_[number]) > 1) returned_.erase(number);
  for (; !window_.empty(); window_.erase(window_.begin())) forget(window_.begin()->first);
  for (const Number one : before) returned_.erase(one);
}

std::int64_t stash_warm_up(const PassOptions& o) {
  if (!o.training || !offloads_by_stash(o.kernels.offload_activations)) return 0;
  return o.recompute == Recompute::full ? 8 : 2;
}

bool stash_spares_head(const PassOptions& o) {
  if (!offloads_by_stash(o.kernels.offload_activations)) return false;
  return o.kernels.offload_activations == OffloadActivations::torchtune || !o.critic;
}

}  // namespace oomplan
