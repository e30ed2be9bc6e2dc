#include "inference/layer_tensors.hpp"

#include <algorithm>

namespace oomplan {
namespace {

constexpr std::size_t kUp = static_cast<std::size_t>(Fused::experts_up), kDown = static_cast<std::size_t>(Fused::experts_down);
constexpr std::int64_t kRoutedOfDeepSeekV3 = 256;

Bytes on_rank(const FusedMatrix& m, const ServerLayer& l, std::int64_t tp, std::int64_t split_over) {
  return m.whole + ceil_div(m.split, split_over) + std::max<std::int64_t>(1, l.kv_heads / tp) * m.kv_head;
}

/// Ranks that the matrix is divided over.
std::int64_t ranks_of(std::size_t matrix, const RankShare& cut) {
  switch (static_cast<Fused>(matrix)) {
    case Fused::gate_up:
    case Fused::down:
      return RankShare::ranks(cut.dense, cut.tensor);
    case Fused::shared_gate_up:
    case Fused::shared_down:
      return RankShare::ranks(cut.shared, cut.tensor);
    default:
      return cut.tensor;
  }
}

/// Elements of half a byte and a scale of one byte for 32 of them. Triton's kernels for Hopper swizzle scales in rows of 256 and
/// keep those that were loaded; their elements are padded along what is summed over, from 0.17 to 0.21 (hopper_value.py)
/// (vllm/model_executor/layers/quantization/mxfp4.py process_weights_after_loading and utils/
/// mxfp4_utils.py _swizzle_mxfp4, 0.14; triton_kernels/tensor_details/layout_details/hopper_scale.py; PR 46549 frees them).
ExpertTensors padded(std::int64_t experts, std::int64_t width, std::int64_t hidden, const ServerLayer& l, const ServerFacts& f) {
  const bool triton = f.mxfp4_keeps_scales;
  const std::int64_t w = round_up(width, f.mxfp4_width_step), h = triton ? hidden : round_up(hidden, f.mxfp4_hidden_step);
  const std::int64_t rows = (l.experts_gated ? 2 : 1) * w;
  ExpertTensors out;
  const auto summed = [&](std::int64_t n) { return triton ? round_up(n, f.mxfp4_hidden_step) : n; };
  out.up = experts * rows * summed(h) / 2;
  out.down = experts * h * summed(w) / 2;
  const auto scales = [&](std::int64_t n, std::int64_t k) { return experts * n * ceil_div(k, 32); };
  out.up_scales = scales(rows, h);
  out.down_scales = scales(h, w);
  if (l.expert_bias > 0) out.biases = experts * (rows + h) * (f.mxfp4_keeps_scales ? 4 : 2);
  if (!triton) return out;
  out.left = out.up_scales + out.down_scales;
  out.up_scales = scales(round_up(rows, 256), h);
  out.down_scales = scales(round_up(h, 256), w);
  return out;
}

}  // namespace

std::int64_t experts_of_rank(const ServerLayer& l, const ServerFacts& f, const RankShare& cut) {
  const std::int64_t all = l.experts + f.redundant_experts, rest = all % cut.expert;
  return all / cut.expert + (f.last_rank_takes_rest ? rest : std::min<std::int64_t>(rest, 1));
}

ExpertTensors expert_tensors(const ServerModel& m, const ServerLayer& l, const ServerFacts& f, const RankShare& cut) {
  const std::int64_t parts = cut.expert_width_parts(), experts = experts_of_rank(l, f, cut);
  if (m.weights == DType::mxfp4 && l.experts > 0) return padded(experts, ceil_div(l.expert_width, parts), m.hidden, l, f);
  const auto share = [&](Bytes one) { return ceil_div(experts * one, parts); };
  ExpertTensors out;
  out.up = share(l.matrices[kUp].split);
  out.down = share(l.matrices[kDown].split);
  out.up_scales = share(l.scales[kUp].split);
  out.down_scales = share(l.scales[kDown].split);
  out.biases = share(l.expert - l.expert_whole) - out.all() + experts * l.expert_whole;  // and what rounding to bytes leaves
  return out;
}

LayerTensors layer_tensors(const ServerModel& m, const ServerLayer& l, const ServerFacts& f, const RankShare& cut) {
  LayerTensors out;
  for (std::size_t i = 0; i < kUp; ++i) {
    out.add(on_rank(l.matrices[i], l, cut.tensor, ranks_of(i, cut)));
    out.add(on_rank(l.scales[i], l, cut.tensor, ranks_of(i, cut)));
  }
  out.add(l.router);
  if (l.experts == 0) return out;
  const ExpertTensors experts = expert_tensors(m, l, f, cut);
  for (const Bytes tensor : {experts.up, experts.down, experts.up_scales, experts.down_scales, experts.left}) out.add(tensor);
  return out;
}

Bytes shared_expert_replicas(const ServerModel& m, const ServerLayer& l, const ServerFacts& f, const RankShare& cut) {
  if (!f.shared_expert_replicas || l.experts != kRoutedOfDeepSeekV3 || !m.mla) return 0;
  Bytes shared = 0;
  for (const Fused matrix : {Fused::shared_gate_up, Fused::shared_down})
    shared += l.matrices[static_cast<std::size_t>(matrix)].split + l.scales[static_cast<std::size_t>(matrix)].split;
  return shared - ceil_div(shared, RankShare::ranks(cut.shared, cut.tensor));
}

}  // namespace oomplan
