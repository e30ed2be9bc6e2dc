#include "training/megatron_fsdp_plan.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace oomplan {
namespace {

struct Parameter {
  std::int64_t rows = 0, columns = 1;  ///< columns: of a vector 1, as torch counts what is behind its first axis
  FsdpPlace place{kOutsideLayers, FsdpModule::embedding};
  std::int64_t elements() const { return rows * columns; }
};
using Parameters = std::vector<Parameter>;

/// In the order of the modules, as named_parameters() gives them.
class Lister {
 public:
  Lister(const Architecture& a, const ChunkOptions& o) : a_(a), o_(o) {}
  Parameters run() {
    const std::int64_t rows = o_.padded_vocab / o_.te.tensor;
    at_ = {kOutsideLayers, FsdpModule::embedding};
    matrix(rows, a_.hidden);
    at_.second = FsdpModule::positions;
    if (a_.position_rows > 0) matrix(a_.position_rows, a_.hidden);
    for (std::size_t l = 0; l < o_.layers.size(); ++l) {
      at_.first = static_cast<std::int64_t>(l);
      layer(a_.runs[static_cast<std::size_t>(o_.layers[l])].layer);
    }
    at_ = {kOutsideLayers, FsdpModule::norm};
    norm(a_.final_norm, a_.hidden);
    at_.second = FsdpModule::head;
    if (!a_.tied) matrix(rows, a_.hidden);
    return std::move(out_);
  }

 private:
  void matrix(std::int64_t rows, std::int64_t columns) { out_.push_back({rows, columns, at_}); }
  void vector(std::int64_t width) { out_.push_back({width, 1, at_}); }
  void norm(NormKind kind, std::int64_t width) {
    vector(width);
    if (kind == NormKind::layer) vector(width);
  }
  void layer(const Layer& l) {
    const Mixer& m = l.mixer;
    const std::int64_t t = o_.te.tensor, projected = (m.heads + 2 * m.kv_heads) * m.head_dim / t;
    at_.second = FsdpModule::proj;
    matrix(a_.hidden, m.heads * m.head_dim / t);
    if (m.out_bias) vector(a_.hidden);
    at_.second = FsdpModule::qkv;
    norm(l.norm, a_.hidden);
    matrix(projected, a_.hidden);
    if (m.q_bias) vector(projected);
    for (int n = 0; m.qk_norm == QkNorm::head && n < 2; ++n) norm(l.norm, m.head_dim);
    const FeedForward& f = l.feed_forward;
    const std::int64_t width = f.width / t, inner = f.kind == FeedForwardKind::gated ? 2 * width : width;
    at_.second = FsdpModule::fc1;
    norm(l.norm, a_.hidden);
    matrix(inner, a_.hidden);
    if (f.bias) vector(inner);
    at_.second = FsdpModule::fc2;
    matrix(a_.hidden, width);
    if (f.bias) vector(a_.hidden);
  }

  const Architecture& a_;
  const ChunkOptions& o_;
  FsdpPlace at_{kOutsideLayers, FsdpModule::embedding};
  Parameters out_;
};

/// Steps 1 and 2 of _get_parameter_groups: what is outside of the units, in buckets of at least `bucket` elements (0: one), then
/// the units. Where nothing is a unit all layers are outside.
std::vector<Parameters> grouped(const Parameters& all, bool units, std::int64_t bucket) {
  std::vector<Parameters> out;
  Parameters open;
  std::int64_t inside = 0;
  for (const Parameter& p : all) {
    if (units && p.place.first != kOutsideLayers) continue;
    open.push_back(p);
    inside += p.elements();
    if (bucket == 0 || inside < bucket) continue;
    out.push_back(std::exchange(open, {}));
    inside = 0;
  }
  if (!open.empty()) out.push_back(std::move(open));
  std::map<std::int64_t, Parameters> layers;
  for (const Parameter& p : all)
    if (units && p.place.first != kOutsideLayers) layers[p.place.first].push_back(p);
  for (auto& [layer, inside_it] : layers) out.push_back(std::move(inside_it));
  return out;
}

/// Step 3: wide rows first, and a unit of elements that no rank's part may cut.
std::int64_t sort_by_rows(Parameters& group) {
  std::stable_sort(group.begin(), group.end(), [](const auto& a, const auto& b) { return a.columns > b.columns; });
  std::int64_t unit = group.front().columns;
  for (const Parameter& p : group) {
    const bool fits = p.columns == unit || (unit % p.columns == 0 && p.elements() % unit == 0) || p.elements() < unit;
    if (!fits) unit = std::lcm(unit, p.columns);
  }
  return unit;
}

/// Where each parameter begins in its bucket (build_data_parallel_buffer_index), and its end.
struct Placement {
  std::vector<std::int64_t> starts;
  std::int64_t end = 0;
};
Placement place(const Parameters& group, std::int64_t unit) {
  Placement out;
  out.starts.resize(group.size());
  std::vector<std::size_t> small, large;
  for (std::size_t i = 0; i < group.size(); ++i) (group[i].elements() < unit ? small : large).push_back(i);
  const auto n = [&](std::size_t i) { return group[i].elements(); };
  while (!large.empty()) {
    const std::size_t i = large.front();
    large.erase(large.begin());
    out.starts[i] = out.end;
    const std::int64_t rest = n(i) % unit;
    if (rest == 0) {
      out.end += n(i);
      continue;
    }
    std::int64_t gap = out.end + n(i), space = unit - rest;
    out.end += (n(i) / unit + 1) * unit;
    const auto other =
        std::find_if(large.begin(), large.end(), [&](std::size_t o) { return n(o) % unit != 0 && rest + n(o) % unit <= unit; });
    if (other != large.end()) {  // it ends what this one has begun
      out.starts[*other] = out.end - n(*other) % unit;
      space -= n(*other) % unit;
      out.end += n(*other) / unit * unit;
      large.erase(other);
    }
    std::erase_if(small, [&](std::size_t s) {
      if (n(s) > space) return false;
      out.starts[s] = gap;
      gap += n(s);
      space -= n(s);
      return true;
    });
  }
  for (const std::size_t s : small) {
    out.starts[s] = out.end;
    out.end += n(s);
  }
  return out;
}

FsdpBucket make_bucket(Parameters group, std::int64_t ranks, const MegatronFsdpPlan& plan, bool units) {
  const std::int64_t unit = sort_by_rows(group);
  const Placement placed = place(group, unit);
  FsdpBucket out;
  const bool pads = plan.strategy != MegatronFsdpStrategy::no_shard;
  out.elements = pads ? (placed.end + ranks * unit - 1) / (ranks * unit) * ranks * unit : placed.end;
  out.shard = out.elements / ranks;
  out.unit = units ? group.front().place.first : kOutsideLayers;
  std::set<FsdpPlace> modules;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int64_t n = group[i].elements();
    out.own += n;
    out.parameters.push_back(n);
    const std::int64_t part = plan.splits_masters ? std::clamp<std::int64_t>(out.shard - placed.starts[i], 0, n) : n;
    if (part > 0) out.parts.push_back(part);
    modules.insert(group[i].place);
  }
  out.modules = std::ssize(modules);
  return out;
}

/// FixedPoolAllocator: of the units that are alike the largest set, the first one found.
std::vector<bool> pooled_buckets(const std::vector<FsdpBucket>& buckets) {
  std::map<std::int64_t, std::int64_t> alike;
  for (const FsdpBucket& b : buckets)
    if (b.unit != kOutsideLayers) ++alike[b.own];
  std::int64_t size = 0, most = 0;
  for (const FsdpBucket& b : buckets)
    if (b.unit != kOutsideLayers && alike[b.own] > most) {
      size = b.own;
      most = alike[b.own];
    }
  std::vector<bool> out;
  for (const FsdpBucket& b : buckets) out.push_back(b.unit != kOutsideLayers && b.own == size);
  return out;
}

}  // namespace

MegatronFsdpPlan make_megatron_fsdp_plan(const Architecture& a, const Trainer& t, const ChunkOptions& chunk) {
  using enum MegatronFsdpStrategy;
  const Megatron& m = t.megatron;
  const std::int64_t all_ranks = t.layout.data * t.layout.context, ranks = all_ranks / m.optimizer_instances;
  const bool units = m.fsdp == optim_grads_params;
  MegatronFsdpPlan out;
  out.strategy = m.fsdp;
  out.splits_weights = units && ranks > 1;
  out.splits_gradients = m.fsdp >= optim_grads && ranks > 1;
  out.splits_masters = m.fsdp >= optim;
  out.reduces_in_backward = m.fsdp >= optim_grads || m.overlap_grad_reduce;
  out.double_buffer = m.fsdp_double_buffer;
  out.reduce = t.reduce;
  out.tied = a.tied;
  out.from_meta = t.memory_efficient_load;
  out.computes_again = t.recompute == Recompute::full;
  // megatron/training/training.py: get_model
  const std::int64_t bucket = m.overlap_grad_reduce ? std::max<std::int64_t>(40'000'000, 1'000'000 * all_ranks) : 0;
  const Parameters all = Lister(a, chunk).run();
  for (Parameters& group : grouped(all, units, bucket)) {
    for (const Parameter& p : group)
      if (auto& of = out.of[p.place]; of.empty() || of.back() != static_cast<int>(out.buckets.size()))
        of.push_back(static_cast<int>(out.buckets.size()));
    out.buckets.push_back(make_bucket(std::move(group), ranks, out, units));
  }
  out.pooled = m.fsdp_double_buffer && units ? pooled_buckets(out.buckets) : std::vector<bool>(out.buckets.size(), false);
  std::int64_t suggested = m.communication_unit;
  if (suggested == 0) {
    std::int64_t inside = 0;
    for (const Parameter& p : all) inside += p.place.first == kOutsideLayers ? 0 : p.elements();
    const auto layers = std::max<std::int64_t>(1, std::ssize(chunk.layers));
    suggested = std::max<std::int64_t>(1'000'000'000, units ? inside / layers * 2 : bucket);
  }
  out.queue = suggested;
  out.prefetch = suggested / 2;
  return out;
}

}  // namespace oomplan
