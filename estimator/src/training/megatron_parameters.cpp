// Parameters that a rank of Megatron-core holds, and what its placeholder gradients take.
#include <set>
#include <utility>

#include "training/megatron_plan.hpp"

namespace oomplan {
namespace {

/// Parameters of one layer on a rank, and the shapes of its matrices.
class Counter {
 public:
  Counter(const Architecture& a, const ChunkOptions& o) : a_(a), o_(o) {}
  MegatronParameters out;
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;

  void matrix(std::int64_t rows, std::int64_t columns) {
    out.dense += rows * columns;
    shapes.insert({rows, columns});
  }
  void norm(NormKind kind, std::int64_t width) { out.dense += kind == NormKind::layer ? 2 * width : width; }
  void layer(const Layer& l) {
    attention(l);
    feed_forward(l);
  }

 private:
  void attention(const Layer& l) {
    const Mixer& m = l.mixer;
    const std::int64_t t = o_.te.tensor;
    if (m.kind == MixerKind::mla) return latent_attention(l);
    const std::int64_t projected = (m.heads + 2 * m.kv_heads) * m.head_dim / t;
    norm(l.norm, a_.hidden);
    matrix(projected, a_.hidden);
    if (m.q_bias) out.dense += projected;
    matrix(a_.hidden, m.heads * m.head_dim / t);
    if (m.out_bias) out.dense += a_.hidden;
    if (m.qk_norm == QkNorm::head) {
      norm(l.norm, m.head_dim);
      norm(l.norm, m.head_dim);
    }
  }
  /// Down-projections are on every rank.
  void latent_attention(const Layer& l) {
    const Mixer& m = l.mixer;
    const std::int64_t heads = m.heads / o_.te.tensor, width = m.nope_head_dim + m.rope_head_dim;
    norm(l.norm, a_.hidden);
    if (m.q_lora_rank > 0) {
      matrix(m.q_lora_rank, a_.hidden);
      norm(l.norm, m.q_lora_rank);
    }
    matrix(heads * width, m.q_lora_rank > 0 ? m.q_lora_rank : a_.hidden);
    matrix(m.kv_lora_rank + m.rope_head_dim, a_.hidden);
    norm(l.norm, m.kv_lora_rank);
    matrix(heads * (m.nope_head_dim + m.value_head_dim), m.kv_lora_rank);
    matrix(a_.hidden, heads * m.value_head_dim);
  }
  void feed_forward(const Layer& l) {
    const FeedForward& f = l.feed_forward;
    norm(l.norm, a_.hidden);
    if (f.kind == FeedForwardKind::moe) return experts(f);
    const std::int64_t width = f.width / o_.te.tensor, inner = f.kind == FeedForwardKind::gated ? 2 * width : width;
    matrix(inner, a_.hidden);
    matrix(a_.hidden, width);
    if (f.bias) out.dense += inner + a_.hidden;
  }

  void experts(const FeedForward& f) {
    const std::int64_t width = f.expert_width / o_.expert_tensor, local = f.experts / o_.expert;
    out.dense += f.experts * a_.hidden;  // the router's matrix has a gradient of its own
    const std::int64_t inner = (f.experts_gated ? 2 : 1) * width;
    out.experts += local * (inner + width) * a_.hidden;
    if (o_.settings.te_release != TeRelease::v2_9 || !o_.settings.grouped_experts) {
      shapes.insert({inner, a_.hidden});
      shapes.insert({a_.hidden, width});
    }
    if (f.shared_width == 0) return;
    matrix(2 * f.shared_width / o_.te.tensor, a_.hidden);
    matrix(a_.hidden, f.shared_width / o_.te.tensor);
  }

  const Architecture& a_;
  const ChunkOptions& o_;
};

}  // namespace

MegatronParameters megatron_parameters(const Architecture& a, const std::vector<ChunkOptions>& chunks) {
  Counter counter(a, chunks.front());
  for (const auto& chunk : chunks) {
    for (const int run : all_layers(a, chunk)) counter.layer(a.runs[static_cast<std::size_t>(run)].layer);
    const std::int64_t rows = chunk.padded_vocab / chunk.te.tensor;
    const bool embeds = chunk.first || chunk.mtp > 0;
    if (embeds) counter.out.dense += rows * a.hidden + a.position_rows * a.hidden;
    for (std::int64_t block = 0; block < chunk.mtp; ++block) {  // of both inputs and the output
      counter.matrix(a.hidden / chunk.te.tensor, 2 * a.hidden);
      for (int n = 0; n < 2; ++n) counter.norm(a.runs.back().layer.norm, a.hidden);
      counter.norm(a.final_norm, a.hidden);
    }
    if (!chunk.last) continue;
    counter.norm(a.final_norm, a.hidden);
    counter.matrix(rows, a.hidden);
    if (a.tied && embeds) counter.out.dense -= rows * a.hidden;
  }
  if (chunks.front().te.fused_gradients)
    for (const auto& [rows, columns] : counter.shapes) counter.out.placeholders += bytes_of(rows * columns, DType::bf16);
  return counter.out;
}

}  // namespace oomplan
