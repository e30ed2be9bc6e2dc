#include "search/time_model.hpp"

#include <algorithm>

#include "catalog/parameters.hpp"

namespace oomplan {
namespace {

/// Launching the kernels of one layer without CUDA graphs, and one small all-reduce over NVLink: seconds. They only order
/// layouts that arithmetic and traffic leave equal; orders of magnitude from vendors' documents, not measured here.
constexpr double kLaunch = 5e-5, kAllReduce = 1e-5, kHostLink = 2.5e10;

}  // namespace

ModelCost cost_of(const Architecture& a) {
  const ParameterCounts c = count(a);
  ModelCost m;
  m.active = static_cast<double>(c.active);
  m.parameters = static_cast<double>(c.language);
  for (const auto& run : a.runs)
    m.attention_width += static_cast<double>(run.count) * static_cast<double>(run.layer.mixer.q_width());
  return m;
}

double train_seconds(const ModelCost& m, const TrainLoad& l, const Gpu& gpu) {
  const double tokens = static_cast<double>(l.tokens_per_step), gpus = static_cast<double>(l.gpus);
  const double passes = (l.recompute ? 8.0 : 6.0) + 2.0 * l.log_prob_passes;  // of 1 flop per parameter and token
  const double per_token = passes * m.active + 2 * passes * m.attention_width * static_cast<double>(l.sequence) / 2;
  const double arithmetic = tokens * per_token / gpus / gpu.bf16_flops;
  const double link = std::max(1.0, gpu.link_bandwidth);
  const double gathers = 3.0 + l.log_prob_passes;
  const double shards = l.gpus > 1 ? (gpus - 1) / gpus : 0;
  const double traffic = static_cast<double>(l.micro_batches) * gathers * 2 * m.parameters * shards / link;
  // Ulysses: q, k, v and the output cross the links once each way in forward and backward
  const double exchange = l.context > 1 ? tokens / gpus * m.attention_width * 2 * 4 * 3 / link : 0;
  return std::max(arithmetic, traffic) + exchange + l.offloaded_bytes / kHostLink;
}

double generate_seconds(const ModelCost& m, const GenerateLoad& l, const Gpu& gpu) {
  const double replicas = static_cast<double>(std::max<std::int64_t>(1, l.replicas));
  const double sequences = static_cast<double>(l.sequences) / replicas;
  const double running = std::max(1.0, std::min(static_cast<double>(l.running), sequences));
  const double waves = std::max(1.0, sequences / running);
  const double context = static_cast<double>(l.prompt) + static_cast<double>(l.response) / 2;
  const double bytes = static_cast<double>(l.weights) + running * context * static_cast<double>(l.token_bytes);
  const double arithmetic = running * 2 * m.active / static_cast<double>(l.tensor) / gpu.bf16_flops;
  double step = std::max(bytes / gpu.memory_bandwidth, arithmetic);
  if (l.tensor > 1) step += kAllReduce * static_cast<double>(l.tensor);
  if (l.eager) step += kLaunch;
  const double prefill =
      sequences * static_cast<double>(l.prompt) * 2 * m.active / static_cast<double>(l.tensor) / gpu.bf16_flops;
  return waves * static_cast<double>(l.response) * step + prefill;
}

}  // namespace oomplan
