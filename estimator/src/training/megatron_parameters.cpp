// Parameters that a rank of Megatron-core holds, and what its placeholder gradients take.
#include <initializer_list>
#include <set>
#include <utility>

#include "layers/families.hpp"
#include "layers/megatron_vision.hpp"
#include "layers/te_fp8_tensors.hpp"
#include "training/megatron_plan.hpp"

namespace oomplan {
namespace {

/// Parameters of a chunk's layers on a rank in the order in which its modules register them, and the shapes of its matrices.
class Counter {
 public:
  Counter(const Architecture& a, const ChunkOptions& o) : a_(a), o_(o) {}
  std::vector<MegatronTensor> dense, of_experts, adapters, expert_adapters, untrained;
  std::set<std::pair<std::int64_t, std::int64_t>> shapes, adapter_shapes;

  void matrix(std::int64_t rows, std::int64_t columns) {
    dense.push_back(multiplied(rows, columns));
    shapes.insert({rows, columns});
  }
  /// An adapter's pair of matrices, of this rank.
  void pair(std::int64_t rows_in, std::int64_t in, std::int64_t out, std::int64_t rank, bool beside_experts = false) {
    for (const auto& [rows, columns] : {std::pair{rows_in, in}, {out, rank}}) {
      (beside_experts ? expert_adapters : adapters).push_back({rows * columns});
      adapter_shapes.insert({rows, columns});
    }
  }
  void vector(std::int64_t width) { dense.push_back({width, false}); }
  void norm(NormKind kind, std::int64_t width) {
    vector(width);
    if (kind == NormKind::layer) vector(width);
  }
  /// All but the adapters goes to `frozen`.
  void freeze(std::vector<MegatronTensor>& frozen) {
    freeze_into(frozen);
    dense = std::move(adapters);
    of_experts = std::move(expert_adapters);
    shapes = std::move(adapter_shapes);
  }
  /// What has come so far is not trained.
  void leave_untrained() {
    freeze_into(untrained);
    shapes.clear();
  }
  /// `wide`: its products stay in 16 bits.
  void layer(const Layer& l, bool wide) {
    wide_ = wide;
    const bool behind = l.norm_place == NormPlace::pre_and_post;
    attention(l);
    if (behind) norm(l.norm, a_.hidden);
    feed_forward(l);
    if (behind) norm(l.norm, a_.hidden);
    wide_ = false;
  }

 private:
  void freeze_into(std::vector<MegatronTensor>& frozen) {
    for (auto* all : {&dense, &of_experts}) {
      frozen.insert(frozen.end(), all->begin(), all->end());
      all->clear();
    }
  }
  /// A matrix of a layer.
  MegatronTensor multiplied(std::int64_t rows, std::int64_t columns) const {
    MegatronTensor out{rows * columns};
    out.multiplied_in_8_bits = o_.te.fp8 != Fp8Recipe::none && !wide_;
    out.stored_in_8_bits = out.multiplied_in_8_bits && o_.settings.fp8_parameters;
    if (!out.multiplied_in_8_bits) return out;
    out.row_scales = scales_of_matrix(rows, columns, false, o_.te.fp8);
    out.column_scales = scales_of_matrix(rows, columns, true, o_.te.fp8);
    return out;
  }
  void attention(const Layer& l) {
    const Mixer& m = l.mixer;
    const std::int64_t t = o_.te.tensor;
    if (m.kind == MixerKind::mla) return latent_attention(l);
    if (m.kind == MixerKind::gated_delta) return o_.of_slime ? whole_linear_attention(l) : linear_attention(l);
    const std::int64_t projected = ((m.output_gate ? 2 : 1) * m.heads + 2 * m.kv_heads) * m.head_dim / t;
    matrix(a_.hidden, m.heads * m.head_dim / t);
    if (m.out_bias) vector(a_.hidden);
    norm(l.norm, a_.hidden);
    matrix(projected, a_.hidden);
    const MegatronAdapters& beside = o_.adapters;
    if (beside.qkv) pair(beside.rank / t, a_.hidden, projected, beside.rank);
    if (beside.proj) pair(beside.rank, m.heads * m.head_dim / t, a_.hidden / t, beside.rank);
    if (m.q_bias) vector(projected);
    if (m.qk_norm == QkNorm::head) {
      norm(l.norm, m.head_dim);
      norm(l.norm, m.head_dim);
    }
    if (m.qk_norm == QkNorm::full) {  // of all ranks' heads
      norm(l.norm, m.heads * m.head_dim);
      norm(l.norm, m.kv_heads * m.head_dim);
    }
  }
  /// GatedDeltaNet: its own vectors, the product and its norm, the convolution, the norm of a head, and the product back.
  void linear_attention(const Layer& l) {
    const Mixer& m = l.mixer;
    const std::int64_t t = o_.te.tensor, values = m.linear_value_heads * m.linear_value_dim,
                       convolved = 2 * m.linear_key_heads * m.linear_key_dim + values;
    const std::int64_t projected = (convolved + values + 2 * m.linear_value_heads) / t;
    const MegatronAdapters& beside = o_.adapters;
    for (int n = 0; n < 2; ++n) vector(m.linear_value_heads / t);
    norm(l.norm, a_.hidden);
    matrix(projected, a_.hidden);
    if (beside.in_proj) pair(beside.rank / t, a_.hidden, projected, beside.rank);
    vector(convolved / t * m.conv_kernel);
    norm(NormKind::rms, m.linear_value_dim);
    matrix(a_.hidden, values / t);
    if (beside.out_proj) pair(beside.rank, values / t, a_.hidden / t, beside.rank);
  }
  /// slime's: PyTorch's own modules, whole on every rank, and the norm in front of them.
  void whole_linear_attention(const Layer& l) {
    const Mixer& m = l.mixer;
    const FamilyCode* code = find_family_code(a_.family);
    const std::int64_t values = m.linear_value_heads * m.linear_value_dim,
                       convolved = 2 * m.linear_key_heads * m.linear_key_dim + values;
    const auto plain = [&](std::int64_t elements) { dense.push_back({elements}); };
    for (int n = 0; n < 2; ++n) vector(m.linear_value_heads);
    plain(convolved * m.conv_kernel);
    if (code != nullptr && code->delta_apart)
      for (const std::int64_t rows : {convolved, values, m.linear_value_heads, m.linear_value_heads}) plain(rows * a_.hidden);
    else
      for (const std::int64_t rows : {convolved + values, 2 * m.linear_value_heads}) plain(rows * a_.hidden);
    vector(m.linear_value_dim);
    plain(a_.hidden * values);
    vector(a_.hidden);
  }
  /// Down-projections are on every rank, unless they are split.
  void latent_attention(const Layer& l) {
    const Mixer& m = l.mixer;
    const std::int64_t heads = m.heads / o_.te.tensor, width = m.nope_head_dim + m.rope_head_dim;
    const std::int64_t parts = splits_latents(o_.settings, o_.te) ? o_.te.tensor : 1;
    norm(l.norm, a_.hidden);
    matrix(a_.hidden, heads * m.value_head_dim);
    if (m.out_bias) vector(a_.hidden);
    if (m.q_lora_rank > 0) {
      matrix(m.q_lora_rank / parts, a_.hidden);
      norm(l.norm, m.q_lora_rank);
    }
    matrix(heads * width, m.q_lora_rank > 0 ? m.q_lora_rank : a_.hidden);
    matrix((m.kv_lora_rank + m.rope_head_dim) / parts, a_.hidden);
    norm(l.norm, m.kv_lora_rank);
    matrix(heads * (m.nope_head_dim + m.value_head_dim), m.kv_lora_rank);
  }
  void feed_forward(const Layer& l) {
    const FeedForward& f = l.feed_forward;
    norm(l.norm, a_.hidden);
    if (f.kind == FeedForwardKind::moe && o_.gemma) {
      for (int n = 0; n < 4; ++n) vector(a_.hidden);  // in front of the shared one, behind both, of the router
      vector(f.experts);
      return experts(bridged_experts(f));
    }
    if (f.kind == FeedForwardKind::moe) return experts(f);
    const std::int64_t width = f.width / o_.te.tensor, inner = f.kind == FeedForwardKind::gated ? 2 * width : width;
    matrix(inner, a_.hidden);
    if (f.bias) vector(inner);
    matrix(a_.hidden, width);
    const MegatronAdapters& beside = o_.adapters;
    if (beside.fc1) pair(beside.rank / o_.te.tensor, a_.hidden, inner, beside.rank);
    if (beside.fc2) pair(beside.rank, width, a_.hidden / o_.te.tensor, beside.rank);
    if (f.bias) vector(a_.hidden);
  }

  void experts(const FeedForward& f) {
    const std::int64_t width = f.expert_width / o_.expert_tensor, local = f.experts / o_.expert;
    const std::int64_t inner = (f.experts_gated ? 2 : 1) * width;
    dense.push_back({f.experts * a_.hidden});  // the router's matrix has a gradient of its own
    if (f.router_bias) vector(f.experts);
    const std::int64_t together = o_.settings.grouped_experts ? local : 1;  // first products of so many, then their second ones
    for (std::int64_t e = 0; e < local; e += together) {
      for (std::int64_t i = 0; i < together; ++i) of_experts.push_back(multiplied(inner, a_.hidden));
      if (f.expert_bias) of_experts.insert(of_experts.end(), static_cast<std::size_t>(together), {inner, false});
      for (std::int64_t i = 0; i < together; ++i) of_experts.push_back(multiplied(a_.hidden, width));
      if (f.expert_bias) of_experts.insert(of_experts.end(), static_cast<std::size_t>(together), {a_.hidden, false});
    }
    // a rounded copy has no grad_added_to_main_grad, for which placeholders are made
    if ((o_.settings.te_release != TeRelease::v2_9 || !o_.settings.grouped_experts) && !o_.settings.int4_experts) {
      shapes.insert({inner, a_.hidden});
      shapes.insert({a_.hidden, width});
    }
    const MegatronAdapters& beside = o_.adapters;  // a pair for all experts of the rank
    if (beside.fc1) pair(beside.rank, a_.hidden, inner, beside.rank, true);
    if (beside.fc2) pair(beside.rank, width, a_.hidden, beside.rank, true);
    if (f.shared_width == 0) return;
    if (f.shared_gate) dense.push_back({a_.hidden});
    const std::int64_t t = o_.te.tensor, shared = f.shared_width / t, columns = (f.experts_gated ? 2 : 1) * shared;
    matrix(columns, a_.hidden);
    matrix(a_.hidden, shared);
    if (beside.fc1) pair(beside.rank / t, a_.hidden, columns, beside.rank);
    if (beside.fc2) pair(beside.rank, shared, a_.hidden / t, beside.rank);
  }

  const Architecture& a_;
  const ChunkOptions& o_;
  bool wide_ = false;
};

/// A vision tower, in front of the language model. Norms, the patches' convolution, the table of positions and biases behind a
/// sum over ranks are on every rank.
/// `whole`: transformers' own tower is, on every rank.
void count_tower(const Tower& t, bool whole, const ChunkOptions& chunk, Counter& to) {
  const Architecture model = tower_model(t);
  ChunkOptions options = tower_options(t, chunk);
  if (whole) {
    options.te.tensor = 1;
    options.te.fused_gradients = false;
  }
  const std::int64_t ranks = options.te.tensor, wide = t.merge * t.merge * t.hidden;
  Counter tower(model, options);
  Counter mergers(model, options);
  const auto merger = [&](std::int64_t normed) {
    mergers.norm(model.final_norm, normed);
    mergers.matrix(wide / ranks, wide);
    mergers.vector(wide / ranks);
    mergers.matrix(t.out_hidden, wide / ranks);
    mergers.vector(t.out_hidden);
    const MegatronAdapters& beside = options.adapters;
    if (beside.fc1) mergers.pair(beside.rank / ranks, wide, wide / ranks, beside.rank);
    if (beside.fc2) mergers.pair(beside.rank, wide / ranks, t.out_hidden / ranks, beside.rank);
  };
  constexpr std::int64_t kChannels = 3;
  tower.dense.push_back({t.hidden * kChannels * t.temporal_patch * t.patch * t.patch});
  if (t.positions > 0) {
    tower.vector(t.hidden);
    tower.dense.push_back({t.positions * t.hidden});
  }
  for (std::int64_t block = 0; block < t.layers; ++block) tower.layer(model.runs[0].layer, false);
  for (std::int64_t i = 0; i < t.deepstack; ++i) merger(wide);
  merger(t.hidden);
  const bool frozen = chunk.tower != TowerTraining::all;
  for (Counter* part : {&tower, &mergers}) to.adapters.insert(to.adapters.end(), part->adapters.begin(), part->adapters.end());
  auto& of_mergers = chunk.adapters.rank > 0                   ? to.untrained
                     : chunk.adapters.frozen                   ? to.adapters
                     : !frozen                                 ? tower.dense
                     : chunk.tower == TowerTraining::projector ? to.dense
                                                               : to.untrained;
  of_mergers.insert(of_mergers.end(), mergers.dense.begin(), mergers.dense.end());
  auto& of_body = frozen || chunk.adapters.rank > 0 ? to.untrained : to.dense;
  of_body.insert(of_body.begin(), tower.dense.begin(), tower.dense.end());
  if (!options.te.fused_gradients) return;
  if (chunk.adapters.rank > 0) return;  // what is frozen has no gradient
  for (const Counter* part : {&tower, &mergers}) to.shapes.insert(part->shapes.begin(), part->shapes.end());
}

/// Kimi K2.5's tower and projector, PyTorch's own modules, in the order of modeling_kimi_k25.py: a table of positions, blocks of
/// two norms, queries, keys and values in one, and a feed-forward block of two; in front of the merging products a norm of a
/// patch.
void count_moonvit(const Tower& t, std::int64_t hidden, Counter& to) {
  std::vector<MegatronTensor> all;
  const auto put = [&](std::initializer_list<std::int64_t> sizes) {
    for (const std::int64_t elements : sizes) all.push_back({elements});
  };
  constexpr std::int64_t kChannels = 3;
  const std::int64_t v = t.hidden, f = t.width, wide = t.merge * t.merge * v;
  put({v * kChannels * t.patch * t.patch, v, t.positions * v});
  for (std::int64_t block = 0; block < t.layers; ++block) put({v, v, v, v, f * v, f, v * f, v, 3 * v * v, 3 * v, v * v, v});
  put({v, v, t.projector_width, t.projector_width, wide * wide, wide, hidden * wide, hidden});
  to.dense.insert(to.dense.begin(), all.begin(), all.end());
}

/// A block of multi-token prediction: norms of both inputs, their projection, a layer like the last, and the output's norm.
void count_block(const Architecture& a, const ChunkOptions& chunk, Counter& to) {
  for (int n = 0; n < 2; ++n) to.norm(a.runs.back().layer.norm, a.hidden);
  to.matrix(a.hidden / chunk.te.tensor, 2 * a.hidden);
  to.layer(a.runs.back().layer, false);
  to.norm(a.final_norm, a.hidden);
}

void count_tower(const Architecture& a, const ChunkOptions& chunk, Counter& to) {
  if (!chunk.first || a.tower.kind.empty()) return;
  if (holds_tower_alone(a)) return count_moonvit(a.tower, a.hidden, to);
  count_tower(a.tower, tower_of_transformers(a, chunk), chunk, to);
}

/// All of a chunk.
void count(const Architecture& a, const ChunkOptions& chunk, Counter& to) {
  const std::int64_t rows = chunk.padded_vocab / chunk.te.tensor;
  const std::int64_t blocks = chunk.mtp + chunk.idle_mtp;
  const bool embeds = chunk.first || blocks > 0;
  const bool alone = chunk.first && chunk.last;
  count_tower(a, chunk, to);
  if (embeds) {
    to.dense.push_back({rows * a.hidden, true, !alone && (a.tied || chunk.settings.mtp_layers > 0)});
    if (a.position_rows > 0) to.dense.push_back({a.position_rows * a.hidden});
  }
  for (const int run : chunk.layers) to.layer(a.runs[run_of(run)].layer, stays_wide(run));
  if (chunk.last) to.norm(a.final_norm, a.hidden);
  const bool trains_blocks = chunk.settings.mtp_alone;
  if (trains_blocks) to.leave_untrained();
  const auto shapes = to.shapes;
  for (std::int64_t block = 0; block < blocks; ++block) count_block(a, chunk, to);
  if (chunk.mtp == 0) to.shapes = shapes;  // what does not run has no placeholders
  if (!chunk.last) return;
  if (chunk.areal.value) {
    to.dense.push_back({a.hidden * chunk.areal.labels});
    // LinearForLastLayer of slime and Relax, a critic's, has a bias; a classifier's layer has none
    if (chunk.patched && chunk.areal.labels == 1) to.vector(1);
    return;
  }
  if (!trains_blocks) to.shapes.insert({rows, a.hidden});
  if (!a.tied || !embeds) (trains_blocks ? to.untrained : to.dense).push_back({rows * a.hidden, true, a.tied});
}

}  // namespace

std::int64_t tower_elements(const Architecture& a, const ChunkOptions& chunk) {
  Counter counter(a, chunk);
  count_tower(a, chunk, counter);
  return sum_of(counter.dense);
}

std::int64_t sum_of(const std::vector<MegatronTensor>& tensors) {
  std::int64_t out = 0;
  for (const MegatronTensor& t : tensors) out += t.elements;
  return out;
}

MegatronParameters megatron_parameters(const Architecture& a, const std::vector<ChunkOptions>& chunks) {
  MegatronParameters out;
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const auto& chunk : chunks) {
    Counter counter(a, chunk);
    count(a, chunk, counter);
    if (chunk.adapters) counter.freeze(out.frozen);
    out.frozen.insert(out.frozen.end(), counter.untrained.begin(), counter.untrained.end());
    out.dense += sum_of(counter.dense);
    out.experts += sum_of(counter.of_experts);
    out.dense_tensors.push_back(std::move(counter.dense));
    out.expert_tensors.push_back(std::move(counter.of_experts));
    shapes.insert(counter.shapes.begin(), counter.shapes.end());
  }
  if (chunks.front().te.fused_gradients)
    for (const auto& [rows, columns] : shapes) out.placeholders += bytes_of(rows * columns, DType::bf16);
  return out;
}

}  // namespace oomplan
