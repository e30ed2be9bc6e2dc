#include "estimate/megatron_buckets.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "layers/megatron.hpp"
#include "training/megatron_plan.hpp"

namespace oomplan {
namespace {

enum class Cut : std::uint8_t { none, tensor };

/// A parameter of a layer, of its experts one of each.
struct Row {
  std::string name;
  std::int64_t rows = 1, columns = 0;  ///< columns 0: a vector
  Cut cut = Cut::none;
  bool converted = false;  ///< the checkpoint has it as copies of parts
  bool expert = false;
  DType format = DType::bf16;
  std::int64_t elements() const { return rows * std::max<std::int64_t>(1, columns); }
};

/// Parameters of a layer under the names of Megatron-core's modules (megatron/core/models/gpt/gpt_layer_specs.py with Transformer
/// Engine, 0.14 to 0.18). What copies a name's form takes: slime/backends/megatron_utils/megatron_to_hf: queries, keys and values
/// are taken apart by groups; gate and up are views.
class LayerRows {
 public:
  LayerRows(std::int64_t hidden, const Layer& layer) : h_(hidden), l_(layer) {
    attention();
    feed_forward();
    if (layer.norm_place == NormPlace::pre_and_post)  // GLM-4 (slime_plugins/models/glm4.py)
      for (const char* behind : {"post_self_attn_layernorm.", "post_mlp_layernorm."}) norm(behind, h_);
  }
  std::vector<Row> rows;

 private:
  void matrix(std::string name, std::int64_t out, std::int64_t in, Cut cut, bool converted = false) {
    rows.push_back({std::move(name), out, in, cut, converted});
  }
  void vector(std::string name, std::int64_t width, Cut cut = Cut::none, bool converted = false) {
    rows.push_back({std::move(name), width, 0, cut, converted});
  }
  void norm(const std::string& name, std::int64_t width) {
    vector(name + "weight", width);
    if (l_.norm == NormKind::layer) vector(name + "bias", width);
  }
  void attention() {
    const Mixer& m = l_.mixer;
    if (m.kind == MixerKind::mla) return latent();
    if (m.kind == MixerKind::gated_delta) return linear();
    matrix("self_attention.linear_proj.weight", h_, m.heads * m.head_dim, Cut::tensor);
    if (m.out_bias) vector("self_attention.linear_proj.bias", h_);
    norm("self_attention.linear_qkv.layer_norm_", h_);
    const std::int64_t projected = ((m.output_gate ? 2 : 1) * m.heads + 2 * m.kv_heads) * m.head_dim;
    const bool copies = m.kv_heads > 1 || m.output_gate;  // of one group the parts are views
    matrix("self_attention.linear_qkv.weight", projected, h_, Cut::tensor, copies);
    if (m.q_bias) vector("self_attention.linear_qkv.bias", projected, Cut::tensor, copies);
    if (m.qk_norm != QkNorm::head) return;
    norm("self_attention.q_layernorm.", m.head_dim);
    norm("self_attention.k_layernorm.", m.head_dim);
  }
  void latent() {
    const Mixer& m = l_.mixer;
    const std::int64_t width = m.nope_head_dim + m.rope_head_dim;
    norm("input_layernorm.", h_);
    matrix("self_attention.linear_proj.weight", h_, m.heads * m.value_head_dim, Cut::tensor);
    if (m.q_lora_rank > 0) {
      matrix("self_attention.linear_q_down_proj.weight", m.q_lora_rank, h_, Cut::none);
      norm("self_attention.linear_q_up_proj.layer_norm_", m.q_lora_rank);
      matrix("self_attention.linear_q_up_proj.weight", m.heads * width, m.q_lora_rank, Cut::tensor);
    } else {
      matrix("self_attention.linear_q_proj.weight", m.heads * width, h_, Cut::tensor);
    }
    matrix("self_attention.linear_kv_down_proj.weight", m.kv_lora_rank + m.rope_head_dim, h_, Cut::none);
    norm("self_attention.linear_kv_up_proj.layer_norm_", m.kv_lora_rank);
    matrix("self_attention.linear_kv_up_proj.weight", m.heads * (m.nope_head_dim + m.value_head_dim), m.kv_lora_rank,
           Cut::tensor);
  }
  /// transformers' own layer, whole on every rank (slime_plugins/models/hf_attention.py).
  void linear() {
    const Mixer& m = l_.mixer;
    const std::int64_t keys = m.linear_key_heads * m.linear_key_dim, values = m.linear_value_heads * m.linear_value_dim;
    norm("input_layernorm.", h_);
    vector("self_attention.linear_attn.A_log", m.linear_value_heads);
    vector("self_attention.linear_attn.dt_bias", m.linear_value_heads);
    matrix("self_attention.linear_attn.conv1d.weight", 2 * keys + values, m.conv_kernel, Cut::none);
    matrix("self_attention.linear_attn.in_proj_qkvz.weight", 2 * keys + 2 * values, h_, Cut::none);
    matrix("self_attention.linear_attn.in_proj_ba.weight", 2 * m.linear_value_heads, h_, Cut::none);
    vector("self_attention.linear_attn.norm.weight", m.linear_value_dim);
    matrix("self_attention.linear_attn.out_proj.weight", h_, values, Cut::none);
  }
  void feed_forward() {
    const FeedForward& f = l_.feed_forward;
    if (f.kind == FeedForwardKind::moe) return experts(f);
    norm("mlp.linear_fc1.layer_norm_", h_);
    const std::int64_t inner = (f.kind == FeedForwardKind::gated ? 2 : 1) * f.width;
    matrix("mlp.linear_fc1.weight", inner, h_, Cut::tensor);
    if (f.bias) vector("mlp.linear_fc1.bias", inner, Cut::tensor);
    matrix("mlp.linear_fc2.weight", h_, f.width, Cut::tensor);
    if (f.bias) vector("mlp.linear_fc2.bias", h_);
  }
  void experts(const FeedForward& f) {
    const std::int64_t halves = f.experts_gated ? 2 : 1;
    norm("pre_mlp_layernorm.", h_);
    matrix("mlp.router.weight", f.experts, h_, Cut::none);
    if (f.router_bias) vector("mlp.router.bias", f.experts);
    if (f.correction_bias) {
      vector("mlp.router.expert_bias", f.experts);
      rows.back().format = DType::fp32;
    }
    if (f.shared_width > 0) {
      if (f.shared_gate) matrix("mlp.shared_experts.gate_weight", 1, h_, Cut::none);
      matrix("mlp.shared_experts.linear_fc1.weight", halves * f.shared_width, h_, Cut::tensor);
      matrix("mlp.shared_experts.linear_fc2.weight", h_, f.shared_width, Cut::tensor);
    }
    matrix("mlp.experts.linear_fc1.weight", halves * f.expert_width, h_, Cut::tensor);
    rows.back().expert = true;
    matrix("mlp.experts.linear_fc2.weight", h_, f.expert_width, Cut::tensor);
    rows.back().expert = true;
  }

  std::int64_t h_;
  const Layer& l_;
};

class Buckets {
 public:
  Buckets(const Architecture& a, const Trainer& t, bool gathers_alone) : a_(a), t_(t), alone_(gathers_alone) {
    out_.storage = out_.wire = DType::bf16;
  }

  /// A row of the model; a second time the first one's.
  std::uint32_t add(const std::string& key, const Row& row, std::int64_t padded_rows = 0, std::int64_t ranks = 1) {
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    const std::int64_t degree = row.expert ? t_.layout.expert_tensor : t_.layout.tensor;
    SyncTensor t;
    t.name = row.name;
    t.shape = row.columns > 0 ? std::vector<std::int64_t>{row.rows, row.columns} : std::vector<std::int64_t>{row.rows};
    t.stored = bytes_of(row.elements(), row.format);
    t.sent = t.stored * ranks;
    if (padded_rows > 0) t.stored = bytes_of(padded_rows * row.columns, row.format);
    if (row.cut == Cut::tensor && (degree > 1 || alone_)) t.part = ceil_div(t.stored, degree);
    t.counted = row.cut == Cut::tensor ? t.stored : t.stored * degree;
    t.converted = row.converted ? t.stored : 0;
    t.expert = row.expert;
    out_.tensors.push_back(std::move(t));
    return known_[key] = static_cast<std::uint32_t>(out_.tensors.size() - 1);
  }
  void step(std::uint32_t tensor, std::int64_t layer, std::int64_t copy) {
    out_.order.push_back({tensor, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(copy)});
  }
  std::uint32_t vocabulary(const std::string& name) {
    return add(name, {name, a_.vocab, a_.hidden, Cut::tensor}, megatron_vocab(a_, t_));
  }
  void norm_of_all() { step(add("final", {"decoder.final_layernorm.weight", a_.hidden}), 0, 0); }
  void embedding() { step(vocabulary("embedding.word_embeddings.weight"), 0, 0); }
  /// One that is the embedding's stands on the last of several stages.
  void output() { step(vocabulary("output_layer.weight"), 0, 0); }

  const LayerRows& rows_of(std::size_t run) {
    const auto known = layers_.find(run);
    if (known != layers_.end()) return known->second;
    return layers_.emplace(run, LayerRows(a_.hidden, a_.runs[run].layer)).first->second;
  }
  static std::string key_of(std::size_t run, const Row& row) { return fmt::format("{}.{}", run, row.name); }

  SyncModel close() {
    for (const SyncTensor& t : out_.tensors) {
      out_.largest_stored = std::max(out_.largest_stored, t.stored);
      out_.largest_sent = std::max(out_.largest_sent, t.sent);
    }
    for (const SyncStep& s : out_.order) out_.total_sent += out_.tensors[s.tensor].sent;
    return std::move(out_);
  }

  const Architecture& a_;
  const Trainer& t_;

 private:
  bool alone_;
  SyncModel out_;
  std::map<std::string, std::uint32_t> known_;
  std::map<std::size_t, LayerRows> layers_;
};

/// 0 to n - 1 as their decimals are sorted.
std::vector<std::int64_t> as_texts(std::int64_t n) {
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < n; ++i) texts.push_back(fmt::format("{}", i));
  std::sort(texts.begin(), texts.end());
  std::vector<std::int64_t> out;
  for (const std::string& text : texts) out.push_back(std::stoll(text));
  return out;
}

std::vector<std::size_t> runs_by_layer(const Architecture& a) {
  std::vector<std::size_t> out;
  for (std::size_t run = 0; run < a.runs.size(); ++run) out.insert(out.end(), static_cast<std::size_t>(a.runs[run].count), run);
  return out;
}

}  // namespace

SyncModel megatron_buckets(const Architecture& a, const Trainer& t, bool gathers_alone) {
  Buckets out(a, t, gathers_alone);
  out.norm_of_all();
  const std::vector<std::size_t> runs = runs_by_layer(a);
  for (const std::int64_t layer : as_texts(std::ssize(runs))) {
    const std::size_t run = runs[static_cast<std::size_t>(layer)];
    std::vector<Row> rows = out.rows_of(run).rows;
    std::sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.name < y.name; });
    for (const Row& row : rows) {
      const std::uint32_t tensor = out.add(Buckets::key_of(run, row), row);
      if (!row.expert) out.step(tensor, layer, 0);
      if (row.expert)
        for (const std::int64_t e : as_texts(a.runs[run].layer.feed_forward.experts)) out.step(tensor, layer, e);
    }
  }
  out.embedding();
  if (!a.tied || t.layout.pipeline > 1) out.output();
  return out.close();
}

SyncModel megatron_stage_buckets(const Architecture& a, const Trainer& t, std::int64_t stage, bool gathers_alone) {
  Buckets out(a, t, gathers_alone);
  const auto chunks = megatron_layers(a, t, stage);
  const bool first = stage == 0, last = stage + 1 == t.layout.pipeline;
  if (first) out.embedding();
  for (const bool experts : {false, true}) {
    std::int64_t layer = 0;
    for (const auto& chunk : chunks)
      for (const int of : chunk) {
        const std::size_t run = run_of(of);
        for (const Row& row : out.rows_of(run).rows) {
          if (row.expert != experts) continue;
          const std::int64_t ranks = experts ? t.layout.expert : 1;
          const std::uint32_t tensor = out.add(Buckets::key_of(run, row), row, 0, ranks);
          const std::int64_t own = experts ? a.runs[run].layer.feed_forward.experts / ranks : 1;
          for (std::int64_t e = 0; e < own; ++e) out.step(tensor, layer, e);
        }
        ++layer;
      }
    if (experts || !last) continue;
    out.norm_of_all();
    if (!a.tied || !first) out.output();
  }
  return out.close();
}

SyncModel without_experts(SyncModel model) {
  std::erase_if(model.order, [&](const SyncStep& s) { return model.tensors[s.tensor].expert; });
  return model;
}

namespace {

/// An expert of a layer on its way: from the first rank of the trainer that has it to the ranks of all servers that want it.
struct Transfer {
  std::int64_t source = 0;
  std::vector<std::int64_t> targets;
  bool takes_part(std::int64_t rank) const {
    return rank == source || std::find(targets.begin(), targets.end(), rank) != targets.end();
  }
};

/// First fit: a batch takes what leaves every rank's buffers within the limit. All experts of a layer have one size.
std::vector<std::vector<Transfer>> batches_of(std::vector<Transfer> all, std::int64_t most) {
  std::stable_sort(all.begin(), all.end(), [](const Transfer& x, const Transfer& y) {
    return std::pair(x.targets, x.source) < std::pair(y.targets, y.source);
  });
  struct Batch {
    std::vector<Transfer> of;
    std::map<std::int64_t, std::int64_t> at;  ///< of each rank how many
    std::int64_t sum = 0;
  };
  std::vector<Batch> batches;
  for (Transfer& one : all) {
    std::vector<std::int64_t> ranks = one.targets;
    if (std::find(ranks.begin(), ranks.end(), one.source) == ranks.end()) ranks.push_back(one.source);
    Batch* best = nullptr;
    for (Batch& b : batches) {
      const bool fits = std::all_of(ranks.begin(), ranks.end(), [&](std::int64_t r) { return b.at[r] + 1 <= most; });
      if (fits && (best == nullptr || b.sum < best->sum)) best = &b;
    }
    if (best == nullptr) best = &batches.emplace_back();
    for (const std::int64_t r : ranks) ++best->at[r];
    best->sum += std::ssize(ranks);
    best->of.push_back(std::move(one));
  }
  std::vector<std::vector<Transfer>> out;
  for (Batch& b : batches) out.push_back(std::move(b.of));
  return out;
}

}  // namespace

RoutedExperts routed_experts(const Architecture& a, const Trainer& t, std::int64_t server_ranks, Bytes bucket) {
  RoutedExperts out;
  const auto run = std::find_if(a.runs.begin(), a.runs.end(),
                                [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; });
  if (run == a.runs.end() || server_ranks < 1) return out;
  const FeedForward& f = run->layer.feed_forward;
  const Bytes one = bytes_of(((f.experts_gated ? 2 : 1) + 1) * f.expert_width * a.hidden, DType::bf16);
  const std::int64_t world = t.layout.world();
  std::vector<Transfer> all;
  for (std::int64_t e = 0; e < f.experts; ++e) {
    Transfer one_expert{e / std::max<std::int64_t>(1, f.experts / t.layout.expert), {}};  // of the first stage
    for (std::int64_t engine = 0; engine < world; engine += server_ranks)
      one_expert.targets.push_back(engine + e / std::max<std::int64_t>(1, f.experts / server_ranks));
    all.push_back(std::move(one_expert));
  }
  for (const auto& batch : batches_of(std::move(all), std::max<std::int64_t>(1, bucket / one)))
    for (std::int64_t rank = 0; rank < world; ++rank) {
      std::int64_t staged = 0, sent = 0;
      for (const Transfer& transfer : batch) {
        const bool wants = std::find(transfer.targets.begin(), transfer.targets.end(), rank) != transfer.targets.end();
        staged += wants || rank == transfer.source ? 1 : 0;
        sent += wants ? 1 : 0;
      }
      out.staging = std::max(out.staging, staged * one);
      out.sent = std::max(out.sent, sent * one);
    }
  return out;
}

}  // namespace oomplan
