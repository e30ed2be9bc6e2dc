// TransformerLayer of Megatron-core: self-attention and feed-forward with their residual sums.
#include "layers/megatron.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// bias_dropout_add in training mode, one fused kernel for bias and sum: the module's output comes in a tuple that the caller
/// holds.
Tensor bias_dropout_add(Eager& g, const Tensor& x, const Tensor& residual, bool drops, const std::string& name) {
  if (!drops) return add(g, residual, x, name);
  Tensor dropped = dropout(g, x, name + ".dropped");
  return add(g, residual, std::move(dropped), name);
}

struct Heads {
  Tensor query, key, value;
};

/// SelfAttention.get_query_key_value_tensors: views of the fused projection, of which the query is copied into a block of its
/// own.
Heads project(Eager& g, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const Mixer& m = layer.mixer;
  const std::int64_t heads = m.heads / o.te.tensor, groups = std::max<std::int64_t>(1, m.kv_heads / o.te.tensor);
  const Dim tokens = o.te.whole();
  Tensor mixed = te_norm_column_linear(g, x, layer.norm, (heads + 2 * groups) * m.head_dim, o.te, "linear_qkv");
  std::vector<Tensor> parts = split(g, mixed,
                                    {{tokens, B, Dim(heads), Dim(m.head_dim)},
                                     {tokens, B, Dim(groups), Dim(m.head_dim)},
                                     {tokens, B, Dim(groups), Dim(m.head_dim)}});
  Heads out;
  // one head in a group: the slice is cut as the heads are, and the query stays a view
  out.query = heads == groups ? std::move(parts[0]) : te_contiguous(g, parts[0], "q");
  out.key = std::move(parts[1]);
  out.value = std::move(parts[2]);
  if (m.qk_norm == QkNorm::head) {
    Tensor normed = te_norm(g, out.query, layer.norm, "q_layernorm");
    out.query = std::move(normed);
    Tensor block = te_contiguous(g, out.key, "k");
    out.key = te_norm(g, block, layer.norm, "k_layernorm");
  }
  return out;
}

/// Attention.forward: its caller's tuple and its names hold queries, keys and values until it returns.
Tensor attention(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const Mixer& m = layer.mixer;
  const Heads projected = project(g, layer, o, x);
  Heads placed = projected;
  if (m.rotary_dim > 0) {
    placed.query = te_rotary(g, projected.query, "q_rotary");
    placed.key = te_rotary(g, projected.key, "k_rotary");
  } else {
    if (m.heads != m.kv_heads) placed.query = projected.query;
    placed.key = te_contiguous(g, projected.key, "k_contiguous");
  }
  Tensor out = te_attention(g, placed.query, placed.key, placed.value, true, o.te);
  Tensor flat = out.alias({out.shape[0], B, out.shape[2] * out.shape[3]});
  flat.grad_fn = out.grad_fn;
  return te_row_linear(g, flat, a.hidden, o.te, "linear_proj");
}

/// MLP.forward: the first product is a name until the second one takes the activation.
Tensor mlp(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const FeedForward& f = layer.feed_forward;
  const std::int64_t width = f.width / o.te.tensor;
  const bool gated = f.kind == FeedForwardKind::gated;
  Tensor inner = te_norm_column_linear(g, x, layer.norm, gated ? 2 * width : width, o.te, "linear_fc1");
  {
    const Shape narrow = with_last(inner.shape, Dim(width));
    Tensor active = g.make("activation", narrow, inner.dtype);
    if (g.will_record({&inner})) {
      Saved saved = g.save(inner);
      g.record(active, "BiasActivation", {&inner}, [&g, saved](Gradients) {
        return Gradients{gradient(g, "activation_backward", saved.get().shape, saved.get().dtype)};
      });
    }
    inner = std::move(active);
  }
  return te_row_linear(g, inner, a.hidden, o.te, "linear_fc2");
}

}  // namespace

Tensor run_megatron_layer(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const bool drops = a.hidden_dropout > 0;
  Tensor hidden;
  {
    const bool latent = layer.mixer.kind == MixerKind::mla;
    const Tensor out = latent ? run_megatron_mla(g, a, layer, o, x) : attention(g, a, layer, o, x);
    hidden = bias_dropout_add(g, out, x, drops, "self_attn_bda");
  }
  const bool moe = layer.feed_forward.kind == FeedForwardKind::moe;
  const auto dense = [&](const Tensor& in) { return mlp(g, a, layer, o, in); };
  const Tensor out = moe                    ? run_megatron_moe(g, a, layer, o, hidden)
                     : recomputes(o, "mlp") ? g.checkpoint_reentrant(hidden, dense)
                                            : dense(hidden);
  return bias_dropout_add(g, out, hidden, drops, "mlp_bda");
}

}  // namespace oomplan
