// The parameter tensors of each kind of mixer.
// Shapes: transformers 5.23, models/<family>/modeling_<family>.py, of the families named at each function.
#include <string>

#include "catalog/inventory.hpp"

namespace oomplan {
namespace {

using Part = ParameterPart;
using Split = SplitAxis;

/// q and k norms: of one head, or of all heads together.
void qk_norms(Inventory& out, const Mixer& m, NormKind kind) {
  if (m.qk_norm == QkNorm::none || m.qk_norm == QkNorm::unweighted) return;
  const bool full = m.qk_norm == QkNorm::full;
  out.norm(joined(out.names.attention, out.names.q_norm), kind, full ? m.q_width() : m.head_dim);
  if (!m.shared_kv) out.norm(joined(out.names.attention, out.names.k_norm), kind, full ? m.k_width() : m.head_dim);
}

/// MiniMax-M3: picks blocks of keys; one key head for all index heads.
void block_indexer(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix = joined(out.names.attention, "indexer.");
  out.linear(prefix + "q_proj", h, m.index_heads * m.index_head_dim, false, Part::mixer, Split::none);
  out.linear(prefix + "k_proj", h, m.index_head_dim, false, Part::mixer, Split::none);
  out.norm(prefix + "q_norm", NormKind::rms, m.index_head_dim);
  out.norm(prefix + "k_norm", NormKind::rms, m.index_head_dim);
}

void query(const Mixer& m, std::int64_t h, std::int64_t width, Inventory& out) {
  const Names& names = out.names;
  const std::string q = joined(names.attention, names.q);
  if (m.query_group_width == 0) return out.linear(q, h, width, m.q_bias, Part::mixer, Split::rows);
  // Step-3: the query passes through a projection that all heads share.
  out.linear(q, h, m.query_group_width, m.q_bias, Part::mixer, Split::none);
  out.norm(joined(names.attention, "inter_norm"), NormKind::rms, m.query_group_width);
  out.linear(joined(names.attention, "wq"), m.query_group_width, width, m.q_bias, Part::mixer, Split::rows);
}

void attention(const Mixer& m, std::int64_t hidden, NormKind norm, Inventory& out) {
  const Names& names = out.names;
  const std::int64_t h = m.input_width > 0 ? m.input_width : hidden;
  const std::int64_t q_width = m.q_width() * (m.output_gate ? 2 : 1);
  const auto linear = [&](std::string_view name, std::int64_t in, std::int64_t width, bool bias, Split split) {
    out.linear(joined(names.attention, name), in, width, bias, Part::mixer, split);
  };
  if (m.fused_qkv) {
    linear(names.qkv, h, q_width + m.k_width() + m.v_width(), m.q_bias, Split::rows);
  } else {
    query(m, h, q_width, out);
  }
  if (!m.fused_qkv && !m.shared_kv) {
    linear(names.k, h, m.k_width(), m.k_bias, Split::kv_rows);
    if (!m.key_is_value) linear(names.v, h, m.v_width(), m.v_bias, Split::kv_rows);
  }
  linear(names.out, m.out_width(), hidden, m.out_bias, Split::columns);
  if (m.head_gate) linear("g_proj", h, m.heads, false, Split::rows);
  if (m.sinks) out.tensor(joined(names.attention, names.sinks), {m.heads}, Part::mixer, Split::rows);
  qk_norms(out, m, norm == NormKind::none || norm == NormKind::non_parametric ? NormKind::rms : norm);
  if (m.index_heads > 0) block_indexer(m, h, out);
}

/// DeepSeek V3.2, GLM-5: scores of earlier tokens from the low-rank query.
void token_indexer(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix = joined(out.names.attention, "indexer.");
  out.linear(prefix + "wq_b", m.q_lora_rank, m.index_heads * m.index_head_dim, false, Part::mixer, Split::none);
  out.linear(prefix + "wk", h, m.index_head_dim, false, Part::mixer, Split::none);
  out.norm(prefix + "k_norm", NormKind::layer, m.index_head_dim);
  out.linear(prefix + "weights_proj", h, m.index_heads, false, Part::mixer, Split::none);
}

/// DeepSeek V2 and later.
void latent(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix(out.names.attention);
  const std::int64_t queries = m.heads * m.head_dim;
  if (m.q_lora_rank > 0) {
    out.linear(prefix + "q_a_proj", h, m.q_lora_rank, m.q_bias, Part::mixer, Split::none);
    out.norm(prefix + "q_a_layernorm", NormKind::rms, m.q_lora_rank);
    out.linear(prefix + "q_b_proj", m.q_lora_rank, queries, false, Part::mixer, Split::rows);
  } else {
    out.linear(prefix + "q_proj", h, queries, false, Part::mixer, Split::rows);
  }
  out.linear(prefix + "kv_a_proj_with_mqa", h, m.kv_lora_rank + m.rope_head_dim, m.k_bias, Part::mixer, Split::none);
  out.norm(prefix + "kv_a_layernorm", NormKind::rms, m.kv_lora_rank);
  out.linear(prefix + "kv_b_proj", m.kv_lora_rank, m.heads * (m.nope_head_dim + m.value_head_dim), false, Part::mixer,
             Split::rows);
  out.linear(prefix + "o_proj", m.heads * m.value_head_dim, h, m.out_bias, Part::mixer, Split::columns);
  if (m.index_heads > 0) token_indexer(m, h, out);
}

/// DeepSeek V4: entries of several tokens, made by a gated pooling. Where four tokens make one, windows overlap (twice the
/// width).
void compressor(std::string_view prefix, std::int64_t h, std::int64_t ratio, std::int64_t dim, Inventory& out) {
  const std::int64_t width = (ratio == 4 ? 2 : 1) * dim;
  out.tensor(joined(prefix, "position_bias"), {ratio, width}, Part::mixer);
  out.linear(joined(prefix, "kv_proj"), h, width, false, Part::mixer, Split::none);
  out.linear(joined(prefix, "gate_proj"), h, width, false, Part::mixer, Split::none);
  out.norm(joined(prefix, "kv_norm"), NormKind::rms, dim);
}

void grouped_latent(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix(out.names.attention);
  out.tensor(prefix + "sinks", {m.heads}, Part::mixer, Split::rows);
  out.linear(prefix + "q_a_proj", h, m.q_lora_rank, false, Part::mixer, Split::none);
  out.norm(prefix + "q_a_norm", NormKind::rms, m.q_lora_rank);
  out.linear(prefix + "q_b_proj", m.q_lora_rank, m.heads * m.head_dim, false, Part::mixer, Split::rows);
  out.linear(prefix + "kv_proj", h, m.head_dim, false, Part::mixer, Split::none);
  out.norm(prefix + "kv_norm", NormKind::rms, m.head_dim);
  const std::int64_t ranks = m.out_groups * m.out_lora_rank;
  out.linear(prefix + "o_a_proj", m.heads * m.head_dim / m.out_groups, ranks, false, Part::mixer, Split::rows);
  out.linear(prefix + "o_b_proj", ranks, h, false, Part::mixer, Split::columns);
  if (m.compress_ratio == 0) return;
  compressor(prefix + "compressor.", h, m.compress_ratio, m.head_dim, out);
  if (m.index_heads == 0) return;
  compressor(prefix + "compressor.indexer.", h, m.compress_ratio, m.index_head_dim, out);
  out.linear(prefix + "compressor.indexer.q_b_proj", m.q_lora_rank, m.index_heads * m.index_head_dim, false, Part::mixer,
             Split::none);
  out.linear(prefix + "compressor.indexer.scorer.weights_proj", h, m.index_heads, false, Part::mixer, Split::none);
}

/// Qwen3-Next, Qwen3.5.
void gated_delta(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix = "linear_attn.";
  const std::int64_t keys = m.linear_key_heads * m.linear_key_dim, values = m.linear_value_heads * m.linear_value_dim;
  out.linear(prefix + "in_proj_qkvz", h, 2 * keys + 2 * values, false, Part::mixer, Split::rows);
  out.linear(prefix + "in_proj_ba", h, 2 * m.linear_value_heads, false, Part::mixer, Split::rows);
  out.tensor(prefix + "conv1d.weight", {2 * keys + values, 1, m.conv_kernel}, Part::mixer, Split::rows);
  out.tensor(prefix + "dt_bias", {m.linear_value_heads}, Part::mixer, Split::rows);
  out.tensor(prefix + "A_log", {m.linear_value_heads}, Part::mixer, Split::rows);
  out.norm(prefix + "norm", NormKind::rms, m.linear_value_dim);
  out.linear(prefix + "out_proj", values, h, false, Part::mixer, Split::columns);
}

/// Kimi Linear: as many keys as values; decay and output gate pass through one head's width (modeling_kimi.py of the checkpoint;
/// vllm/model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py, 0.24).
void kimi_delta(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix(out.names.attention);
  const std::int64_t heads = m.linear_value_heads, dim = m.linear_value_dim, width = heads * dim;
  const auto linear = [&](const char* name, std::int64_t in, std::int64_t to, Split split) {
    out.linear(prefix + name, in, to, false, Part::mixer, split);
  };
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) linear(name, h, width, Split::rows);
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"})
    out.tensor(prefix + name + ".weight", {width, 1, m.conv_kernel}, Part::mixer, Split::rows);
  out.tensor(prefix + "A_log", {heads}, Part::mixer, Split::rows);
  linear("f_a_proj", h, dim, Split::none);
  linear("f_b_proj", dim, width, Split::rows);
  out.tensor(prefix + "dt_bias", {width}, Part::mixer, Split::rows);
  linear("b_proj", h, heads, Split::rows);
  linear("g_a_proj", h, dim, Split::none);
  linear("g_b_proj", dim, width, Split::rows);
  out.norm(prefix + "o_norm", NormKind::rms, dim);
  linear("o_proj", width, h, Split::columns);
}

/// Mamba, Falcon-Mamba, Jamba.
void mamba1(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix(out.names.state);
  out.linear(prefix + "in_proj", h, 2 * m.inner, m.q_bias, Part::mixer, Split::rows);
  out.tensor(prefix + "conv1d.weight", {m.inner, 1, m.conv_kernel}, Part::mixer, Split::rows);
  if (m.conv_bias) out.tensor(prefix + "conv1d.bias", {m.inner}, Part::mixer, Split::rows);
  out.linear(prefix + "x_proj", m.inner, m.dt_rank + 2 * m.state_size, false, Part::mixer, Split::columns);
  out.linear(prefix + "dt_proj", m.dt_rank, m.inner, true, Part::mixer, Split::rows);
  out.tensor(prefix + "A_log", {m.inner, m.state_size}, Part::mixer, Split::rows);
  out.tensor(prefix + "D", {m.inner}, Part::mixer, Split::rows);
  out.linear(prefix + "out_proj", m.inner, h, m.out_bias, Part::mixer, Split::columns);
  if (!m.ssm_norms) return;
  out.norm(prefix + "dt_layernorm", NormKind::rms, m.dt_rank);
  out.norm(prefix + "b_layernorm", NormKind::rms, m.state_size);
  out.norm(prefix + "c_layernorm", NormKind::rms, m.state_size);
}

/// Mamba-2, Granite 4, Nemotron-H.
void mamba2(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix(out.names.state);
  const std::int64_t convolved = m.inner + 2 * m.groups * m.state_size, heads = m.linear_value_heads;
  out.linear(prefix + "in_proj", h, m.inner + convolved + heads, m.q_bias, Part::mixer, Split::rows);
  out.tensor(prefix + "conv1d.weight", {convolved, 1, m.conv_kernel}, Part::mixer, Split::rows);
  if (m.conv_bias) out.tensor(prefix + "conv1d.bias", {convolved}, Part::mixer, Split::rows);
  for (const char* name : {"dt_bias", "A_log", "D"}) out.tensor(prefix + name, {heads}, Part::mixer, Split::rows);
  out.tensor(prefix + "norm.weight", {m.inner}, Part::norm, Split::rows);
  out.linear(prefix + "out_proj", m.inner, h, m.out_bias, Part::mixer, Split::columns);
}

/// MiniMax-M1. transformers' own class keeps the decays of every head within a block as buffers.
void lightning(const Mixer& m, std::int64_t h, Inventory& out) {
  const std::string prefix(out.names.attention);
  const std::int64_t width = m.q_width();
  out.linear(prefix + "qkv_proj", h, 3 * width, false, Part::mixer, Split::rows);
  out.linear(prefix + "output_gate", h, width, false, Part::mixer, Split::rows);
  out.tensor(prefix + "norm.weight", {width}, Part::norm, Split::rows);
  out.linear(prefix + "out_proj", width, h, false, Part::mixer, Split::columns);
  if (m.chunk == 0) return;
  const auto table = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    out.unlearned(ParameterKind::table, prefix + name, {m.heads, rows, columns}, Part::mixer);
  };
  table("slope_rate", 1, 1);
  table("query_decay", m.chunk, 1);
  table("key_decay", m.chunk, 1);
  table("diagonal_decay", m.chunk, m.chunk);
}

/// LFM2.
void short_conv(const Mixer& m, std::int64_t h, Inventory& out) {
  out.linear("conv.in_proj", h, 3 * h, m.q_bias, Part::mixer, Split::rows);
  out.tensor("conv.conv.weight", {h, 1, m.conv_kernel}, Part::mixer, Split::rows);
  if (m.conv_bias) out.tensor("conv.conv.bias", {h}, Part::mixer, Split::rows);
  out.linear("conv.out_proj", h, h, m.out_bias, Part::mixer, Split::columns);
}

}  // namespace

void mixer_parameters(const Mixer& m, std::int64_t h, NormKind norm, Inventory& out) {
  switch (m.kind) {
    case MixerKind::none:
      return;
    case MixerKind::linear:
      return out.linear("self_attn.linear_attn", h, h, false, Part::mixer, Split::none);
    case MixerKind::attention:
      return attention(m, h, norm, out);
    case MixerKind::mla:
      return m.out_groups > 0 ? grouped_latent(m, h, out) : latent(m, h, out);
    case MixerKind::gated_delta:
      return gated_delta(m, h, out);
    case MixerKind::mamba1:
      return mamba1(m, h, out);
    case MixerKind::mamba2:
      return mamba2(m, h, out);
    case MixerKind::lightning:
      return lightning(m, h, out);
    case MixerKind::short_conv:
      return short_conv(m, h, out);
    case MixerKind::kimi_delta:
      return kimi_delta(m, h, out);
  }
}

}  // namespace oomplan
