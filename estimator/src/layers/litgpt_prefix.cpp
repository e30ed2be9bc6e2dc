#include "layers/litgpt_prefix.hpp"

#include <algorithm>
#include <utility>

#include <oomplan/units/bytes.hpp>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::S;

/// scaled_dot_product_attention with a mask of truths: the memory-efficient kernel, which wants its bias in the queries' format
/// and rows of a multiple of eight numbers (aten/src/ATen/native/transformers/attention.cpp, 2.2 to 2.13).
Tensor over_prefix(Eager& g, const Tensor& q, std::int64_t tokens, const Shape& out_shape) {
  constexpr std::int64_t kAligned = 8;
  Tensor bias;
  {
    Tensor truth = g.make("prefix.mask", {S, Dim(tokens)}, DType::boolean, Category::temporaries);
    Tensor narrow = g.make("prefix.bias", {S, Dim(tokens)}, q.dtype, Category::temporaries);
    bias = tokens % kAligned == 0 ? narrow : g.make("prefix.bias_padded", {S, Dim(round_up(tokens, kAligned))}, q.dtype);
  }
  const bool recorded = g.will_record({&q});
  Saved sq = recorded ? g.save(q) : Saved(), sb = recorded ? g.save(bias) : Saved();
  Tensor out = g.make("prefix.out", q.shape, q.dtype);
  Tensor lse = g.make("prefix.lse", {q.shape[0], q.shape[1], q.shape[2]}, DType::fp32);
  Tensor seed = g.make("prefix.rng", {}, DType::int64), offset = g.make("prefix.rng", {}, DType::int64);
  out.shape = out_shape;
  if (!recorded) return out;
  Saved so = g.save(out), sl = g.save(lse), ss = g.save(seed), sf = g.save(offset);
  g.record(out, "EfficientAttentionBackward", {&q}, [=, &g](Gradients in) {
    for (const Saved* s : {&sq, &sb, &so, &sl, &ss, &sf}) (void)s->get();
    Tensor for_q = gradient(g, "prefix.backward", sq.get().shape, in[0].dtype);
    Tensor delta = g.make("prefix.delta", sl.get().shape, DType::fp32, Category::temporaries);
    return Gradients{for_q};
  });
  return out;
}

}  // namespace

Architecture with_runs_of_prefixes(Architecture a) {
  std::vector<LayerRun> runs;
  std::int64_t number = 0;
  for (const LayerRun& run : a.runs) {
    const std::int64_t bare = std::clamp<std::int64_t>(kLayersWithoutPrefix - number, 0, run.count);
    for (const std::int64_t count : {bare, run.count - bare}) {
      if (count == 0) continue;
      runs.push_back(run);
      runs.back().count = count;
    }
    number += run.count;
  }
  a.runs = std::move(runs);
  return a;
}

std::string unsupported_prefix(const Architecture& a, const KernelOptions& options) {
  if (options.adapters.rank == 0 || !has_prefixes(options.adapters.kind)) return {};
  const auto other = [](const LayerRun& run) { return run.layer.mixer.softcap || run.layer.mixer.kv_heads == 1; };
  if (std::any_of(a.runs.begin(), a.runs.end(), other))
    return "a prefix beside capped scores or one head of keys is not supported yet";
  return {};
}

Tensor with_prefix(Eager& g, const Tensor& own, const Tensor& q, int gates, const Shape& out, std::int64_t tokens) {
  Tensor read = over_prefix(g, q, tokens, out);
  Tensor gated = mul(g, g.leaf(gates), std::move(read), "prefix.gated");
  return add(g, own, std::move(gated), "prefix.sum");
}

Bytes prefix_cache(const Architecture& a, std::int64_t tokens) {
  Bytes all = 0;
  std::int64_t number = 0;
  for (const LayerRun& run : with_runs_of_prefixes(a).runs) {
    if (number >= kLayersWithoutPrefix)
      all += bytes_of(run.count * tokens * 2 * run.layer.mixer.q_width(), DType::bf16);  // repeat_interleave copies
    number += run.count;
  }
  return all;
}

}  // namespace oomplan
