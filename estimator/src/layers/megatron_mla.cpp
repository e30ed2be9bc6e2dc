// MLASelfAttention of Megatron-core, with and without fused rotary kernels: megatron/core/transformer/multi_latent_attention.py
// and megatron/core/fusions/fused_mla_yarn_rope_apply.py, 0.16.1.
//
// Legend: rq, rkv ranks of the latents, n and r the parts of a head without and with positions, v width of a value.
#include "layers/megatron.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

/// gather_from_tensor_model_parallel_region: what the ranks have comes one below the other, and is put side by side.
Tensor side_by_side(Eager& g, const Tensor& part, std::int64_t columns, const std::string& name) {
  const Shape local = part.shape, whole = with_last(part.shape, Dim(columns));
  const Tensor blocks = g.make(name + ".blocks", whole, DType::bf16);
  Tensor out = g.make(name + ".gathered", whole, DType::bf16);
  g.record(out, "GatherFromModelParallelRegion", {&part},
           [&g, local](Gradients) { return Gradients{gradient(g, "latent_backward.part", local, DType::bf16)}; });
  return out;
}

/// scatter_to_sequence_parallel_region: of rows that lie behind each other a view, of others a copy.
Tensor own_rows(Eager& g, const Tensor& whole, bool view, const std::string& name) {
  const Shape all = whole.shape, local{S, B, all.back()};
  Tensor out = view ? whole.alias(local) : g.make(name, local, DType::bf16);
  g.record(out, "ScatterToSequenceParallelRegion", {&whole},
           [&g, all](Gradients) { return Gradients{gradient(g, "latent_backward.gathered", all, DType::bf16)}; });
  return out;
}

/// The part of the keys that all heads share: split off the joint latent, gathered where the tokens are split.
struct Latents {
  Tensor query, key_value, positions;
};

/// Before 0.13 and over several ranks: what is split by its columns is put together, and each rank takes its tokens again.
Latents compress_in_parts(Eager& g, const Mixer& m, const TeOptions& te, const Tensor& x) {
  Latents out;
  const std::int64_t joint = m.kv_lora_rank + m.rope_head_dim;
  if (m.q_lora_rank > 0) {
    const Tensor part = te_column_linear(g, x, m.q_lora_rank / te.tensor, te, "linear_q_down_proj");
    Tensor whole = side_by_side(g, part, m.q_lora_rank, "q_compressed");
    out.query = te.sequence_parallel ? own_rows(g, whole, true, "q_compressed") : std::move(whole);
  }
  const Tensor part = te_column_linear(g, x, joint / te.tensor, te, "linear_kv_down_proj");
  const Tensor whole = side_by_side(g, part, joint, "kv_combined");
  std::vector<Tensor> parts = split(g, whole, {{te.whole(), B, Dim(m.kv_lora_rank)}, {te.whole(), B, Dim(m.rope_head_dim)}});
  out.key_value = te.sequence_parallel ? own_rows(g, parts[0], false, "kv_compressed") : std::move(parts[0]);
  out.positions = std::move(parts[1]);
  return out;
}

Latents compress(Eager& g, const Mixer& m, const ChunkOptions& o, const Tensor& x) {
  if (splits_latents(o.settings, o.te)) return compress_in_parts(g, m, o.te, x);
  const TeOptions& te = o.te;
  const bool original = recomputes(o, "layernorm");  // set_for_recompute_input_layernorm: what goes and comes back
  Latents out;
  Tensor query;
  if (m.q_lora_rank > 0) query = te_duplicated_linear(g, x, m.q_lora_rank, te, "linear_q_down_proj", original);
  Tensor joint = te_duplicated_linear(g, x, m.kv_lora_rank + m.rope_head_dim, te, "linear_kv_down_proj", original);
  std::vector<Tensor> parts = split(g, joint, {{S, B, Dim(m.kv_lora_rank)}, {S, B, Dim(m.rope_head_dim)}});
  out.key_value = std::move(parts[0]);
  out.positions = std::move(parts[1]);
  if (te.sequence_parallel && te.tensor > 1) {
    const Shape local = out.positions.shape;
    Tensor whole = g.make("k_pos_emb.gathered", {te.whole(), B, Dim(m.rope_head_dim)}, DType::bf16);
    g.record(whole, "GatherFromSequenceParallelRegion", {&out.positions},
             [&g, local](Gradients) { return Gradients{gradient(g, "k_pos_emb_backward.scattered", local, DType::bf16)}; });
    out.positions = std::move(whole);
  }
  out.query = std::move(query);
  return out;
}

/// What the rotary kernels make of both projections: queries in place, keys and values as blocks of their own.
std::vector<Tensor> place_fused(Eager& g, const Mixer& m, const ChunkOptions& o, const Tensor& q, const Tensor& kv,
                                const Tensor& positions) {
  const std::int64_t heads = m.heads / o.te.tensor, n = m.nope_head_dim, r = m.rope_head_dim, v = m.value_head_dim;
  const Dim tokens = o.te.whole();
  Tensor query = q.alias({tokens, B, Dim(heads), Dim(n + r)});
  g.record(query, "ApplyMLARotaryEmbQ", {&q}, [](Gradients in) { return in; });
  Tensor key = g.make("k", {tokens, B, Dim(heads), Dim(n + r)}, DType::bf16);
  Tensor value = g.make("v", {tokens, B, Dim(heads), Dim(v)}, DType::bf16);
  const Shape joint = kv.shape, shared = positions.shape;
  Tensor both = key.alias(key.shape);
  g.record(
      both, "ApplyMLARotaryEmbKV", {&kv, &positions},
      [&g, joint, shared](Gradients) {
        Gradients grads;
        grads.push_back(gradient(g, "kv_backward", joint, DType::bf16));
        grads.push_back(gradient(g, "k_pos_emb_backward", shared, DType::bf16));
        return grads;
      },
      2);
  key.grad_fn = value.grad_fn = both.grad_fn;
  value.output = 1;
  return {query, key, value};
}

/// Without them: split, turned, put together; values are copied out of the joint projection.
std::vector<Tensor> place_unfused(Eager& g, const Mixer& m, const ChunkOptions& o, const Tensor& q, const Tensor& kv,
                                  const Tensor& positions) {
  const std::int64_t n = m.nope_head_dim, r = m.rope_head_dim, v = m.value_head_dim;
  const Dim tokens = o.te.whole(), heads = m.heads / o.te.tensor;
  const Shape plain{tokens, B, heads, Dim(n)}, turned{tokens, B, heads, Dim(r)}, whole{tokens, B, heads, Dim(n + r)};
  std::vector<Tensor> queries = split(g, q, {plain, turned});
  std::vector<Tensor> keys = split(g, kv, {plain, {tokens, B, heads, Dim(v)}});
  queries[1] = megatron_rotary(g, queries[1], Dim(r), true, "q_rotary");
  Tensor one = positions.alias({tokens, B, Dim(1), Dim(r)});
  one.grad_fn = positions.grad_fn;
  one.output = positions.output;
  Tensor position = megatron_rotary(g, one, Dim(r), true, "k_rotary");
  Tensor query = cat(g, {queries[0], queries[1]}, whole, "q");
  Tensor wide = position.alias(turned);  // expand: its gradient is summed over the heads
  const Shape narrow = position.shape;
  g.record(wide, "ExpandBackward0", {&position},
           [&g, narrow](Gradients) { return Gradients{gradient(g, "k_pos_emb_backward.sum", narrow, DType::bf16)}; });
  Tensor key = cat(g, {keys[0], wide}, whole, "k");
  Tensor value = te_contiguous(g, keys[1], "v");
  return {query, key, value};
}

}  // namespace

bool splits_latents(const Megatron& m, const TeOptions& te) { return m.core_release == CoreRelease::v0_12 && te.tensor > 1; }

Tensor run_megatron_mla(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& given) {
  const TeOptions& te = o.te;
  const bool norm_again = recomputes(o, "layernorm"), up_again = recomputes(o, "mla_up_proj");
  const auto norm = [&g, kind = layer.norm](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{te_norm(g, in[0], kind, "input_layernorm")};
  };
  // qkv_up_proj_and_rope_apply: the norms of the latents are part of the up-projections
  const auto up = [&g, &layer, &o, &te](const std::vector<Tensor>& in) {
    const Mixer& m = layer.mixer;
    const std::int64_t heads = m.heads / te.tensor, n = m.nope_head_dim, r = m.rope_head_dim, v = m.value_head_dim;
    const Tensor q = m.q_lora_rank > 0 ? te_norm_column_linear(g, in[0], layer.norm, heads * (n + r), te, "linear_q_up_proj")
                                       : te_column_linear(g, in[0], heads * (n + r), te, "linear_q_proj");
    // a view of the joint latent: Transformer Engine's modules want a block (module/base.py: prepare_forward, 2.17.1)
    const bool block = splits_latents(o.settings, te) && te.sequence_parallel;  // own_rows made one
    const Tensor latent = block ? in[1] : te_contiguous(g, in[1], "kv_compressed");
    const Tensor kv = te_norm_column_linear(g, latent, layer.norm, heads * (n + v), te, "linear_kv_up_proj");
    return o.settings.rotary_fusion ? place_fused(g, m, o, q, kv, in[2]) : place_unfused(g, m, o, q, kv, in[2]);
  };
  DiscardedOutputs input_norm, projections;
  const Tensor x = norm_again ? input_norm.run(g, {given}, norm)[0] : norm({given})[0];
  std::vector<Tensor> placed;
  Latents latents = compress(g, layer.mixer, o, x);  // q_compressed and kv_compressed are names until forward returns
  {
    const std::vector<Tensor> in{layer.mixer.q_lora_rank > 0 ? latents.query : x, latents.key_value, latents.positions};
    placed = up_again ? projections.run(g, in, up) : up(in);
  }
  latents.positions.reset();
  const Tensor out = run_megatron_core(g, placed[0], placed[1], placed[2], {}, o);
  if (up_again) projections.discard(out);
  Tensor flat = out.alias({out.shape[0], B, out.shape[2] * out.shape[3]});
  flat.grad_fn = out.grad_fn;
  Tensor result = te_row_linear(g, flat, a.hidden, te, "linear_proj", keeps_shared_input(te));
  if (norm_again) input_norm.discard(result);
  return result;
}

}  // namespace oomplan
