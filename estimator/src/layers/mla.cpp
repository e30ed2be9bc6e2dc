#include "layers/mla.hpp"

#include "layers/attention.hpp"
#include "layers/indexer.hpp"
#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/rotary.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// q_proj(x), or q_b_proj(q_a_layernorm(q_a_proj(x))), as heads.
/// `kept`: where an indexer's attention has a name for the normed latent.
Tensor project_query(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const Tensor& x, Tensor& kept) {
  Tensor query;
  if (w.q_a < 0) {
    query = linear(g, x, w.q, -1, T, {B, S, Dim(m.q_width())}, "q");
  } else {
    Tensor latent = linear(g, x, w.q_a, w.q_a_bias, T, {B, S, Dim(m.q_lora_rank)}, "q_a");
    Tensor normed = run_norm(g, code.norm, latent, w.q_a_norm, "q_a_layernorm");
    latent.reset();
    if (m.index_top > 0) kept = normed;
    query = linear(g, std::move(normed), w.q, -1, T, {B, S, Dim(m.q_width())}, "q_b");
  }
  query.shape = {B, Dim(m.heads), S, Dim(m.head_dim)};
  return query;
}

struct Expanded {
  Tensor key, value;
};
/// kv_b_proj of the latent, halved; keys of all heads get the one rotated part.
Expanded expand(Eager& g, const Mixer& m, const LayerLeaves& w, const Tensor& latent, const Tensor& rotated) {
  const Dim heads = m.heads, nope = m.nope_head_dim, rope = m.rope_head_dim, value = m.value_head_dim;
  Tensor both = linear(g, latent, w.kv_b, -1, T, {B, S, heads * (Dim(m.nope_head_dim + m.value_head_dim))}, "kv_b");
  both.shape = {B, heads, S, Dim(m.nope_head_dim + m.value_head_dim)};
  const std::vector<Tensor> parts = split(g, both, {{B, heads, S, nope}, {B, heads, S, value}});
  Expanded out;
  out.key = g.make("k", {B, heads, S, Dim(m.head_dim)}, both.dtype);
  Tensor filled = copy_into(g, out.key, parts[0], {B, heads, S, nope});
  out.key = std::move(filled);
  filled = copy_into(g, out.key, rotated, {B, heads, S, rope});
  out.key = std::move(filled);
  out.value = parts[1];
  return out;
}

}  // namespace

Attended run_latent_attention(Eager& g, const FamilyCode& code, const Mixer& m, std::int64_t hidden, const LayerLeaves& w,
                              const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  const Dim heads = m.heads, rope = m.rope_head_dim, rank = m.kv_lora_rank;
  Tensor query_latent;
  Tensor query = project_query(g, code, m, w, x, query_latent);
  std::vector<Tensor> q = split(g, query, {{B, heads, S, Dim(m.nope_head_dim)}, {B, heads, S, rope}});
  Tensor compressed = linear(g, x, w.kv_a, w.kv_a_bias, T, {B, S, Dim(m.kv_lora_rank + m.rope_head_dim)}, "kv_a");
  std::vector<Tensor> kv = split(g, compressed, {{B, S, rank}, {B, S, rope}});
  Tensor latent = run_norm(g, code.norm, kv[0], w.kv_a_norm, "kv_a_layernorm");
  latent.shape = {B, Dim(1), S, rank};
  kv[1].shape = {B, Dim(1), S, rope};
  Rotated rotated = apply_rotary(g, code.rotary, context, q[1], kv[1]);
  q[1] = std::move(rotated.query);
  kv[1] = std::move(rotated.key);
  Attention in;
  in.query = cat(g, q, {B, heads, S, Dim(m.head_dim)}, "q_joined");
  if (code.rotary.scales_query) {
    Tensor scaled = scale_query(g, in.query);
    in.query = std::move(scaled);
  }
  {
    Expanded expanded = expand(g, m, w, latent, kv[1]);
    in.key = std::move(expanded.key);
    in.value = std::move(expanded.value);
  }
  in.mask = context.mask;
  Tensor chosen, hidden_keys;  // names of the function
  if (m.index_top > 0) {
    chosen = m.index_shared ? context.chosen : choose_keys(g, code, m, w, options, context, query_latent, x);
    in.mask = mask_of_chosen(g, context.mask, chosen, hidden_keys);
  }
  in.by_head = true;
  in.out_shape = {B, S, heads, Dim(m.value_head_dim)};
  Attended out = attend(g, in, options);
  // flash's output was cut to the width of values: the reshape copies it
  if (options.kernels == Kernels::hf_flash && m.value_head_dim != m.head_dim) {
    Tensor flat = copy(g, out.output, in.out_shape, "attention.out_flat");
    out.output = std::move(flat);
  }
  out.output.shape = {B, S, Dim(m.out_width())};
  Tensor projected = linear(g, out.output, w.o, w.o_bias, T, {B, S, Dim(hidden)}, "o");
  out.output = std::move(projected);
  if (code.returns_chosen) out.chosen = std::move(chosen);
  return out;
}

}  // namespace oomplan
