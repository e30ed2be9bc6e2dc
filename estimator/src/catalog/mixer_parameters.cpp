// The parameter tensors of each kind of mixer.
// Shapes: transformers 5.23, models/<family>/modeling_<family>.py, of the families named at each function.
#include <string>

#include "catalog/inventory.hpp"

namespace oomplan {
namespace {

using Part = ParameterPart;
using Split = SplitAxis;

std::string joined(std::string_view a, std::string_view b) { return std::string(a) + std::string(b); }

/// q and k norms: of one head, or of all heads together.
void qk_norms(Inventory& out, const Mixer& m, NormKind kind) {
  if (m.qk_norm == QkNorm::none || m.qk_norm == QkNorm::unweighted) return;
  const bool full = m.qk_norm == QkNorm::full;
  const std::string prefix(out.names.attention);
  out.norm(prefix + std::string(out.names.q_norm), kind, full ? m.q_width() : m.head_dim);
  if (!m.shared_kv) out.norm(prefix + std::string(out.names.k_norm), kind, full ? m.k_width() : m.head_dim);
}

void attention(const Mixer& m, std::int64_t h, NormKind norm, Inventory& out) {
  const Names& names = out.names;
  const std::int64_t q_width = m.q_width() * (m.output_gate ? 2 : 1);
  const auto linear = [&](std::string_view name, std::int64_t in, std::int64_t width, bool bias, Split split) {
    out.linear(joined(names.attention, name), in, width, bias, Part::mixer, split);
  };
  if (m.fused_qkv) {
    linear(names.qkv, h, q_width + m.k_width() + m.v_width(), m.q_bias, Split::rows);
  } else if (m.query_group_width > 0) {  // Step-3: the query passes through a shared, normed projection
    linear(names.q, h, m.query_group_width, m.q_bias, Split::none);
    out.norm(joined(names.attention, "inter_norm"), NormKind::rms, m.query_group_width);
    linear("wq", m.query_group_width, q_width, m.q_bias, Split::rows);
  } else {
    linear(names.q, h, q_width, m.q_bias, Split::rows);
  }
  if (!m.fused_qkv && !m.shared_kv) {
    linear(names.k, h, m.k_width(), m.k_bias, Split::kv_rows);
    if (!m.key_is_value) linear(names.v, h, m.v_width(), m.v_bias, Split::kv_rows);
  }
  linear(names.out, m.out_width(), h, m.out_bias, Split::columns);
  if (m.sinks) out.tensor(joined(names.attention, names.sinks), {m.heads}, Part::mixer, Split::rows);
  qk_norms(out, m, norm == NormKind::none || norm == NormKind::non_parametric ? NormKind::rms : norm);
}

}  // namespace

void mixer_parameters(const Mixer& m, std::int64_t h, NormKind norm, Inventory& out) {
  switch (m.kind) {
    case MixerKind::none: return;
    case MixerKind::linear: out.linear("self_attn.linear_attn", h, h, false, Part::mixer, Split::none); return;
    case MixerKind::attention: attention(m, h, norm, out); return;
    default: return;
  }
}

}  // namespace oomplan
