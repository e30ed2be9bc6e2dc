// Sources: vllm/config/vllm.py _set_cudagraph_sizes and vllm/v1/cudagraph_dispatcher.py initialize_cudagraph_keys, 0.23: which
// sizes are captured; vllm/v1/attention/backends/flash_attn.py, 0.19: the bound of the splits.
#include "inference/captured_graphs.hpp"

#include <algorithm>

namespace oomplan {
namespace {

/// 1, 2, 4, every 8 up to 256, then in wider steps.
std::int64_t sizes_up_to(std::int64_t most, std::int64_t wide_step) {
  std::int64_t n = 0;
  for (const std::int64_t small : {1, 2, 4})
    if (small <= most) ++n;
  n += std::min<std::int64_t>(most, 255) / 8;
  if (most >= 256) n += (most - 256) / wide_step + 1;
  return n;
}

/// Of one graph: a driver's record for every kernel, of which a kind of layer has always as many.
Bytes nodes_of_a_graph(const ServerModel& m, const ServerFacts& f, const Stage& s) {
  Bytes all = 0;
  std::int64_t layers = 0;
  for (const ServerLayerRun& run : m.totals) {
    const ServerLayer& l = m.kinds[static_cast<std::size_t>(run.kind)];
    const Bytes experts = l.experts > 0 ? f.graph_experts + (l.width > 0 ? f.graph_shared_experts : 0) : 0;
    all += run.count * (f.graph_layer + experts);
    layers += run.count;
  }
  return layers > 0 ? all / layers * s.layers : 0;
}

/// Decoding in one graph is bound to a number of splits, and every split's part of the output is a tensor in fp32: of all heads
/// and the largest batch. Models whose images see one another take another kernel (vllm/config/model.py is_mm_prefix_lm, 0.19).
Bytes split_outputs(const ServerModel& m, const ServerFacts& f, const Stage& s, const CaptureAsk& ask, std::int64_t largest) {
  if (f.graph_splits == 0 || (m.multimodal && m.family.starts_with("gemma3"))) return 0;
  const std::int64_t width = m.mla ? ceil_div(m.heads, ask.tensor) * m.latent : s.attention;
  return f.graph_splits * bytes_of(largest * width, DType::fp32);
}

}  // namespace

Bytes captured_graphs(const ServerModel& m, const ServerFacts& f, const Stage& s, const CaptureAsk& ask) {
  const std::int64_t most = std::min({2 * ask.max_running, ask.batched_tokens, f.graph_batch[0]});
  const std::int64_t decoding = f.graph_modes > 1 ? std::min(ask.max_running, most) : 0;
  const std::int64_t graphs = sizes_up_to(most, f.graph_wide_step) + sizes_up_to(decoding, f.graph_wide_step);
  const std::int64_t sets = s.adapters > 0 && !f.second_runner ? f.adapter_graph_sets : 1;
  const Bytes nodes = graphs * nodes_of_a_graph(m, f, s) * sets;
  const Bytes activations = bytes_of(most * (3 * m.hidden + s.attention + s.gate_up + s.activation), m.compute);
  return nodes + f.blas + activations + split_outputs(m, f, s, ask, decoding);
}

}  // namespace oomplan
