#include "layers/archon.hpp"

#include <algorithm>

#include "layers/archon_experts.hpp"
#include "layers/archon_tree.hpp"
#include "layers/blockwise_linear.hpp"
#include "layers/mlp.hpp"
#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/rotary.hpp"
#include "layers/tensor_parallel.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

Shape table_shape(const Architecture& a) { return {Dim(a.max_positions), Dim(2 * a.runs.front().layer.mixer.head_dim)}; }

/// apply_rotary_emb: the rows of this rank's positions, of which cosines and sines are halves.
Rotated turn(Eager& g, const Mixer& m, const LayerContext& context, const KernelOptions& options, const Tensor& q,
             const Tensor& k) {
  const Dim tokens = q.shape[1];
  const DType dtype = context.cos ? context.cos.dtype : options.parameters;
  Tensor rows = g.make("rope_rows", {tokens, Dim(2 * m.head_dim)}, dtype, Category::buffers);
  LayerContext halves;
  halves.cos = rows.alias({Dim(1), tokens, Dim(m.head_dim)});
  halves.sin = rows.alias({Dim(1), tokens, Dim(m.head_dim)});
  return apply_rotary(g, RotaryCode{}, halves, q, k);
}

/// all_to_all_tensor of areal/models/fsdp/ulysses.py: parts are stacked, exchanged and joined. Backward goes the same way back.
/// `kept`: selective checkpoints keep what was exchanged, those of Qwen3 alone (_get_op_sac_save_list).
Tensor exchanged(Eager& g, const Tensor& x, const Shape& out_shape, bool kept, const std::string& name) {
  const Shape in_shape = x.shape;
  const DType dtype = x.dtype;
  Tensor stacked = g.make(name + ".stacked", in_shape, dtype, Category::communication);
  g.record(stacked, "StackBackward0", {&x}, [=, &g](Gradients in) {
    return Gradients{g.make(name + "_backward", in_shape, in[0].dtype, Category::temporaries)};  // SplitBackward0's cat
  });
  const auto receive = [&] { return Eager::Results{g.make(name + ".received", in_shape, dtype, Category::communication)}; };
  Tensor received = std::move((kept ? g.kept(false, receive) : receive())[0]);
  g.record(received, "AllToAllSingleBackward", {&stacked}, [=, &g](Gradients in) {
    return Gradients{g.make(name + "_backward.received", in_shape, in[0].dtype, Category::communication)};
  });
  Tensor out = g.make(name, out_shape, dtype);
  g.record(out, "CatBackward0", {&received}, [=, &g](Gradients in) {
    return Gradients{g.make(name + "_backward.stacked", in_shape, in[0].dtype, Category::communication)};  // UnbindBackward0's
  });
  return out;
}

/// areal::_varlen_attn around flash-attention. The kernel's own buffers in backward are those of flash-attention 2
/// (flash_api.cpp, mha_varlen_bwd). The gradients of the log-sum-exp and of the generator's state, which nobody uses, are zeros
/// that autograd makes.
Tensor varlen(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const KernelOptions& options) {
  const bool recorded = g.will_record({&q, &k, &v});
  Saved sq, sk, sv;
  if (recorded) {
    sq = g.save(q);
    sk = g.save(k);
    sv = g.save(v);
  }
  const Shape whole = q.shape, out_shape{q.shape[1], q.shape[2], q.shape[3]}, by_row{q.shape[2], q.shape[1]};
  const Dim state = 2;
  auto results = g.kept(false, [&] {
    return Eager::Results{g.make("attention.out", out_shape, q.dtype), g.make("attention.lse", by_row, DType::fp32),
                          g.make("attention.rng", {state}, DType::int64)};
  });
  Tensor out = std::move(results[0]), lse = std::move(results[1]), rng = std::move(results[2]);
  if (!recorded) return out;
  Saved so = g.save(out), sl = g.save(lse), sr = g.save(rng);
  const bool grouped = q.shape[2] != k.shape[2], internals = options.kernel_internals;
  g.record(out, "VarlenAttentionBackward", {&q, &k, &v}, [=, &g](Gradients in) {
    Tensor no_lse = g.make("attention.lse_gradient", by_row, DType::fp32, Category::temporaries);
    Tensor no_rng = g.make("attention.rng_gradient", {state}, DType::int64, Category::temporaries);
    for (const Saved* s : {&sq, &sk, &sv, &so, &sl, &sr}) (void)s->get();
    const DType dtype = in[0].dtype;
    Gradients grads;
    for (const Saved* s : {&sq, &sk, &sv})
      grads.push_back(g.make("attention.backward", s->get().shape, dtype, Category::temporaries));
    if (internals) {
      Tensor dq = g.make("attention.dq_accum", whole, DType::fp32, Category::workspace);
      Tensor d = g.make("attention.softmax_d", by_row, DType::fp32, Category::workspace);
      Tensor dk = grouped ? g.make("attention.dk_expanded", whole, dtype, Category::workspace) : Tensor();
      Tensor dv = grouped ? g.make("attention.dv_expanded", whole, dtype, Category::workspace) : Tensor();
    }
    return grads;
  });
  return out;
}

/// Keys and values are repeated until every rank of Ulysses has a head of them.
void exchange_heads(Eager& g, const Mixer& m, const KernelOptions& options, bool kept, Tensor& q, Tensor& k, Tensor& v) {
  const std::int64_t c = options.ulysses, shared = std::max(m.kv_heads, c);
  const Dim local = q.shape[1], all = local * Dim(c), width = m.head_dim;
  if (shared != m.kv_heads) {
    Tensor keys = repeat_kv(g, k, {B, local, shared, width}, "k_repeated");
    k = std::move(keys);
    Tensor values = repeat_kv(g, v, {B, local, shared, width}, "v_repeated");
    v = std::move(values);
  }
  const auto one = [&](Tensor& x, std::int64_t heads, const char* name) {
    Tensor out = exchanged(g, x, {B, all, heads / c, width}, kept, name);
    x = std::move(out);
  };
  one(q, m.heads, "q_exchanged");
  one(k, shared, "k_exchanged");
  one(v, shared, "v_exchanged");
}

Tensor attention(Eager& g, const Architecture& a, const Mixer& m, const LayerLeaves& w, const KernelOptions& options,
                 const LayerContext& context, const Tensor& x) {
  const Dim tokens = x.shape[1], rows = B * tokens;
  const auto heads = [&](int weight, int bias, std::int64_t n, const char* name) {
    Tensor t = linear(g, x, weight, bias, rows, {B, tokens, Dim(n * m.head_dim)}, name);
    t.shape = {B, tokens, Dim(n), Dim(m.head_dim)};
    return t;
  };
  Tensor q = heads(w.q, w.q_bias, m.heads, "q"), k = heads(w.k, w.k_bias, m.kv_heads, "k");
  Tensor v = heads(w.v, w.v_bias, m.kv_heads, "v");
  if (m.qk_norm == QkNorm::head) {
    Tensor normed = archon_norm(g, q, w.q_norm, options, "q_norm");
    q = std::move(normed);
    normed = archon_norm(g, k, w.k_norm, options, "k_norm");
    k = std::move(normed);
  }
  const DistributedGuard local(g, false);
  const bool kept = a.family != "qwen2";
  {
    Rotated rotated = turn(g, m, context, options, q, k);
    q = std::move(rotated.query);
    k = std::move(rotated.key);
  }
  if (options.ulysses > 1) exchange_heads(g, m, options, kept, q, k, v);
  Tensor output = options.tree ? tree_attention(g, q, k, v, context.mask) : varlen(g, q, k, v, options);
  if (options.ulysses > 1) {
    Tensor back = exchanged(g, output, {B, tokens, Dim(m.heads), Dim(m.head_dim)}, kept, "attention_exchanged");
    output = std::move(back);
  }
  output.shape = {B, tokens, Dim(m.out_width())};
  Tensor projected = linear(g, output, w.o, -1, rows, {B, tokens, Dim(a.hidden)}, "o");
  return reduce_tokens(g, std::move(projected), options, "o.reduced");
}

std::string unsupported_layer(const Architecture& a, const Layer& layer, const KernelOptions& options) {
  const Mixer& m = layer.mixer;
  const FeedForward& ff = layer.feed_forward;
  const bool biased = m.q_bias && m.k_bias && m.v_bias;
  if (ff.kind == FeedForwardKind::moe && (options.tensor > 1 || ff.shared_width > 0 || a.family != "qwen3_moe"))
    return "not supported yet: experts of Archon under tensor parallelism or beside shared ones";
  if (ff.kind != FeedForwardKind::gated && ff.kind != FeedForwardKind::moe) return "Archon has no such feed-forward block";
  // qwen2 has biases of queries, keys and values, or none; qwen3 norms of them (qk_norm of its arguments) and no biases
  if (m.out_bias || layer.feed_forward.bias || m.rotary_dim != m.head_dim || m.sinks ||
      (a.family == "qwen2" ? biased != (m.q_bias || m.k_bias || m.v_bias) : m.q_bias || m.k_bias || m.v_bias))
    return "a model with these biases or partial rotary positions is none of Archon's";
  return {};
}

/// Of blocks under torch.compile.
std::string unsupported_graphs(const Architecture& a, const KernelOptions& options) {
  if (!options.compile) return {};
  if (options.tensor > 1) return "not supported yet: torch.compile of Archon's blocks under tensor parallelism";
  if (options.ulysses > 1) return "not supported yet: torch.compile of Archon's blocks whose ranks share a sequence (c above 1)";
  if (options.tree) return "not supported yet: torch.compile of Archon's blocks with packed trees";
  if (options.float8 != Float8::none) return "AReaL turns torch.compile off for Archon in 8 bits";
  if (a.family == "qwen3_moe") return "not supported yet: torch.compile of Archon's blocks with experts";
  const Mixer& m = a.runs.front().layer.mixer;
  const bool described = a.family == "qwen2" ? m.q_bias && m.q_width() == a.hidden : m.qk_norm == QkNorm::head;
  return described ? std::string()
                   : "not supported yet: torch.compile of Archon's Qwen2 without biases or with queries of another width than "
                     "hidden states, of its Qwen3 without norms of queries and keys";
}

}  // namespace

std::string unsupported_archon(const Architecture& a, const KernelOptions& options) {
  if (a.family == "qwen3_5" || a.family == "qwen3_5_moe" || a.family == "qwen3_5_text")
    return "not supported yet: Archon's models of Qwen3.5";
  if (a.family != "qwen2" && a.family != "qwen3" && a.family != "qwen3_moe")
    return "Archon has no model of '" + a.family + "': AReaL itself refuses it and names FSDP (archon_engine.py)";
  if (a.max_positions == 0) return "Archon's table of positions needs max_position_embeddings";
  if (options.liger.any()) return "Archon has no operators of Liger";
  if (options.adapters.rank > 0) return "Archon has no LoRA";
  if (options.autocast || options.padding_mask || options.several_sequences)
    return "Archon packs its sequences and computes without autocast";
  if (options.tree && (options.ulysses > 1 || options.tensor > 1))
    return "not supported yet: tree training whose ranks share a sequence (t or c above 1)";
  for (const auto& run : a.runs)
    if (std::string why = unsupported_layer(a, run.layer, options); !why.empty()) return why;
  return unsupported_graphs(a, options);
}

LayerContext archon_arguments(Eager& g, const Architecture& a, const KernelOptions& options) {
  LayerContext out;
  if (options.parameters != DType::fp32)
    out.cos = g.make("rope_cache.cast", table_shape(a), options.parameters, Category::buffers);
  return out;
}

Tensor archon_norm(Eager& g, const Tensor& x, const NormLeaf& leaf, const KernelOptions& options, const std::string& name) {
  const DistributedGuard dtensors(g, options.tensor > 1);
  return run_norm(g, NormCode::rms, x, leaf, name);
}

Tensor run_archon_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                        const LayerContext& context, const Tensor& x) {
  const bool split = options.tensor > 1, blocks = options.float8 == Float8::blockwise;
  const auto gathered = [&](const Tensor& normed, const char* name) {
    const DistributedGuard dtensors(g, split);
    return gather_tokens(g, normed, options, name);
  };
  Tensor half;
  {
    g.prefix += "attention.";
    Tensor normed = archon_norm(g, x, w.before_attention, options, "norm");
    {
      Tensor whole = gathered(normed, "gathered");
      const DistributedGuard dtensors(g, split && layer.mixer.qk_norm == QkNorm::head);  // queries and keys stay DTensors
      const BlockwiseGuard in_8_bits(g, blocks);
      half = attention(g, a, layer.mixer, w, options, context, whole);
    }
    g.prefix.resize(g.prefix.size() - 10);
  }
  Tensor hidden = add(g, x, std::move(half), "attention_residual");
  {
    g.prefix += "feed_forward.";
    Tensor normed = archon_norm(g, hidden, w.before_feed_forward, options, "norm");
    {
      Tensor whole = gathered(normed, "gathered");
      const GatedLeaves leaves{w.gate, -1, w.up, -1, -1, w.down, -1};
      const BlockwiseGuard in_8_bits(g, blocks && layer.feed_forward.kind == FeedForwardKind::gated);  // the router is left out
      half = layer.feed_forward.kind == FeedForwardKind::moe
                 ? archon_experts(g, layer.feed_forward, a.hidden, whole, w, options)
                 : gated_mlp(g, whole, {B, whole.shape[1]}, a.hidden, layer.feed_forward.width, leaves, "", options);
    }
    g.prefix.resize(g.prefix.size() - 13);
  }
  return add(g, hidden, std::move(half), "output");
}

Bytes archon_buffers(const Architecture& a) {
  const Shape table = table_shape(a);
  return bytes_of(table[0].coefficient * table[1].coefficient, DType::fp32);
}

}  // namespace oomplan
