// TransformerLayer of Megatron-core: self-attention and feed-forward with their residual sums.
#include "layers/megatron.hpp"
#include "layers/megatron_local.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// The sum behind a half of the layer. `bias`: none where the half has none.
struct BehindHalf {
  bool drops = false, fused = true;
  Tensor bias;
};

/// One kernel for bias, dropout and sum, which keeps a mask where what it drops wants a gradient.
Tensor fused_bias_dropout_add(Eager& g, const Tensor& x, const Tensor& residual, const BehindHalf& how, const std::string& name) {
  if (!how.drops) return add(g, residual, x, name);
  Tensor sum = g.make(name, residual.shape, residual.dtype);
  const Tensor mask = g.make(name + ".mask", x.shape, DType::boolean);
  Saved saved = g.will_record({&x, &how.bias}) ? g.save(mask) : Saved();
  g.record(sum, "BiasDropoutAdd", {&x, &residual, &how.bias}, [&g, saved](Gradients in) {
    (void)saved.get();
    return Gradients{gradient(g, "dropout_backward", in[0].shape, in[0].dtype), in[0], Tensor()};
  });
  return sum;
}

/// The same as three operators. What the bias makes is a name until the function returns.
Tensor plain_bias_dropout_add(Eager& g, const Tensor& x, const Tensor& residual, const BehindHalf& how, const std::string& name) {
  Tensor biased = x;
  if (how.bias) {
    biased = g.make(name + ".biased", x.shape, x.dtype);
    g.record(biased, "AddBackward0", {&x, &how.bias}, [](Gradients in) { return Gradients{in[0], Tensor()}; });
  }
  return add(g, residual, how.drops ? dropout(g, biased, name + ".dropped") : biased, name);
}

/// bias_dropout_add in training mode: the module's output comes in a tuple that the caller holds. It runs with gradients enabled
/// (bias_dropout_add_exec_handler), inside of a checkpoint's forward pass too: there a bias has it keep a mask, as long as what
/// it gave is a name.
Tensor bias_dropout_add(Eager& g, const Tensor& x, const Tensor& residual, const BehindHalf& how, const ChunkOptions& o,
                        const std::string& name) {
  const bool graph = g.grad_enabled;
  g.grad_enabled = !o.forward_only;
  Tensor sum = how.fused ? fused_bias_dropout_add(g, x, residual, how, name) : plain_bias_dropout_add(g, x, residual, how, name);
  g.grad_enabled = graph;
  return sum;
}

/// One kernel: fused with the bias, if there is one, or a function that is a kernel by itself.
Tensor fused_activation(Eager& g, const Tensor& inner, std::int64_t width) {
  Tensor active = g.make("activation", with_last(inner.shape, Dim(width)), inner.dtype);
  if (!g.will_record({&inner})) return active;
  Saved saved = g.save(inner);
  g.record(active, "BiasActivation", {&inner}, [&g, saved](Gradients) {
    return Gradients{gradient(g, "activation_backward", saved.get().shape, saved.get().dtype)};
  });
  return active;
}

/// TELayerNormColumnParallelLinear, with an adapter beside it where the rest is frozen; of Megatron's own modules the product
/// alone.
Tensor norm_column(Eager& g, const Tensor& x, NormKind kind, std::int64_t columns, const ChunkOptions& o,
                   const std::string& name) {
  if (is_local(o)) return local_column_linear(g, x, columns, o.te, name);
  if (o.adapters) return adapted_norm_column(g, x, kind, columns, o.te, o.adapters, name);
  return te_norm_column_linear(g, x, kind, columns, o.te, name);
}
/// TERowParallelLinear, likewise. `kept`: what made the input keeps it for backward.
Tensor row_parallel(Eager& g, const Tensor& x, std::int64_t columns, bool kept, const ChunkOptions& o, const std::string& name) {
  if (is_local(o)) return local_row_linear(g, x, columns, o.te, name);
  if (o.adapters) return adapted_row(g, x, columns, o.te, o.adapters, name);
  return te_row_linear(g, x, columns, o.te, name, kept && keeps_shared_input(o.te));
}

/// num_query_groups below the ranks: each gathers the projection and takes its part of a group out of it.
bool shares_groups(const Mixer& m, const ChunkOptions& o) { return m.output_gate && m.kv_heads < o.te.tensor; }

struct Heads {
  Tensor query, key, value, gate;
};

/// Views whose gradients are views of one block too: Transformer Engine's SplitAlongDim hands that on.
std::vector<Tensor> split_joint(Eager& g, const Tensor& x, const std::vector<Shape>& shapes) {
  std::vector<Tensor> out;
  for (const Shape& shape : shapes) out.push_back(x.alias(shape));
  Tensor all = x.alias(x.shape);
  const auto backward = [whole = x.shape](Gradients in) { return Gradients{in[0].alias(whole)}; };
  if (!g.record(all, "SplitAlongDim", {&x}, backward, shapes.size())) return out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].grad_fn = all.grad_fn;
    out[i].output = i;
  }
  return out;
}

/// One head in a group: the slice of the projection is cut as the heads are. One group: its heads lie one behind another. Of
/// Megatron's own modules the product of scores copies such a view of several sequences, which no axis of both goes through; that
/// is counted here.
bool query_is_view(const Mixer& m, const ChunkOptions& o) {
  if (m.heads == m.kv_heads) return true;
  const bool copied = is_local(o) && o.te.several_sequences && m.rotary_dim == 0;
  return m.kv_heads <= o.te.tensor && !copied;
}

/// SelfAttention.get_query_key_value_tensors: views of the fused projection, of which the query is copied into a block of its
/// own where no view has its shape.
Heads project(Eager& g, const Layer& layer, const ChunkOptions& o, const Tensor& x, bool joint) {
  const Mixer& m = layer.mixer;
  const std::int64_t heads = m.heads / o.te.tensor, groups = std::max<std::int64_t>(1, m.kv_heads / o.te.tensor);
  const Dim tokens = o.te.whole();
  const bool shares = shares_groups(m, o);
  const std::int64_t gates = m.output_gate ? 2 : 1, of_groups = shares ? m.heads / m.kv_heads : heads;
  const std::int64_t all = (gates * m.heads + 2 * m.kv_heads) * m.head_dim;
  const std::int64_t columns = shares ? all / o.te.tensor : (gates * heads + 2 * groups) * m.head_dim;
  Tensor mixed = norm_column(g, x, layer.norm, columns, o, "linear_qkv");
  if (shares) {
    const Tensor whole = gathered_projection(g, mixed, Dim(all), "linear_qkv.gathered");
    mixed = slice(g, whole, with_last(whole.shape, Dim((gates * of_groups + 2) * m.head_dim)));
  }
  std::vector<Shape> shapes{{tokens, B, Dim(of_groups), Dim(m.head_dim)},
                            {tokens, B, Dim(groups), Dim(m.head_dim)},
                            {tokens, B, Dim(groups), Dim(m.head_dim)}};
  if (m.output_gate) shapes.push_back(shapes.front());
  std::vector<Tensor> parts = joint ? split_joint(g, mixed, shapes) : split(g, mixed, shapes);
  if (shares)
    for (const std::size_t i : {std::size_t{0}, std::size_t{3}})
      parts[i] = slice(g, parts[i], {tokens, B, Dim(heads), Dim(m.head_dim)});
  Heads out;
  out.query = query_is_view(m, o) ? std::move(parts[0]) : te_contiguous(g, parts[0], "q");
  out.key = std::move(parts[1]);
  out.value = std::move(parts[2]);
  if (m.qk_norm == QkNorm::head) {
    if (query_is_view(m, o)) out.query = te_contiguous(g, out.query, "q");  // every norm's kernel asks for it
    Tensor normed = te_norm(g, out.query, layer.norm, "q_layernorm");
    out.query = std::move(normed);
    Tensor block = te_contiguous(g, out.key, "k");
    out.key = te_norm(g, block, layer.norm, "k_layernorm");
  }
  if (m.qk_norm == QkNorm::full) {
    Tensor normed = norm_of_all_heads(g, o, layer.norm, out.query, query_is_view(m, o), "q_norm");
    out.query = std::move(normed);
    out.key = norm_of_all_heads(g, o, layer.norm, out.key, true, "k_norm");
  }
  if (m.output_gate) out.gate = query_is_view(m, o) ? std::move(parts[3]) : te_contiguous(g, parts[3], "gate");
  return out;
}

/// _apply_output_gate: one kernel of torch.compile, which keeps what it reads. A gate that is a view is made contiguous in it.
Tensor gated(Eager& g, const Tensor& x, const Tensor& gate) {
  Tensor out = g.make("gated_attention", x.shape, x.dtype);
  if (!g.will_record({&x, &gate})) return out;
  Saved saved = g.save(x), saved_gate = g.save(gate);
  g.record(out, "OutputGate", {&x, &gate}, [&g, saved, saved_gate](Gradients) {
    Tensor of_x = gradient(g, "gated_attention_backward", saved.get().shape, saved.get().dtype);
    return Gradients{std::move(of_x), gradient(g, "gate_backward", saved_gate.get().shape, saved_gate.get().dtype)};
  });
  return out;
}

/// Attention.forward: its caller's tuple and its names hold queries, keys and values until it returns.
Tensor attention(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x,
                 const Tensor& mask) {
  const Mixer& m = layer.mixer;
  const bool key_view = m.rotary_dim == 0 && m.qk_norm == QkNorm::none;
  const bool joint =
      key_view && m.heads == m.kv_heads && o.te.attention == TeAttention::fused && o.te.context == 1 && !is_local(o);
  const AttentionViews views{key_view, true, joint, key_view && query_is_view(m, o)};
  Heads projected = project(g, layer, o, x, joint);
  Heads placed = projected;
  if (m.rotary_dim > 0) {
    const auto rotary = [&](const Tensor& part, const std::string& name) {
      if (o.settings.rotary_fusion) return te_rotary(g, part, name);
      if (o.patched && !o.own_attention)
        return packed_rotary(g, part, Dim(m.rotary_dim), layer.norm_place == NormPlace::pre_and_post, name);
      const bool by_sequence = (o.own_attention || embeds_before_tower(a, o)) && (o.te.several_sequences || o.te.rows > 0);
      return o.rotary_in_fp32 ? megatron_rotary_in_fp32(g, part, Dim(m.rotary_dim), name, by_sequence)
                              : megatron_rotary(g, part, Dim(m.rotary_dim), false, name, by_sequence);
    };
    placed.query = rotary(projected.query, "q_rotary");
    if (o.own_attention) projected.query.reset();
    placed.key = rotary(projected.key, "k_rotary");
    if (o.own_attention) projected.key.reset();
  } else {
    placed.query = projected.query;
  }
  Tensor out = run_megatron_core(g, placed.query, placed.key, placed.value, views, o, mask);
  if (m.output_gate) {
    Tensor open = gated(g, out, projected.gate);
    out = std::move(open);
  }
  Tensor flat = out.alias({out.shape[0], B, out.shape[2] * out.shape[3]});
  flat.grad_fn = out.grad_fn;
  return row_parallel(g, flat, a.hidden, true, o, "linear_proj");
}

/// MLP.forward: the first product is a name until the second one takes the activation.
Tensor mlp(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const FeedForward& f = layer.feed_forward;
  const std::int64_t width = f.width / o.te.tensor;
  const bool gated = f.kind == FeedForwardKind::gated;
  Tensor inner = norm_column(g, x, layer.norm, gated ? 2 * width : width, o, "linear_fc1");
  const bool fused = fuses_activation(f, o);
  if (f.bias && !fused) {
    Tensor biased = megatron_with_bias(g, inner, "linear_fc1.biased");
    inner = std::move(biased);
  }
  Tensor active =
      gated && !fused ? unfused_glu(g, inner, width, adds_offset(o.settings), "activation") : fused_activation(g, inner, width);
  inner = std::move(active);
  return row_parallel(g, inner, a.hidden, false, o, "linear_fc2");
}

}  // namespace

Tensor gathered_projection(Eager& g, const Tensor& part, Dim columns, const std::string& name) {
  const Shape whole = with_last(part.shape, columns);
  const Tensor stacked = g.make(name + ".stacked", whole, part.dtype, Category::communication);
  Tensor out = g.make(name, whole, part.dtype);
  g.record(out, "AllGatherFromTensorParallelRegion", {&part}, [&g, whole, name, of_part = part.shape](Gradients in) {
    const Tensor stacked_again = gradient(g, (name + "_backward.stacked").c_str(), whole, in[0].dtype);
    return Gradients{gradient(g, (name + "_backward").c_str(), of_part, in[0].dtype)};
  });
  return out;
}

bool adds_offset(const Megatron& m) { return m.core_release != CoreRelease::v0_12; }

Tensor unfused_glu(Eager& g, const Tensor& x, std::int64_t width, bool offset, const std::string& name) {
  const Shape half = with_last(x.shape, Dim(width));
  const std::vector<Tensor> parts = split(g, x, {half, half});
  Tensor gate = activation(g, parts[0], name + ".gate");
  Tensor linear = offset ? add_scalar(g, parts[1], name + ".offset") : parts[1];
  return mul(g, std::move(gate), std::move(linear), name);
}

Tensor megatron_with_bias(Eager& g, const Tensor& x, const std::string& name) {
  Tensor y = g.make(name, x.shape, x.dtype);
  g.record(y, "AddBackward0", {&x}, [](Gradients in) { return in; });
  return y;
}

Tensor run_megatron_core(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value, AttentionViews views,
                         const ChunkOptions& o, const Tensor& mask) {
  if (scores_itself(o)) return run_local_core(g, {query, key, value}, o, mask);
  const auto attend = [&g, views, te = o.te](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{te_attention(g, in[0], in[1], in[2], views, te)};
  };
  return recomputes(o, "core_attn") ? checkpoint_several(g, {query, key, value}, attend) : attend({query, key, value})[0];
}

Tensor run_megatron_layer(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x,
                          const Tensor& mask) {
  if (o.gemma) return run_megatron_gemma_layer(g, a, layer, o, x);
  const bool moe = layer.feed_forward.kind == FeedForwardKind::moe;
  const auto behind = [&](bool bias) {
    const Tensor of_half = !bias        ? Tensor()
                           : o.adapters ? g.scalar(DType::bf16)
                                        : te_weight(g);  // a frozen one asks for no gradient
    return BehindHalf{a.hidden_dropout > 0, o.settings.bias_dropout_fusion, of_half};
  };
  const bool norms_behind = layer.norm_place == NormPlace::pre_and_post;  // slime's GLM-4 (docker/patch/latest/megatron.patch)
  const auto attend = [&](const Tensor& in) { return attention(g, a, layer, o, in, mask); };
  const auto dense = [&](const Tensor& in) {
    const auto body = [&](const Tensor& inner) { return mlp(g, a, layer, o, inner); };
    return recomputes(o, "mlp") ? g.checkpoint_reentrant(in, body) : body(in);
  };
  Tensor hidden;
  {
    const MixerKind kind = layer.mixer.kind;
    const Tensor out = kind == MixerKind::mla ? run_megatron_mla(g, a, layer, o, x)
                       : kind == MixerKind::gated_delta
                           ? (o.of_slime ? run_slime_delta(g, a, layer, o, x) : run_megatron_delta(g, a, layer, o, x))
                       : is_local(o) ? behind_norm(g, layer.norm, o, x, "input_layernorm", attend)
                                     : attend(x);
    const Tensor normed = norms_behind ? te_norm(g, out, layer.norm, "post_self_attn_layernorm") : out;
    hidden = bias_dropout_add(g, normed, x, behind(layer.mixer.out_bias), o, "self_attn_bda");
  }
  const Tensor out = moe           ? run_megatron_moe(g, a, layer, o, hidden)
                     : is_local(o) ? behind_norm(g, layer.norm, o, hidden, "pre_mlp_layernorm", dense)
                                   : dense(hidden);
  const Tensor normed = norms_behind ? te_norm(g, out, layer.norm, "post_mlp_layernorm") : out;
  return bias_dropout_add(g, normed, hidden, behind(!moe && layer.feed_forward.bias), o, "mlp_bda");
}

}  // namespace oomplan
