#include "search/serving_rate.hpp"

#include <algorithm>

namespace oomplan {
namespace {

/// One small all-reduce over NVLink, and the launch of one layer's kernels, in seconds: orders of magnitude, not measured here.
constexpr double kSmallReduce = 1e-5, kLayerLaunch = 5e-5;

}  // namespace

double tokens_per_second(const ModelCost& m, const ServingRateLoad& l, const Gpu& gpu) {
  const double gpus = static_cast<double>(l.tensor * l.pipeline), stages = static_cast<double>(l.pipeline);
  const double group = std::max(1.0, static_cast<double>(l.running) / stages);
  const double busy = std::min(1.0, static_cast<double>(l.running) / stages);  // fewer requests than stages leave some idle
  const double context = static_cast<double>(l.prompt) + static_cast<double>(l.response) / 2;
  const double reading =
      (static_cast<double>(l.weights) + group * context * static_cast<double>(l.token_bytes)) / gpu.memory_bandwidth;
  const double computing = group * 2 * m.active / gpus / gpu.bf16_flops;
  const double layers = static_cast<double>(l.layers) / stages;
  double step = std::max(reading, computing);
  if (l.tensor > 1 || l.meets) step += 2 * layers * kSmallReduce;
  if (l.eager) step += layers * kLayerLaunch;
  const double prefill = static_cast<double>(l.prompt) * 2 * m.active / gpus / gpu.bf16_flops /
                         static_cast<double>(std::max<std::int64_t>(1, l.response) * std::max<std::int64_t>(1, l.samples));
  return static_cast<double>(l.replicas) / (step / (group * busy) + prefill);
}

}  // namespace oomplan
