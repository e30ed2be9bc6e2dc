// Gemma 4's layers as Megatron-Bridge makes them and Relax runs them.
//
// Read at NVIDIA-NeMo/Megatron-Bridge af17edf52 (src/megatron/bridge/models/gemma/modeling_gemma4.py:
// Gemma4DenseTransformerLayer, Gemma4TransformerLayer) with redai-studio/Relax docker/patch/megatron/20260728-0e6ac576f.patch,
// and Relax's relax/models/gemma4/attention.py (b71db72d). Dense ones have Megatron-core's own products; beside experts they are
// Transformer Engine's, and so are some norms. The others are PyTorch's operators one by one. Legend as in te.hpp.
#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "layers/kernels.hpp"
#include "layers/megatron.hpp"
#include "layers/megatron_local.hpp"
#include "layers/megatron_moe.hpp"
#include "layers/norms.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// A parameter whose gradient goes once it has been added up.
int vector_of(Eager& g, const std::string& name, std::int64_t width) {
  const int leaf = g.parameter(name, {Dim(width)}, DType::bf16);
  g.leaves[static_cast<std::size_t>(leaf)].accumulate = te_weight(g).grad_fn;
  return leaf;
}

/// _gemma4_rms_norm: two copies in fp32, of which one is squared. `width` 0: without a weight.
Tensor norm_by_power(Eager& g, const Tensor& x, std::int64_t width, const std::string& name) {
  Tensor normed;
  {
    const Tensor wide = to(g, x, DType::fp32, name + ".fp32");
    Tensor again = to(g, x, DType::fp32, name + ".squared_fp32");
    Tensor squares = pow2(g, std::move(again));
    Tensor mean = mean_last(g, std::move(squares));
    Tensor shifted = add_scalar(g, std::move(mean), name + ".variance");
    Tensor root = power(g, std::move(shifted), name + ".rstd");
    normed = mul(g, wide, std::move(root), name + ".normed_fp32");
  }
  if (width > 0) {
    Tensor weight = to(g, g.leaf(vector_of(g, name + ".weight", width)), DType::fp32, name + ".weight_fp32");
    Tensor weighted = mul(g, normed, std::move(weight), name + ".weighted");
    normed = std::move(weighted);
  }
  return to(g, normed, x.dtype, name);
}

/// Gemma4SelfAttention: v / sqrt(mean(v^2) + eps).
Tensor norm_by_division(Eager& g, const Tensor& x, const std::string& name) {
  const Tensor wide = to(g, x, DType::fp32, name + ".fp32");
  Tensor mean = mean_last(g, pow2(g, wide));
  Tensor shifted = add_scalar(g, std::move(mean), name + ".variance");
  const Tensor root = power(g, std::move(shifted), name + ".root");
  Tensor normed = div(g, wide, root, name + ".normed_fp32");
  return to(g, std::move(normed), x.dtype, name);
}

bool has_experts(const Layer& layer) { return layer.feed_forward.kind == FeedForwardKind::moe; }

/// Transformer Engine's norms ask for blocks of their own.
Tensor norm_of_block(Eager& g, const Tensor& x, NormKind kind, bool view, const std::string& name) {
  return te_norm(g, view ? te_contiguous(g, x, name + ".contiguous") : x, kind, name);
}

struct Heads {
  Tensor query, key, value;
};

/// get_query_key_value_tensors of Gemma4DenseSelfAttention and Gemma4SelfAttention. Values are normed views of the projection, or
/// of the keys in it (attention_k_eq_v); the names of what was split hold the projection until all three are there.
Heads project(Eager& g, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const Mixer& m = layer.mixer;
  const bool of_te = has_experts(layer);
  const std::int64_t ranks = o.te.tensor, all = (m.heads + 2 * m.kv_heads) * m.head_dim;
  const bool shares = m.kv_heads < ranks;
  const std::int64_t groups = shares ? 1 : m.kv_heads / ranks, heads = m.heads / ranks,
                     of_groups = shares ? m.heads / m.kv_heads : heads;
  const Dim tokens = o.te.whole();
  Tensor mixed = of_te ? te_norm_column_linear(g, x, layer.norm, all / ranks, o.te, "linear_qkv")
                       : local_column_linear(g, x, all / ranks, o.te, "linear_qkv");
  if (shares) {
    const Tensor whole = gathered_projection(g, mixed, Dim(all), "linear_qkv.gathered");
    mixed = slice(g, whole, with_last(whole.shape, Dim((of_groups + 2) * m.head_dim)));
  }
  const Shape of_key{tokens, B, Dim(groups), Dim(m.head_dim)};
  std::vector<Tensor> parts = split(g, mixed, {{tokens, B, Dim(of_groups), Dim(m.head_dim)}, of_key, of_key});
  mixed.reset();
  Heads out;
  out.query = groups == 1 ? parts[0] : te_contiguous(g, parts[0], "q");
  if (shares) out.query = slice(g, out.query, {tokens, B, Dim(heads), Dim(m.head_dim)});
  const auto normed = [&](const Tensor& part, bool view, const char* name) {
    return of_te ? norm_of_block(g, part, layer.norm, view, name) : norm_by_power(g, part, m.head_dim, name);
  };
  Tensor query = normed(out.query, groups == 1, "q_layernorm");
  out.query = std::move(query);
  out.key = normed(parts[1], true, "k_layernorm");
  const Tensor& value = m.key_is_value ? parts[1] : parts[2];
  out.value = of_te ? norm_by_division(g, value, "v_norm") : run_norm(g, NormCode::rms_by_power, value, {}, "v_norm");
  return out;
}

/// [S, B, heads, k] as the kernels have it.
Tensor by_head(const Tensor& x, Dim tokens) {
  Tensor out = x.alias({B, x.shape[2], tokens, x.shape[3]});
  out.grad_fn = x.grad_fn;
  out.output = x.output;
  return out;
}

/// out[s:e] = part, of a tensor that was empty (torch/csrc/autograd/functions/tensor.cpp, 2.13: CopySlices).
Tensor with_rows(Eager& g, const Tensor& out, const Tensor& part, bool first) {
  Tensor next = out.alias(out.shape);
  const auto backward = [&g, whole = out.shape, of_part = part.shape, first](Gradients in) {
    Tensor all = gradient(g, "attention_backward.whole", whole, in[0].dtype);
    Tensor own = gradient(g, "attention_backward.rows", of_part, in[0].dtype);
    if (first) return Gradients{Tensor(), std::move(own)};
    const Tensor zeros = gradient(g, "attention_backward.zeros", of_part, in[0].dtype);
    return Gradients{std::move(all), std::move(own)};
  };
  g.record(next, "CopySlices", {&out, &part}, backward);
  return next;
}

/// _thd_sdpa_per_subseq: PyTorch's math function of each sequence by itself.
Tensor one_by_one(Eager& g, const Heads& in, const ChunkOptions& o) {
  const Shape& q = in.query.shape;
  const Dim columns = q[2] * q[3];
  KernelOptions how;
  how.kernels = Kernels::hf_sdpa;
  how.sdpa_math = true;
  how.kernel_internals = o.kernel_internals;
  Tensor out = g.make("attention.out", {q[0], B, columns}, in.query.dtype);
  Tensor last;  // a name until the next one is there
  for (std::size_t i = 0; i < o.lengths.size(); ++i) {
    const Dim tokens = o.lengths.size() == 1 ? q[0] : Dim(o.lengths[i]);
    const auto rows = [&](const Tensor& x) { return slice(g, x, {tokens, B, x.shape[2], x.shape[3]}); };
    const Tensor queries = rows(in.query), keys = rows(in.key), values = rows(in.value);
    Attention of;
    of.query = by_head(queries, tokens);
    of.key = by_head(keys, tokens);
    of.value = by_head(values, tokens);
    of.out_shape = {tokens, B, columns};
    of.asks_for_groups = true;
    const Tensor part = attend(g, of, how).output;
    last = g.make("attention.of_sequence", {B, q[2], tokens, q[3]}, in.query.dtype, Category::temporaries);
    Tensor next = with_rows(g, out, part, i == 0);
    out = std::move(next);
  }
  return out;
}

/// _thd_flash: flash_attn_varlen_func of all sequences.
Tensor by_flash(Eager& g, const Heads& in, const ChunkOptions& o) {
  const Shape& q = in.query.shape;
  KernelOptions how;
  how.kernels = Kernels::hf_flash;
  how.kernel_internals = o.kernel_internals;
  Attention of;
  of.query = by_head(in.query, q[0]);
  of.key = by_head(in.key, q[0]);
  of.value = by_head(in.value, q[0]);
  of.out_shape = {q[0], B, q[2], q[3]};
  const Tensor out = attend(g, of, how).output;
  Tensor flat = out.alias({q[0], B, q[2] * q[3]});
  flat.grad_fn = out.grad_fn;
  return flat;
}

/// Attention.forward: its caller's tuple and its names hold queries, keys and values until it returns.
Tensor attention(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const Mixer& m = layer.mixer;
  const Heads projected = project(g, layer, o, x);
  Heads placed = projected;
  placed.query = packed_rotary(g, projected.query, Dim(m.head_dim), false, "q_rotary");
  placed.key = packed_rotary(g, projected.key, Dim(m.head_dim), false, "k_rotary");
  const Tensor out = m.head_dim > kWidestFlash ? one_by_one(g, placed, o) : by_flash(g, placed, o);
  if (!has_experts(layer)) return local_row_linear(g, out, a.hidden, o.te, "linear_proj");
  const Tensor projected_back = te_row_linear(g, out, a.hidden, o.te, "linear_proj");  // TERowParallelLinearLayerNorm
  return te_norm(g, projected_back, layer.norm, "linear_proj.post_layernorm");
}

Tensor mlp(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const std::int64_t width = layer.feed_forward.width / o.te.tensor;
  Tensor inner = local_column_linear(g, x, 2 * width, o.te, "linear_fc1");
  Tensor active = unfused_glu(g, inner, width, true, "activation");
  inner = std::move(active);
  return local_row_linear(g, inner, a.hidden, o.te, "linear_fc2");
}

/// bias_dropout_add without either of both: one kernel, which runs with gradients enabled inside of a checkpoint, too.
Tensor sum_of(Eager& g, const Tensor& x, const Tensor& residual, const ChunkOptions& o, const char* name) {
  const bool graph = g.grad_enabled;
  g.grad_enabled = !o.forward_only;
  Tensor out = add(g, residual, x, name);
  g.grad_enabled = graph;
  return out;
}

/// Gemma4TopKRouter: scaled states choose, and what was chosen is divided by its sum and scaled by the expert.
Tensor route(Eager& g, const Architecture& a, const FeedForward& f, const ChunkOptions& o, const RoutedSizes& s,
             const Tensor& x) {
  Tensor input = norm_by_power(g, x, 0, "router.norm");
  Tensor scaled = mul(g, input, g.leaf(vector_of(g, "router.scale", a.hidden)), "router.scaled");
  input = scale(g, std::move(scaled), "router.input");
  Tensor probabilities = route_megatron(g, f, o, s, input);
  Tensor total = sum(g, probabilities, {s.tokens, Dim(1)}, "router.total");
  const Tensor least = clamp(g, total, 1, "router.total_clamped");
  Tensor divided = div(g, probabilities, least, "router.divided");
  probabilities = std::move(divided);
  Tensor factors = g.leaf(vector_of(g, "router.per_expert_scale", s.experts));
  return mul(g, std::move(probabilities), std::move(factors), "router.weighted");
}

/// Gemma4MoELayer.forward_with_separate_inputs: its three inputs are names until it returns.
Tensor experts(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  const FeedForward f = bridged_experts(layer.feed_forward);
  const RoutedSizes s = routed_sizes(a, f, o);
  const Tensor expert_input = norm_by_power(g, x, a.hidden, "pre_mlp_layernorm");
  const Tensor shared_input = norm_by_power(g, x, a.hidden, "pre_shared_expert_layernorm");
  const Tensor shared = run_shared_experts(g, a, f, o, shared_input);
  Tensor probabilities = route(g, a, f, o, s, x);
  const auto routed = [&](const RoutedRows& rows) { return run_megatron_experts(g, rows, s, o); };
  Tensor out = dispatch_megatron(g, s, o, expert_input, std::move(probabilities), routed);
  Tensor behind = norm_by_power(g, out, a.hidden, "post_moe_layernorm");
  out = std::move(behind);
  const Tensor always = norm_by_power(g, shared, a.hidden, "post_shared_expert_layernorm");
  return add(g, out, always, "with_shared_experts");
}

/// Gemma4TransformerLayer.
Tensor layer_of_experts(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  Tensor hidden;
  {
    const Tensor out = attention(g, a, layer, o, x);
    hidden = sum_of(g, out, x, o, "self_attn_bda");
  }
  const Tensor out = experts(g, a, layer, o, hidden);
  const Tensor normed = norm_by_power(g, out, a.hidden, "post_ffn_layernorm");
  Tensor sum = add(g, hidden, normed, "layer_sum");
  return scale(g, std::move(sum), "layer_output");
}

}  // namespace

FeedForward bridged_experts(const FeedForward& f) {
  FeedForward out = f;
  out.shared_width = f.width;
  out.normalise_top_k = false;  // moe_router_pre_softmax
  return out;
}

Tensor run_megatron_gemma_layer(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  if (has_experts(layer)) return layer_of_experts(g, a, layer, o, x);
  Tensor hidden;
  {
    const Tensor normed = norm_by_power(g, x, a.hidden, "input_layernorm");
    Tensor out = attention(g, a, layer, o, normed);
    Tensor behind = norm_by_power(g, out, a.hidden, "post_self_attn_layernorm");
    out = std::move(behind);
    hidden = sum_of(g, out, x, o, "self_attn_bda");
  }
  {
    const Tensor normed = norm_by_power(g, hidden, a.hidden, "pre_mlp_layernorm");
    Tensor out = mlp(g, a, layer, o, normed);
    Tensor behind = norm_by_power(g, out, a.hidden, "post_mlp_layernorm");
    out = std::move(behind);
    Tensor sum = sum_of(g, out, hidden, o, "mlp_bda");
    hidden = std::move(sum);
  }
  return scale(g, hidden, "layer_output");  // layer_scalar, a buffer
}

std::string unsupported_gemma(const Architecture& a, const ChunkOptions& o) {
  const bool routed = std::ranges::any_of(a.runs, [](const LayerRun& r) { return has_experts(r.layer); });
  const bool inputs = std::ranges::any_of(a.runs, [](const LayerRun& r) { return r.layer.per_layer_input > 0; });
  const bool shared = std::ranges::any_of(a.runs, [](const LayerRun& r) { return r.layer.mixer.shared_kv; });
  const bool selective = o.recompute == Recompute::selective;
  const std::array<std::pair<bool, const char*>, 10> beside{
      {{!a.tower.kind.empty(), "its tower"},
       {routed &&
            (o.settings.dispatcher != TokenDispatcher::alltoall || o.settings.shared_expert_overlap || o.settings.sinkhorn ||
             o.settings.expert_capacity > 0 || o.settings.router_aux_loss || !o.settings.grouped_experts || o.expert_tensor > 1),
        "other settings of experts than Relax's own script has"},
       {inputs || shared, "embeddings of every layer or shared keys"},
       {o.packed == 0, "padded sequences"},
       {o.adapters.rank > 0, "adapters"},
       {o.te.fp8 != Fp8Recipe::none, "fp8"},
       {is_local(o) || o.settings.fsdp != MegatronFsdpStrategy::off, "transformer_impl local or Megatron-FSDP"},
       {selective, "selective recomputation"},
       {o.te.attention_dropout || a.hidden_dropout > 0, "dropout"}}};
  for (const auto& [is, what] : beside)
    if (is) return fmt::format("Gemma 4 by Megatron-Bridge with {}: not supported yet", what);
  if (routed && o.te.tensor > 1 && !o.te.sequence_parallel)
    return "Megatron itself asks for sequence parallelism where experts meet tensor parallelism";
  if (!o.first || !o.last) return "stages of Gemma 4 by Megatron-Bridge are not supported yet; it makes none of a dense one";
  if (o.te.context > 1) return "Relax itself refuses context parallelism of Gemma 4";
  return {};
}

}  // namespace oomplan
