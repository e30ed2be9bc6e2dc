// LitGPT's adapters other than LoRA: prefixes that attention reads from the third layer on, each head's result behind a gate
// (LLaMA-Adapter).
//
// Lightning-AI/litgpt, litgpt/adapter.py, 0.3.1 and 0.4.13. The loops validate in front of the first step, without gradients, and
// the keys and values that layers make of their prefixes are kept from then on (`adapter_kv_cache`): prefixes get no gradient.
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

constexpr bool has_prefixes(AdapterKind k) { return k == AdapterKind::adapter || k == AdapterKind::adapter_v2; }
/// Layers in front of the first that has a prefix (Config.adapter_start_layer).
inline constexpr std::int64_t kLayersWithoutPrefix = 2;

Architecture with_runs_of_prefixes(Architecture);
/// Why prefixes are not described beside this model; "" when they are, or when there are none.
std::string unsupported_prefix(const Architecture&, const KernelOptions&);

/// y + gate * attention over the prefix. `own`: the layer's own attention, whose queries are `q`; `tokens` of the prefix.
Tensor with_prefix(Eager& g, const Tensor& own, const Tensor& q, int gates, const Shape& out, std::int64_t tokens);

/// Keys and values of all prefixes, in 16 bits.
Bytes prefix_cache(const Architecture&, std::int64_t tokens);

}  // namespace oomplan
