// MLASelfAttention of Megatron-core with fused rotary kernels: megatron/core/transformer/multi_latent_attention.py and
// megatron/core/fusions/fused_mla_yarn_rope_apply.py, 0.16.1.
//
// Legend: rq, rkv ranks of the latents, n and r the parts of a head without and with positions, v width of a value.
#include "layers/megatron.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

/// The part of the keys that all heads share: split off the joint latent, gathered where the tokens are split.
struct Latents {
  Tensor query, key_value, positions;
};

Latents compress(Eager& g, const Mixer& m, const ChunkOptions& o, const Layer& layer, const Tensor& x) {
  const TeOptions& te = o.te;
  Latents out;
  Tensor query;
  if (m.q_lora_rank > 0) query = te_duplicated_linear(g, x, m.q_lora_rank, te, "linear_q_down_proj");
  Tensor joint = te_duplicated_linear(g, x, m.kv_lora_rank + m.rope_head_dim, te, "linear_kv_down_proj");
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
  (void)layer;
  return out;
}

}  // namespace

Tensor run_megatron_mla(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& given) {
  const Mixer& m = layer.mixer;
  const TeOptions& te = o.te;
  const std::int64_t heads = m.heads / te.tensor, n = m.nope_head_dim, r = m.rope_head_dim, v = m.value_head_dim;
  const Dim tokens = te.whole();
  const Tensor x = te_norm(g, given, layer.norm, "input_layernorm");
  Tensor query, key, value;
  {
    const Latents latents = compress(g, m, o, layer, x);
    // the norms of the latents are part of the up-projections
    Tensor q = m.q_lora_rank > 0 ? te_norm_column_linear(g, latents.query, layer.norm, heads * (n + r), te, "linear_q_up_proj")
                                 : te_column_linear(g, x, heads * (n + r), te, "linear_q_proj");
    Tensor kv = te_norm_column_linear(g, latents.key_value, layer.norm, heads * (n + v), te, "linear_kv_up_proj");
    // in place in both directions
    query = q.alias({tokens, B, Dim(heads), Dim(n + r)});
    g.record(query, "ApplyMLARotaryEmbQ", {&q}, [](Gradients in) { return in; });
    key = g.make("k", {tokens, B, Dim(heads), Dim(n + r)}, DType::bf16);
    value = g.make("v", {tokens, B, Dim(heads), Dim(v)}, DType::bf16);
    const Shape joint = kv.shape, positions = latents.positions.shape;
    Tensor both = key.alias(key.shape);
    g.record(
        both, "ApplyMLARotaryEmbKV", {&kv, &latents.positions},
        [&g, joint, positions](Gradients) {
          Gradients grads;
          grads.push_back(gradient(g, "kv_backward", joint, DType::bf16));
          grads.push_back(gradient(g, "k_pos_emb_backward", positions, DType::bf16));
          return grads;
        },
        2);
    key.grad_fn = value.grad_fn = both.grad_fn;
    value.output = 1;
  }
  Tensor out = te_attention(g, query, key, value, false, te);
  Tensor flat = out.alias({out.shape[0], B, out.shape[2] * out.shape[3]});
  flat.grad_fn = out.grad_fn;
  return te_row_linear(g, flat, a.hidden, te, "linear_proj");
}

}  // namespace oomplan
