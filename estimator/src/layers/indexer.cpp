#include "layers/indexer.hpp"

#include <utility>

#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/rotary.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// What one call of the indexer shares.
struct Indexer {
  Eager& g;
  const FamilyCode& code;
  const Mixer& m;
  const LayerLeaves& w;
  const KernelOptions& options;
  const LayerContext& context;
  Dim heads = m.index_heads, width = m.index_head_dim, rope = m.rope_head_dim, rest = Dim(m.index_head_dim - m.rope_head_dim);

  /// Queries of all heads and one key, each rotated in its first part: names of the function, views of the products among them.
  struct Rows {
    Tensor query, key;
    std::vector<Tensor> of_query, of_key;
  };
  Rows rows(const Tensor& latent, const Tensor& x) const {
    Rows out;
    out.query = linear(g, latent, w.index_q, -1, T, {B, S, heads * width}, "indexer.q");
    out.query.shape = {B, S, heads, width};
    out.of_query = split(g, out.query, {{B, S, heads, rope}, {B, S, heads, rest}});
    {
      Tensor product = linear(g, x, w.index_k, -1, T, {B, S, width}, "indexer.k");
      out.key = run_norm(g, NormCode::layer, product, w.index_k_norm, "indexer.k_norm");
    }
    out.key.shape = {B, S, Dim(1), width};
    out.of_key = split(g, out.key, {{B, S, Dim(1), rope}, {B, S, Dim(1), rest}});
    RotaryCode rotary = code.rotary;
    if (code.indexer_by_half) rotary.form = RotaryForm::half;
    Rotated rotated = apply_rotary(g, rotary, context, out.of_query[0], out.of_key[0]);
    out.of_query[0] = std::move(rotated.query);
    out.of_key[0] = std::move(rotated.key);
    Tensor joined = cat(g, out.of_query, {B, S, heads, width}, "indexer.q_joined");
    out.query = std::move(joined);
    joined = cat(g, out.of_key, {B, S, width}, "indexer.k_joined");
    out.key = std::move(joined);
    return out;
  }

  /// relu(q.float() @ k.float() * number) of every head. The key is one matrix for all tokens of a sequence; of several
  /// sequences matmul makes a copy for each token.
  Tensor scores(const Rows& r) const {
    const Shape all{B, S, heads, S};
    Tensor out;
    {
      Tensor product;
      {
        Tensor query = to(g, r.query, DType::fp32, "indexer.q_fp32"), key = to(g, r.key, DType::fp32, "indexer.k_fp32");
        Tensor of_tokens = options.several_sequences ? g.make("indexer.k_of_tokens", {B, S, width, S}, DType::fp32) : Tensor();
        product = g.make("indexer.product", all, DType::fp32);
      }
      out = scale(g, std::move(product), "indexer.scaled");
    }
    Tensor next = relu(g, out, "indexer.scores");
    out = std::move(next);
    return out;
  }

  Tensor weights(const Tensor& x) const {
    Tensor product = linear(g, x, w.index_weights, -1, T, {B, S, heads}, "indexer.weights_product");
    Tensor wide = to(g, std::move(product), DType::fp32, "indexer.weights_fp32");
    return scale(g, std::move(wide), "indexer.weights");
  }

  Tensor best(const Tensor& by_head, const Tensor& shares) const {
    (void)by_head;
    (void)shares;
    Tensor total = g.make("indexer.total", {B, S, S}, DType::fp32);
    {
      Tensor outside = context.mask.dtype == DType::boolean ? g.make("indexer.outside", {B, S, S}, DType::boolean) : Tensor();
      Tensor causal = g.make("indexer.causal", {B, S, S}, DType::fp32);
      total = std::move(causal);
    }
    const Dim chosen = options.indexes_all ? S : Dim(m.index_top);
    TopK found = topk(g, total, {B, S, chosen}, "indexer.top");
    return g.make("indexer.chosen", {B, S, chosen}, DType::int32);
  }
};

}  // namespace

Tensor choose_keys(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const KernelOptions& options,
                   const LayerContext& context, const Tensor& latent, const Tensor& x) {
  const bool grad = std::exchange(g.grad_enabled, false);
  const Indexer indexer{.g = g, .code = code, .m = m, .w = w, .options = options, .context = context};
  Tensor out;
  {
    const Indexer::Rows rows = indexer.rows(latent, x);
    const Tensor scores = indexer.scores(rows);
    const Tensor weights = indexer.weights(x);
    out = indexer.best(scores, weights);
  }
  g.grad_enabled = grad;
  return out;
}

Tensor mask_of_chosen(Eager& g, const Tensor& mask, const Tensor& chosen, Tensor& hidden) {
  {
    Tensor ones = g.make("indexer.ones", {B, S, S}, DType::boolean);
    Tensor places = g.make("indexer.places", chosen.shape, DType::int64);
    hidden = g.make("indexer.hidden", {B, S, S}, DType::boolean);
  }
  Tensor shown = mask.dtype == DType::boolean ? g.make("indexer.shown", mask.shape, DType::boolean) : Tensor();
  return g.make("indexer.mask", mask.shape, mask.dtype);
}

std::string unsupported_indexer(const KernelOptions& options) {
  if (options.kernels == Kernels::hf_flash) return "flash-attention beside an indexer";
  if (options.autocast || options.padding_mask) return "autocast or a padding mask beside an indexer";
  if (options.adapters.rank > 0 && !options.adapters.by_module && options.adapters.targets.empty())
    return "LoRA of an indexer's matrices";
  return {};
}

}  // namespace oomplan
