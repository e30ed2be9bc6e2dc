#include "layers/bloom.hpp"

#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// What one layer's functions share.
struct Bloom {
  Eager& g;
  const Mixer& m;
  const FeedForward& ff;
  const Dim hidden;
  const LayerLeaves& w;
  const KernelOptions& options;
  const LayerContext& context;

  Tensor norm(const Tensor& x, const NormLeaf& leaf, const char* name) const {
    return run_norm(g, NormCode::layer, x, leaf, name);
  }
  Tensor dropped(const Tensor& x) const { return options.hidden_dropout ? dropout(g, x, "dropped") : x; }

  /// alibi.baddbmm(query, key): the products of its gradients are scaled.
  Tensor scores(const Tensor& query, const Tensor& key) const {
    const bool recorded = g.will_record({&query, &key});
    Saved saved_query = recorded ? g.save(query) : Saved(), saved_key = recorded ? g.save(key) : Saved();
    Tensor out = g.make("attention.scores", {B, Dim(m.heads), S, S}, query.dtype);
    if (!recorded) return out;
    g.record(out, "BaddbmmBackward0", {&query, &key}, [saved_query, saved_key, &gg = g](Gradients in) {
      Gradients grads(2);
      for (std::size_t i = 0; i < 2; ++i) {
        const Tensor& of = i == 0 ? saved_query.get() : saved_key.get();
        Tensor bare = gradient(gg, "baddbmm_backward", of.shape, in[0].dtype);
        grads[i] = gradient(gg, "baddbmm_backward.scaled", of.shape, in[0].dtype);
      }
      return grads;
    });
    return out;
  }

  /// BloomAttention.forward
  Tensor attention(const Tensor& x, const Tensor& residual, Tensor& weights) const {
    const Shape by_head{B, Dim(m.heads), S, Dim(m.head_dim)};
    const Tensor fused = linear(g, x, w.qkv, w.qkv_bias, T, {B, S, Dim(3) * hidden}, "qkv");
    Tensor query = slice(g, fused, by_head), key = slice(g, fused, by_head), value = slice(g, fused, by_head);
    const auto flat = [&](Tensor& part, const char* name) {
      if (!options.several_sequences) return;  // batch and heads are one axis as they lie
      Tensor copied = copy(g, part, by_head, name);
      part = std::move(copied);
    };
    flat(query, "q");
    flat(key, "k");
    flat(value, "v");
    const Tensor bare = scores(query, key);
    Tensor masked = bare;
    if (context.mask) masked = add(g, bare, context.mask, "attention.masked");
    {
      Tensor wide = softmax(g, masked, DType::fp32, "attention.probabilities");
      weights = to(g, std::move(wide), query.dtype, "attention.weights");
    }
    if (options.attention_dropout) {
      Tensor kept = dropout(g, weights, "attention.dropped");
      weights = std::move(kept);
    }
    Tensor out = matmul(g, weights, value, by_head, "attention.out_heads");
    Tensor joined = copy(g, out, {B, S, Dim(m.heads), Dim(m.head_dim)}, "attention.out");
    out = view(std::move(joined), {B, S, hidden});
    Tensor projected = linear(g, out, w.o, w.o_bias, T, {B, S, hidden}, "o");
    {
      Tensor kept = dropped(projected);
      Tensor sum = add(g, residual, std::move(kept), "attention_residual");
      projected = std::move(sum);
    }
    return projected;
  }

  /// bloom_gelu_forward without gradients, and bloom_gelu_back: every step of the formulas is a tensor.
  Tensor gelu(const Tensor& x) const {
    const bool recorded = g.will_record({&x});
    Saved saved = recorded ? g.save(x) : Saved();
    const Shape shape = x.shape;
    const DType dtype = x.dtype;
    const auto step = [&gg = g, shape, dtype](const char* name) { return gradient(gg, name, shape, dtype); };
    Tensor out;
    {
      const Tensor half = step("gelu.half");
      Tensor inside = inner_tanh(step);
      Tensor one_more = step("gelu.tanh_plus_one");
      inside.reset();
      out = g.make("gelu", shape, dtype);
    }
    if (!recorded) return out;
    g.record(out, "GeLUFunctionBackward", {&x}, [saved, step](const Gradients&) {
      (void)saved.get();
      const Tensor tanh_out = inner_tanh(step);
      Tensor sum;
      {
        Tensor left = step("gelu.left");
        {
          Tensor squared = step("gelu.squared"), rest = step("gelu.rest");
          squared.reset();
          Tensor scaled = step("gelu.scaled"), square = step("gelu.square");
          scaled.reset();
          Tensor shifted = step("gelu.shifted");
          square.reset();
          Tensor product = step("gelu.product");
          shifted.reset();
          rest.reset();
          Tensor joined = step("gelu.joined");
          left = std::move(joined);
        }
        Tensor one_more = step("gelu.tanh_plus_one"), right = step("gelu.right");
        one_more.reset();
        sum = step("gelu.sum");
      }
      return Gradients{step("gelu_backward")};
    });
    return out;
  }
  /// tanh(0.79788456 * x * (1 + 0.044715 * x * x))
  template <class Step>
  static Tensor inner_tanh(const Step& step) {
    Tensor scaled = step("gelu.inner_scaled"), small = step("gelu.inner_small"), cube = step("gelu.inner_cube");
    small.reset();
    Tensor shifted = step("gelu.inner_shifted");
    cube.reset();
    Tensor product = step("gelu.inner");
    shifted.reset();
    scaled.reset();
    return step("gelu.tanh");
  }

  Tensor mlp(const Tensor& x, const Tensor& residual) const {
    Tensor states;
    {
      const Tensor wide = linear(g, x, w.up, w.up_bias, T, {B, S, Dim(ff.width)}, "mlp.fc1");
      states = gelu(wide);
    }
    const Tensor out = linear(g, states, w.down, w.down_bias, T, {B, S, hidden}, "mlp.fc2");
    Tensor kept = dropped(out);
    return add(g, residual, std::move(kept), "output");
  }
};

}  // namespace

Tensor run_bloom_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                       const LayerContext& context, const Tensor& x, Tensor& weights) {
  const Bloom bloom{g, layer.mixer, layer.feed_forward, a.hidden, w, options, context};
  Tensor normed = bloom.norm(x, w.before_attention, "input_layernorm");
  const Tensor attended = bloom.attention(normed, x, weights);
  Tensor next = bloom.norm(attended, w.before_feed_forward, "post_attention_layernorm");
  normed = std::move(next);
  return bloom.mlp(normed, attended);
}

Tensor make_alibi(Eager& g, std::int64_t heads, DType dtype, Tensor& slopes) {
  slopes = g.make("alibi.slopes", {Dim(heads)}, DType::fp32, Category::buffers);
  const Shape once{Dim(heads), Dim(1), S}, all{B, Dim(heads), S};
  Tensor alibi;
  {
    Tensor positions = g.make("alibi.positions", {S}, DType::int64, Category::buffers);
    alibi = g.make("alibi.distances", once, DType::fp32, Category::buffers);
  }
  Tensor repeated = g.make("alibi.repeated", all, DType::fp32, Category::buffers);
  return to(g, std::move(repeated), dtype, "alibi");
}

}  // namespace oomplan
