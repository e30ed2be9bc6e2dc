#include "layers/attention.hpp"

#include "layers/foak.hpp"
#include "layers/foak_lora.hpp"
#include "layers/key_cache.hpp"
#include "layers/liger.hpp"
#include "layers/mlp.hpp"
#include "layers/normed_attention.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/rotary.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/ulysses.hpp"

namespace oomplan {

using namespace ops;
using axis::B;

Tensor scale_query(Eager& g, const Tensor& query) {
  const Dim tokens = query.shape[2];
  Tensor factor;
  {
    Tensor wide = g.make("query_scale_fp32", {Dim(1), Dim(1), tokens, Dim(1)}, DType::fp32, Category::buffers);
    factor = to(g, std::move(wide), query.dtype, "query_scale");
  }
  return mul(g, query, std::move(factor), "query_scaled");
}

namespace {

/// What the projections give: [B, heads, S, d] each; `fused` is the name of the fused product, which the module keeps. S are
/// the tokens of the module's input: all of a sequence, also where the layer holds a part of them outside of its halves.
struct Projected {
  Tensor fused, query, key, value, gate;
  std::vector<Tensor> parts = {};  ///< of rotated heads
};

/// Qwen3-Next: q_proj gives a query and a gate for each head; the gate is copied to lie by token.
Tensor gated_query(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const Tensor& x, Tensor& gate) {
  const Dim tokens = x.shape[1];
  Tensor both = project(g, code, x, w.q, w.q_bias, {B, tokens, Dim(2 * m.q_width())}, "q");
  const Shape half{B, tokens, Dim(m.heads), Dim(m.head_dim)};
  std::vector<Tensor> parts = split(g, both, {half, half});
  gate = copy(g, parts[1], {B, tokens, Dim(m.q_width())}, "gate");
  return parts[0];
}

/// Falcon's one key or value: fused[..., [i], :], a copy. The index is saved.
Tensor one_head(Eager& g, const Mixer& m, const Tensor& fused, const std::string& name) {
  const Dim tokens = fused.shape[1];
  Tensor by_head = fused.alias({B, tokens, Dim(m.heads + 2), Dim(m.head_dim)});
  by_head.grad_fn = fused.grad_fn;
  Tensor index = g.make(name + ".index", {Dim(1)}, DType::int64);
  return index_rows(g, std::move(by_head), index, {B, tokens, Dim(1), Dim(m.head_dim)}, name);
}

/// Falcon of 40 billion: groups of queries with one key and one value each, which are indexed, broadcast and made flat: copies
/// for all heads.
void grouped_heads(Eager& g, const Mixer& m, Projected& out) {
  const Dim tokens = out.fused.shape[1], groups = m.kv_heads;
  const Shape one{B, tokens, groups, Dim(1), Dim(m.head_dim)}, all{B, tokens, Dim(m.heads), Dim(m.head_dim)};
  Tensor query = slice(g, out.fused, all);
  const auto indexed = [&](const std::string& name) {
    Tensor index = g.make(name + ".index", {Dim(1)}, DType::int64);
    return index_rows(g, out.fused, index, one, name);
  };
  Tensor key = indexed("k"), value = indexed("v");
  Tensor flat_query = copy(g, query, all, "q_flat");
  out.key = repeat_interleave(g, key, all, "k_flat");
  out.value = repeat_interleave(g, value, all, "v_flat");
  out.query = std::move(flat_query);
}

Projected project_fused(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const Tensor& x) {
  const Dim tokens = x.shape[1];
  Projected out;
  out.fused = project(g, code, x, w.qkv, w.qkv_bias, {B, tokens, Dim(m.q_width() + m.k_width() + m.v_width())}, "qkv");
  if (code.own == OwnCode::dbrx) {
    Tensor clipped = clamp(g, out.fused, 2, "qkv.clipped");
    out.fused = std::move(clipped);
  }
  if (code.fused_qkv == FusedQkv::split) {
    std::vector<Tensor> parts =
        split(g, out.fused, {{B, tokens, Dim(m.q_width())}, {B, tokens, Dim(m.k_width())}, {B, tokens, Dim(m.v_width())}});
    out.query = std::move(parts[0]);
    out.key = std::move(parts[1]);
    out.value = std::move(parts[2]);
    return out;
  }
  if (code.fused_qkv == FusedQkv::multi_query && m.fused_by_group) {
    grouped_heads(g, m, out);
    return out;
  }
  if (code.fused_qkv == FusedQkv::multi_query && m.kv_heads == 1) {
    out.query = slice(g, out.fused, {B, tokens, Dim(m.q_width())});
    out.key = one_head(g, m, out.fused, "k");
    out.value = one_head(g, m, out.fused, "v");
    return out;
  }
  out.query = slice(g, out.fused, {B, tokens, Dim(m.q_width())});
  out.key = slice(g, out.fused, {B, tokens, Dim(m.k_width())});
  out.value = slice(g, out.fused, {B, tokens, Dim(m.v_width())});
  return out;
}

/// The norm of a rank's heads. Under tensor parallelism it works on DTensors that are made for it, whose gradients are copied on
/// the way out (executed).
Tensor normed_heads(Eager& g, const FamilyCode& code, Tensor x, const NormLeaf& norm, bool split, const std::string& name) {
  const DistributedGuard dtensors(g, split);
  if (!split) return run_norm(g, code.norm, Tensor(x), norm, name + "_norm");
  Tensor entered = x.alias(x.shape);
  g.record(entered, "FromTorchTensorBackward", {&x}, [&g](Gradients in) {
    return Gradients{g.make("from_local_backward", in[0].shape, in[0].dtype, Category::temporaries)};
  });
  return run_norm(g, code.norm, entered, norm, name + "_norm");
}

/// Norms over all heads stand in front of the view as heads, norms over one head behind it.
Projected project_all(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const KernelOptions& options,
                      const Tensor& x) {
  const Dim tokens = x.shape[1];
  Projected out;
  if (w.qkv >= 0) {
    out = project_fused(g, code, m, w, x);
  } else {
    const auto projected = [&](int weight, int bias, std::int64_t width, const std::string& name) {
      return project(g, code, x, weight, bias, {B, tokens, Dim(width)}, name);
    };
    const bool split = options.tensor > 1, gate_apart = m.output_gate && code.gate_apart;
    const auto normed = [&](Tensor t, std::int64_t heads, const NormLeaf& norm, const std::string& name) {
      if (m.qk_norm == QkNorm::head) t.shape = {B, tokens, Dim(heads), Dim(m.head_dim)};
      if (m.qk_norm == QkNorm::head && code.norms_heads) t.shape = {B, Dim(heads), tokens, Dim(m.head_dim)};
      if (m.qk_norm != QkNorm::none && !code.rotary.before_norm)
        t = options.liger.rms_norm ? run_norm(g, code.norm, Tensor(t), norm, name + "_norm", options.liger)
                                   : normed_heads(g, code, std::move(t), norm, split, name);
      return t;
    };
    if (options.foak.lora && foak::adapted(g, w.q)) {
      foak::Projections fused = foak::low_rank_qkv(g, x, w.q, w.k, w.v);
      out.query = std::move(fused.query);
      out.key = std::move(fused.key);
      out.value = std::move(fused.value);
    } else {
      Tensor query =
          m.output_gate && !gate_apart ? gated_query(g, code, m, w, x, out.gate) : projected(w.q, w.q_bias, m.q_width(), "q");
      // all projections stand in front of the norms, whose inputs keep their names until they are through
      if (gate_apart || ((code.norms_heads || code.projects_first) && m.qk_norm == QkNorm::head)) {
        out.query = std::move(query);
        out.key = projected(w.k, w.k_bias, m.k_width(), "k");
        out.value = projected(w.v, w.v_bias, m.v_width(), "v");
        if (gate_apart) out.gate = projected(w.attention_gate, -1, m.q_width(), "gate");
        query = normed(Tensor(out.query), m.heads, w.q_norm, "q");
        out.query = std::move(query);
        Tensor key = normed(Tensor(out.key), m.kv_heads, w.k_norm, "k");
        out.key = std::move(key);
      } else {
        out.query = normed(std::move(query), m.heads, w.q_norm, "q");
        out.key = normed(projected(w.k, w.k_bias, m.k_width(), "k"), m.kv_heads, w.k_norm, "k");
        out.value = projected(w.v, w.v_bias, m.v_width(), "v");
      }
    }
    if (m.clip) {
      for (Tensor* part : {&out.query, &out.key, &out.value}) {
        Tensor clipped = clamp_in_place(g, *part, "clipped");
        *part = std::move(clipped);
      }
    }
  }
  if (code.scales_projection) out.query = scale(g, std::move(out.query), "q_scaled");
  out.query.shape = {B, Dim(m.heads), tokens, Dim(m.head_dim)};
  const bool for_all = m.fused_by_group;  // made so above
  const Dim held = for_all ? m.heads : m.kv_heads;
  out.key.shape = out.value.shape = {B, held, tokens, Dim(m.head_dim)};
  if (m.value_head_dim > 0) out.value.shape.back() = Dim(m.value_head_dim);
  if (code.scales_values) {
    Tensor scaled = scale(g, out.value, "v_scaled");
    out.value = std::move(scaled);
  }
  return out;
}

/// Llama 4: (query * (log1p(floor((position + 1) / scale)) * number + 1)).to(dtype), a factor for each position in fp32.
Tensor scale_unrotated(Eager& g, const Tensor& query) {
  Tensor by_token = query;
  std::swap(by_token.shape[1], by_token.shape[2]);
  Tensor factor = g.make("query_scale", {query.shape[2]}, DType::fp32, Category::buffers);
  factor.shape = {Dim(1), query.shape[2], Dim(1), Dim(1)};
  Tensor scaled = mul(g, by_token, factor, "query_scaled_fp32");
  Tensor out = to(g, std::move(scaled), query.dtype, "query_scaled");
  out.shape = query.shape;
  return out;
}

/// Products of matrices leave gradients of queries and keys with heads in front of tokens; fused kernels do not.
bool gradients_by_head(const KernelOptions& options) { return options.kernels == Kernels::hf_eager || options.sdpa_math; }

/// Rotary positions and what stands behind them; names are rebound.
void place(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const KernelOptions& options,
           const LayerContext& context, Projected& p) {
  if (m.rotary_dim > 0 && options.liger.rope) {
    liger::Pair rotated = liger::rope(g, p.query, p.key, context.cos, context.sin, gradients_by_head(options));
    p.query = std::move(rotated.query);
    p.key = std::move(rotated.key);
  } else if (m.rotary_dim > 0 && options.foak.rope) {
    p.query = foak::rope(g, p.query, context.cos, context.sin, gradients_by_head(options));
    p.key = foak::rope(g, p.key, context.cos, context.sin, gradients_by_head(options));
  } else if (m.rotary_dim > 0) {
    Rotated rotated = apply_rotary(g, code.rotary, context, p.query, p.key);
    p.query = std::move(rotated.query);
    p.key = std::move(rotated.key);
    p.parts = std::move(rotated.names);
  }
  if (code.rotary.scales_unrotated && m.rotary_dim == 0) p.query = scale_unrotated(g, p.query);
  if (code.rotary.scales_unrotated && m.rotary_dim == 0) return;
  if (code.rotary.scales_query) p.query = scale_query(g, p.query);
  if (!code.rotary.before_norm || m.qk_norm == QkNorm::none) return;
  Tensor query = run_norm(g, code.norm, p.query, w.q_norm, "q_norm");
  p.query = std::move(query);
  Tensor key = run_norm(g, code.norm, p.key, w.k_norm, "k_norm");
  p.key = std::move(key);
}

void drop(Eager& g, Tensor& output) {
  Tensor dropped = dropout(g, output, "dropped");
  output = std::move(dropped);
}

/// apply_multimodal_rotary_pos_emb: cat of what each axis has of the head's width.
LayerContext with_joined_tables(Eager& g, LayerContext context) {
  for (Tensor* one : {&context.cos, &context.sin}) {
    Shape joined(one->shape.begin() + 1, one->shape.end());
    *one =
        g.make(one == &context.cos ? "rotary.cos_joined" : "rotary.sin_joined", std::move(joined), one->dtype, Category::buffers);
  }
  return context;
}

/// verl/models/transformers/qwen2_vl.py qwen2_vl_attn_forward, 0.7 to 0.10; names are rebound.
void repeat_keys(Eager& g, const Mixer& m, Projected& p) {
  for (Tensor* one : {&p.key, &p.value}) {
    Tensor all = repeat_kv(g, *one, {B, Dim(m.heads), one->shape[2], one->shape[3]}, one == &p.key ? "k_repeated" : "v_repeated");
    *one = std::move(all);
  }
}

/// The attention module's forward(); what it names goes with it.
Attended forward_of(Eager& g, const FamilyCode& code, const Mixer& m, std::int64_t hidden, const LayerLeaves& w,
                    const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  const Dim tokens = x.shape[1];
  Projected p = project_all(g, code, m, w, options, x);
  place(g, code, m, w, options, options.joins_tables ? with_joined_tables(g, context) : context, p);
  join_cache(g, options, context, p.key, p.value);
  if (options.flash_repeats) repeat_keys(g, m, p);
  Attended out;
  const bool joins = code.rotary.splits_head || code.rotary.form == RotaryForm::halves;
  const Attention given{.mask = context.mask,
                        .sinks = w.sinks,
                        .by_head = m.rotary_dim > 0 && joins,
                        .softmax_in_dtype = code.softmax_in_dtype,
                        .shifts_scores = code.shifts_scores,
                        .expands_late = code.fused_qkv == FusedQkv::multi_query,
                        .flash_repeats = code.flash_repeats,
                        .out_shape = {B, tokens, Dim(m.heads), Dim(m.value_head_dim > 0 ? m.value_head_dim : m.head_dim)}};
  if (options.ulysses > 1) {
    const Shape of_all{B, Dim(options.ulysses) * tokens};
    Tensor gathered, positions;  // of verl's attention for Qwen2-VL, which sees from them where sequences begin
    if (options.flash_repeats) {
      gathered = g.make("positions.gathered", of_all, DType::int64, Category::buffers);
      positions = g.make("positions.joined", of_all, DType::int64, Category::buffers);
    }
    const auto inner = [&](const Tensor& q, const Tensor& k, const Tensor& v, Shape shape) {
      Attention one = given;
      one.query = q;
      one.key = k;
      one.value = v;
      one.by_head = false;  // what is exchanged comes by token
      one.out_shape = std::move(shape);
      return attend(g, one, options).output;
    };
    out.output = exchange_around(g, p.query, p.key, p.value, options, inner);
  } else {
    Attention in = given;
    in.query = p.query;
    in.key = p.key;
    in.value = p.value;
    out = attend(g, in, options);
  }
  out.output.shape = {B, tokens, Dim(m.out_width())};
  if (m.output_gate) {
    Tensor open = sigmoid(g, p.gate, "gate.sigmoid");
    Tensor gated = mul(g, out.output, std::move(open), "gated");
    out.output = std::move(gated);
  }
  Tensor projected = options.foak.lora && foak::adapted(g, w.o)
                         ? foak::low_rank_output(g, out.output, w.o)
                         : project(g, code, out.output, w.o, w.o_bias, {B, tokens, Dim(hidden)}, "o");
  projected = reduce_tokens(g, std::move(projected), options, "o.reduced");
  out.output = std::move(projected);
  if (options.hidden_dropout && code.drops_in_attention) drop(g, out.output);
  return out;
}

}  // namespace

Attended run_attention(Eager& g, const FamilyCode& code, const Mixer& m, std::int64_t hidden, const LayerLeaves& w,
                       const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  if (code.norms_values) return run_normed_attention(g, code, m, hidden, w, options, context, x);
  Attended out = forward_of(g, code, m, hidden, w, options, context, x);
  if (options.hidden_dropout && !code.flat_rows && !code.drops_in_attention) drop(g, out.output);
  return out;
}

}  // namespace oomplan
