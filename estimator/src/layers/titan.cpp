#include "layers/titan.hpp"

#include "layers/attention.hpp"
#include "layers/mlp.hpp"
#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/rotary.hpp"
#include "layers/tensor_parallel.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

bool rotates_pairs(const Architecture& a) { return a.family == "llama"; }

/// (x.float() * rsqrt(mean of squares + eps)).type_as(x) * weight.
Tensor norm_by_hand(Eager& g, const Tensor& x, int weight, const std::string& name) {
  Tensor output;
  {
    Tensor normed;
    {
      Tensor wide = to(g, x, DType::fp32, name + ".fp32");
      Tensor squares = pow2(g, wide);
      Tensor variance = mean_last(g, std::move(squares));
      Tensor shifted = add_scalar(g, std::move(variance), name + ".variance");
      Tensor root = rsqrt(g, std::move(shifted), name + ".rstd");
      normed = mul(g, wide, std::move(root), name + ".normed_fp32");
    }
    output = to(g, std::move(normed), x.dtype, name + ".normed");
  }
  return mul(g, output, g.leaf(weight), name + ".output");
}

/// x as complex numbers (two fp32 each) times the table, which is a buffer.
Tensor turned(Eager& g, const Tensor& wide, const std::string& name) {
  Tensor product = g.make(name, wide.shape, DType::fp32);
  const Dim sequence = wide.shape[2], width = wide.shape.back();
  g.record(product, "MulBackward0", {&wide}, [=, &g](Gradients in) {
    Tensor conjugate = g.make(name + ".table_conjugate", {Dim(1), sequence, width}, DType::fp32, Category::temporaries);
    return Gradients{g.make(name + "_backward", in[0].shape, DType::fp32, Category::temporaries)};
  });
  return product;
}

/// apply_rotary_emb of Llama: both products are there before the first is cast back.
Rotated turn_pairs(Eager& g, const Tensor& q, const Tensor& k) {
  Tensor wide_q = to(g, q, DType::fp32, "q_fp32"), wide_k = to(g, k, DType::fp32, "k_fp32");
  Tensor turned_q = turned(g, wide_q, "q_complex");
  Tensor turned_k = turned(g, wide_k, "k_complex");
  Rotated out;
  out.query = to(g, turned_q, q.dtype, "q_rotary");
  out.key = to(g, turned_k, k.dtype, "k_rotary");
  return out;
}

/// apply_rotary_emb of Qwen3: every layer casts its part of the fp32 table.
Rotated turn_halves(Eager& g, const Tensor& q, const Tensor& k) {
  const Shape table{Dim(1), q.shape[2], q.shape.back()};
  LayerContext context;
  context.cos = g.make("rotary.cos", table, q.dtype, Category::buffers);
  context.sin = g.make("rotary.sin", table, q.dtype, Category::buffers);
  return apply_rotary(g, RotaryCode{}, context, q, k);
}

Tensor attention(Eager& g, const Architecture& a, const Mixer& m, const LayerLeaves& w, const KernelOptions& options,
                 const Tensor& x) {
  const Dim tokens = x.shape[1], rows = B * tokens;
  const auto heads = [&](int weight, std::int64_t n, const char* name) {
    Tensor t = linear(g, x, weight, -1, rows, {B, tokens, Dim(n * m.head_dim)}, name);
    t.shape = {B, tokens, Dim(n), Dim(m.head_dim)};
    return t;
  };
  Tensor q = heads(w.q, m.heads, "q"), k = heads(w.k, m.kv_heads, "k"), v = heads(w.v, m.kv_heads, "v");
  if (m.qk_norm == QkNorm::head) {
    Tensor normed = titan_norm(g, q, w.q_norm, options, "q_norm");
    q = std::move(normed);
    normed = titan_norm(g, k, w.k_norm, options, "k_norm");
    k = std::move(normed);
  }
  for (auto* t : {&q, &k, &v}) std::swap(t->shape[1], t->shape[2]);
  {
    Rotated rotated = rotates_pairs(a) ? turn_pairs(g, q, k) : turn_halves(g, q, k);
    q = std::move(rotated.query);
    k = std::move(rotated.key);
  }
  if (options.repeat_kv) {
    const Shape all{B, Dim(m.heads), tokens, Dim(m.head_dim)};
    Tensor keys = repeat_kv(g, k, all, "k_repeated"), values = repeat_kv(g, v, all, "v_repeated");
    k = std::move(keys);
    v = std::move(values);
  }
  Attention in;
  in.query = std::move(q);
  in.key = std::move(k);
  in.value = std::move(v);
  in.out_shape = {B, tokens, Dim(m.heads), Dim(m.head_dim)};
  Tensor output = attend(g, in, options).output;
  output.shape = {B, tokens, Dim(m.out_width())};
  Tensor projected = linear(g, output, w.o, -1, rows, {B, tokens, Dim(a.hidden)}, "o");
  return reduce_tokens(g, std::move(projected), options, "o.reduced");
}

}  // namespace

std::string unsupported_titan(const Architecture& a, const KernelOptions& options) {
  if (a.family != "llama" && a.family != "qwen3") return "torchtitan's model of '" + a.family + "' is not supported yet";
  if (a.tied) return "torchtitan's models with tied embeddings are not supported yet";
  if (options.liger.any()) return "torchtitan's models with Liger's operators are not supported yet";
  if (options.ulysses > 1 && (!options.compile || options.tensor > 1))
    return "context parallelism of torchtitan without torch.compile, or beside tensor parallelism, is not supported yet";
  if (options.adapters.rank > 0 || options.autocast || options.padding_mask)
    return "LoRA, autocast and padding masks are not supported yet with torchtitan's models";
  for (const auto& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    if (m.q_bias || m.k_bias || m.v_bias || m.out_bias || run.layer.feed_forward.bias || m.rotary_dim != m.head_dim)
      return "a model with biases or partial rotary positions is none of torchtitan's";
  }
  return {};
}

Tensor titan_norm(Eager& g, const Tensor& x, const NormLeaf& leaf, const KernelOptions& options, const std::string& name) {
  const DistributedGuard dtensors(g, options.tensor > 1);
  return options.rms_norm == RmsNorm::fused ? fused_rms_norm(g, x, leaf.weight, name) : norm_by_hand(g, x, leaf.weight, name);
}

Tensor run_titan_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                       const Tensor& x) {
  const bool split = options.tensor > 1;
  const auto gathered = [&](const Tensor& normed, const char* name) {
    const DistributedGuard dtensors(g, split);
    return gather_tokens(g, normed, options, name);
  };
  Tensor half;
  {
    g.prefix += "attention.";
    Tensor normed = titan_norm(g, x, w.before_attention, options, "norm");
    {
      Tensor whole = gathered(normed, "gathered");
      const DistributedGuard dtensors(g, split && !rotates_pairs(a));  // Qwen3's projections stay DTensors
      half = attention(g, a, layer.mixer, w, options, whole);
    }
    g.prefix.resize(g.prefix.size() - 10);
  }
  Tensor hidden = add(g, x, std::move(half), "attention_residual");
  {
    g.prefix += "feed_forward.";
    Tensor normed = titan_norm(g, hidden, w.before_feed_forward, options, "norm");
    {
      Tensor whole = gathered(normed, "gathered");
      const GatedLeaves leaves{w.gate, -1, w.up, -1, -1, w.down, -1};
      half = gated_mlp(g, whole, {B, whole.shape[1]}, a.hidden, layer.feed_forward.width, leaves, "", options);
    }
    g.prefix.resize(g.prefix.size() - 13);
  }
  return add(g, hidden, std::move(half), "output");
}

Bytes titan_buffers(const Architecture& a, std::int64_t sequence_tokens, std::int64_t context) {
  const std::int64_t width = a.runs.front().layer.mixer.head_dim;
  // context_parallel cuts the table in place, which leaves its storage, and puts it back from a copy
  return (rotates_pairs(a) ? 4 : 8) * width * sequence_tokens * (context > 1 ? 2 : 1);
}

}  // namespace oomplan
