#include "training/megatron_areal.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

/// estimate_stage_parameter_buckets: the output projection counts H * H, and of experts those of one rank.
double parameters_of(const Architecture& a, const Layer& layer, const Layout& l) {
  const auto hidden = static_cast<double>(a.hidden);
  const Mixer& m = layer.mixer;
  const auto queries = static_cast<double>(m.heads * m.head_dim), keys = static_cast<double>(m.kv_heads * m.head_dim);
  const bool bias = m.q_bias && !a.family.starts_with("qwen2");  // Qwen2's configuration has no attention_bias
  const double attention = hidden * (queries + 2 * keys + hidden) + (bias ? queries + 2 * keys + hidden : 0) + 2 * hidden;
  const FeedForward& f = layer.feed_forward;
  const auto block = [&](std::int64_t width, bool gated) { return hidden * static_cast<double>(width) * (gated ? 3 : 2); };
  if (f.kind != FeedForwardKind::moe) return attention + block(f.width, f.kind == FeedForwardKind::gated);
  const double local = static_cast<double>((f.experts + l.expert - 1) / std::max<std::int64_t>(1, l.expert));
  const double router = static_cast<double>(f.experts) * (hidden + (f.correction_bias ? 1 : 0));
  return attention + router + local * block(f.expert_width, f.experts_gated) +
         (f.shared_width > 0 ? block(f.shared_width, true) : 0);
}

/// _compute_stage_layer_lengths. Only the first and the last stage may have no layer.
class Partition {
 public:
  Partition(const std::vector<double>& weights, double first, double last, std::size_t stages)
      : layers_(weights.size()), stages_(stages), first_(first), last_(last), sums_{0} {
    for (const double w : weights) sums_.push_back(sums_.back() + w);
    constexpr double kNever = std::numeric_limits<double>::infinity();
    load_.assign(stages + 1, std::vector<double>(layers_ + 1, kNever));
    begins_.assign(stages + 1, std::vector<std::size_t>(layers_ + 1, 0));
    load_[0][0] = 0;
    for (std::size_t stage = 1; stage <= stages; ++stage)
      for (std::size_t end = 0; end <= layers_; ++end) choose(stage, end);
  }
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> out(stages_, 0);
    if (load_[stages_][layers_] == std::numeric_limits<double>::infinity()) return {};
    std::size_t end = layers_;
    for (std::size_t stage = stages_; stage > 0; --stage) {
      const std::size_t begin = begins_[stage][end];
      out[stage - 1] = static_cast<std::int64_t>(end - begin);
      end = begin;
    }
    return out;
  }

 private:
  void choose(std::size_t stage, std::size_t end) {
    const bool outer = stage == 1 || stage == stages_;
    const double base = stage == 1 ? first_ : stage == stages_ ? last_ : 0;
    for (std::size_t begin = 0; begin <= end; ++begin) {
      if (!outer && begin == end) continue;
      const double most = std::max(load_[stage - 1][begin], base + (sums_[end] - sums_[begin]));
      if (most >= load_[stage][end]) continue;
      load_[stage][end] = most;
      begins_[stage][end] = begin;
    }
  }

  std::size_t layers_, stages_;
  double first_, last_;
  std::vector<double> sums_;
  std::vector<std::vector<double>> load_;
  std::vector<std::vector<std::size_t>> begins_;
};

}  // namespace

std::vector<std::int64_t> areal_stage_layers(const Architecture& a, const Trainer& t) {
  const std::int64_t stages = t.layout.pipeline * t.megatron.virtual_stages;
  // the split is written to mbridge's configuration; Megatron-Bridge makes one of its own (areal/models/mcore/registry.py)
  if (t.layout.pipeline <= 1 || t.megatron.maker == ModelMaker::megatron_bridge) return {};
  std::vector<double> weights;
  for (const LayerRun& run : a.runs)
    weights.insert(weights.end(), static_cast<std::size_t>(run.count), parameters_of(a, run.layer, t.layout));
  const double table = static_cast<double>(a.vocab) * static_cast<double>(a.hidden);
  return Partition(weights, table, table, static_cast<std::size_t>(stages)).lengths();
}

std::int64_t areal_padded_tokens(const Trainer& t) {
  const Layout& l = t.layout;
  const std::int64_t unit = l.context > 1 ? 2 * l.tensor * l.context : l.tensor;
  constexpr std::int64_t kPage = 256;
  return round_up(t.tokens_per_micro_batch, std::lcm(unit, kPage));
}

std::int64_t megatron_tokens(const Trainer& t) {
  if (t.sequences_per_micro_batch > 0) return t.sequence_tokens;
  return t.loop.pads_to_pages ? areal_padded_tokens(t) : t.tokens_per_micro_batch;
}

bool areal_gathers(const Trainer& t) { return compare_versions(t.framework_version, "2.0.0") >= 0; }

ArealCut areal_cut(const Trainer& t, const MegatronUse& use) {
  const std::int64_t most = t.megatron.log_probs_chunk > 0 ? t.megatron.log_probs_chunk : 1024;  // logprobs_chunk_size
  const std::int64_t tokens = std::max<std::int64_t>(1, ceil_div(megatron_tokens(t), t.layout.context));
  ArealCut out;
  constexpr std::int64_t kPadding = 255;  // that a budget may have behind its sequences already (areal_padded_tokens)
  if (use.sequence > 0) out.least = std::max<std::int64_t>(1, ceil_div(t.tokens_per_micro_batch - kPadding, use.sequence));
  out.sequences = t.sequences_per_micro_batch > 0 ? t.sequences_per_micro_batch : std::max<std::int64_t>(3, out.least);
  out.tokens = ceil_div(tokens, out.sequences);
  if (t.megatron.loss == MegatronLoss::areal_whole && t.layout.tensor > 1) {
    out.chunks = 0;
    return out;
  }
  out.chunks = ceil_div(tokens, most);
  out.rows = ceil_div(tokens, out.chunks);  // the last chunk is smaller; here all are alike and make as many rows in all
  return out;
}

}  // namespace oomplan
