#include "estimate/megatron_buckets.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "catalog/parameters.hpp"
#include "job/model_makers.hpp"
#include "layers/megatron.hpp"
#include "layers/megatron_lora.hpp"
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
  // through Megatron-Bridge
  std::vector<std::int64_t> parts = {};  ///< rows of the checkpoint's tensors; none: one
  Forms are = Forms::views;
  std::int64_t beside = 0;  ///< rows of copies that are there until the first of them is
  bool paired = false;
  std::int64_t elements() const { return rows * std::max<std::int64_t>(1, columns); }
};

/// Who makes the checkpoint's tensors of Megatron's parameters.
struct Converter {
  bool bridge = false;         ///< Megatron-Bridge; else the framework's own functions
  bool joins_experts = false;  ///< ... puts gate and up of an expert together by a copy
};
/// FusedGatedExpertMapping of checkpoints whose experts are one tensor (megatron/bridge/models/qwen_vl/{qwen3_vl_bridge,
/// qwen35_vl_bridge}.py, commit 2faedbf6).
Converter converter_of(const Architecture& a, bool bridge) {
  const std::string_view kind = made_as(a);
  return {bridge, bridge && (kind == "qwen3_vl_moe" || kind.starts_with("qwen3_5_moe"))};
}

/// Parameters of a layer under the names of Megatron-core's modules (megatron/core/models/gpt/gpt_layer_specs.py with Transformer
/// Engine, 0.14 to 0.18). What copies a name's form takes: slime/backends/megatron_utils/megatron_to_hf: queries, keys and values
/// are taken apart by groups; gate and up are views. Megatron-Bridge (megatron/bridge/models/conversion/param_mapping.py:
/// split_qkv_weights, GatedMLPMapping, commit 2faedbf6) copies queries, keys and values of one group, too.
class LayerRows {
 public:
  LayerRows(std::int64_t hidden, const Layer& layer, const Converter& by) : h_(hidden), l_(layer), by_(by) {
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
    const bool copies = by_.bridge || m.kv_heads > 1 || m.output_gate;  // of one group the parts are views
    const std::int64_t queries = m.heads * m.head_dim, keys = m.kv_heads * m.head_dim;
    const auto taken_apart = [&](std::int64_t gate) {
      rows.back().parts = {queries + gate, keys, keys};
      rows.back().are = Forms::copies;
      rows.back().beside = gate > 0 ? queries + gate : 0;  // queries and their gates are put together
    };
    matrix("self_attention.linear_qkv.weight", projected, h_, Cut::tensor, copies);
    taken_apart(m.output_gate ? queries : 0);
    if (m.q_bias) vector("self_attention.linear_qkv.bias", projected, Cut::tensor, copies);
    if (m.q_bias) taken_apart(m.output_gate ? queries : 0);
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
      rows.back().paired = true;
      norm("self_attention.linear_q_up_proj.layer_norm_", m.q_lora_rank);
      matrix("self_attention.linear_q_up_proj.weight", m.heads * width, m.q_lora_rank, Cut::tensor);
    } else {
      matrix("self_attention.linear_q_proj.weight", m.heads * width, h_, Cut::tensor);
    }
    matrix("self_attention.linear_kv_down_proj.weight", m.kv_lora_rank + m.rope_head_dim, h_, Cut::none);
    rows.back().paired = true;
    norm("self_attention.linear_kv_up_proj.layer_norm_", m.kv_lora_rank);
    matrix("self_attention.linear_kv_up_proj.weight", m.heads * (m.nope_head_dim + m.value_head_dim), m.kv_lora_rank,
           Cut::tensor);
  }
  /// transformers' own layer, whole on every rank (slime_plugins/models/hf_attention.py).
  void linear() {
    const Mixer& m = l_.mixer;
    const std::int64_t keys = m.linear_key_heads * m.linear_key_dim, values = m.linear_value_heads * m.linear_value_dim;
    if (by_.bridge) return gated_delta_net(keys, values);
    norm("input_layernorm.", h_);
    vector("self_attention.linear_attn.A_log", m.linear_value_heads);
    vector("self_attention.linear_attn.dt_bias", m.linear_value_heads);
    matrix("self_attention.linear_attn.conv1d.weight", 2 * keys + values, m.conv_kernel, Cut::none);
    matrix("self_attention.linear_attn.in_proj_qkvz.weight", 2 * keys + 2 * values, h_, Cut::none);
    matrix("self_attention.linear_attn.in_proj_ba.weight", 2 * m.linear_value_heads, h_, Cut::none);
    vector("self_attention.linear_attn.norm.weight", m.linear_value_dim);
    matrix("self_attention.linear_attn.out_proj.weight", h_, values, Cut::none);
  }
  /// Megatron-core's layer (megatron/core/ssm/gated_delta_net.py, 0.16 to 0.18), split over the tensor ranks. Its products'
  /// weight is put in the checkpoint's order by copies of copies (GDNLinearMappingSeparate).
  void gated_delta_net(std::int64_t keys, std::int64_t values) {
    const Mixer& m = l_.mixer;
    const std::int64_t all = 2 * keys + 2 * values + 2 * m.linear_value_heads;
    vector("self_attention.A_log", m.linear_value_heads, Cut::tensor);
    vector("self_attention.dt_bias", m.linear_value_heads, Cut::tensor);
    matrix("self_attention.conv1d.weight", 2 * keys + values, m.conv_kernel, Cut::tensor, true);
    rows.back().parts = {2 * keys + values};
    rows.back().are = Forms::copies;
    norm("self_attention.in_proj.layer_norm_", h_);
    matrix("self_attention.in_proj.weight", all, h_, Cut::tensor, true);
    rows.back().parts = {2 * keys + values, values, m.linear_value_heads, m.linear_value_heads};
    rows.back().are = Forms::copies;
    rows.back().beside = all + 2 * keys + values;
    vector("self_attention.out_norm.weight", m.linear_value_dim, Cut::none, true);
    rows.back().parts = {m.linear_value_dim};
    rows.back().are = Forms::copies;
    matrix("self_attention.out_proj.weight", h_, values, Cut::tensor);
  }
  /// Gate and up.
  void halves(std::int64_t width) {
    rows.back().parts = {width, width};
    if (rows.back().expert && by_.joins_experts) {
      rows.back().are = Forms::of_one_copy;
      rows.back().converted = true;
    }
  }
  void feed_forward() {
    const FeedForward& f = l_.feed_forward;
    if (f.kind == FeedForwardKind::moe) return experts(f);
    norm("mlp.linear_fc1.layer_norm_", h_);
    const bool gated = f.kind == FeedForwardKind::gated;
    const std::int64_t inner = (gated ? 2 : 1) * f.width;
    matrix("mlp.linear_fc1.weight", inner, h_, Cut::tensor);
    if (gated) halves(f.width);
    if (f.bias) vector("mlp.linear_fc1.bias", inner, Cut::tensor);
    if (f.bias && gated) halves(f.width);
    matrix("mlp.linear_fc2.weight", h_, f.width, Cut::tensor);
    if (f.bias) vector("mlp.linear_fc2.bias", h_);
  }
  void experts(const FeedForward& f) {
    const std::int64_t twice = f.experts_gated ? 2 : 1;
    norm("pre_mlp_layernorm.", h_);
    matrix("mlp.router.weight", f.experts, h_, Cut::none);
    if (f.router_bias) vector("mlp.router.bias", f.experts);
    if (f.correction_bias) {
      vector("mlp.router.expert_bias", f.experts);
      rows.back().format = DType::fp32;
    }
    if (f.shared_width > 0) {
      if (f.shared_gate) matrix("mlp.shared_experts.gate_weight", 1, h_, Cut::none);
      matrix("mlp.shared_experts.linear_fc1.weight", twice * f.shared_width, h_, Cut::tensor);
      if (f.experts_gated) halves(f.shared_width);
      matrix("mlp.shared_experts.linear_fc2.weight", h_, f.shared_width, Cut::tensor);
    }
    matrix("mlp.experts.linear_fc1.weight", twice * f.expert_width, h_, Cut::tensor);
    rows.back().expert = true;
    if (f.experts_gated) halves(f.expert_width);
    matrix("mlp.experts.linear_fc2.weight", h_, f.expert_width, Cut::tensor);
    rows.back().expert = true;
  }

  std::int64_t h_;
  const Layer& l_;
  Converter by_;
};

class Buckets {
 public:
  Buckets(const Architecture& a, const Trainer& t, const BucketForm& form)
      : a_(a), t_(t), alone_(form.gathers_alone), by_(converter_of(a, form.bridge)) {
    if (form.merges) adapters_ = megatron_adapters(t);
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
    t.converted = row.converted ? t.stored * ranks : 0;
    t.expert = row.expert;
    const std::int64_t columns = std::max<std::int64_t>(1, row.columns);
    if (by_.bridge)
      for (const std::int64_t rows : row.parts) t.forms.push_back(bytes_of(rows * columns, row.format));
    t.are = row.are;
    t.converting = bytes_of(row.beside * columns, row.format);
    t.paired = row.paired;
    if (beside_adapter(row.name)) t.adapter = bytes_of(adapters_.rank * (row.rows + row.columns), DType::fp32);
    out_.tensors.push_back(std::move(t));
    return known_[key] = static_cast<std::uint32_t>(out_.tensors.size() - 1);
  }
  void step(std::uint32_t tensor, std::int64_t layer, std::int64_t copy) {
    out_.order.push_back({tensor, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(copy)});
  }
  std::uint32_t vocabulary(const std::string& name) {
    return add(name, {name, a_.vocab, a_.hidden, Cut::tensor}, megatron_vocab(a_, t_));
  }
  /// A vision tower that the trainer has, too: under the checkpoint's names. Queries, keys and values are put together again
  /// (ConcatenatedQKVMapping).
  void tower() {
    if (!by_.bridge) return;
    std::int32_t at = 0;
    for (const Parameter& p : parameters(a_)) {
      if (p.part != ParameterPart::tower || p.kind == ParameterKind::table || p.shape.empty()) continue;
      Row row{p.name, p.shape[0], p.shape.size() > 1 ? p.elements() / p.shape[0] : 0};
      const bool in_blocks = p.name.find(".blocks.") != std::string::npos || p.name.find(".merger") != std::string::npos;
      row.cut = in_blocks && row.columns > 0 ? Cut::tensor : Cut::none;
      if (p.name.find("qkv") != std::string::npos) {
        row.parts = {row.rows};
        row.are = Forms::copies;
        row.beside = row.rows;
        row.converted = true;
      }
      const std::uint32_t tensor = add("tower." + p.name, row);
      for (std::int64_t i = 0; i < p.layers * p.copies; ++i) step(tensor, 0, at++);
    }
  }
  void norm_of_all() { step(add("final", {"decoder.final_layernorm.weight", a_.hidden}), 0, 0); }
  void embedding() { step(vocabulary("embedding.word_embeddings.weight"), 0, 0); }
  /// One that is the embedding's stands on the last of several stages.
  void output() { step(vocabulary("output_layer.weight"), 0, 0); }

  const LayerRows& rows_of(std::size_t run) {
    const auto known = layers_.find(run);
    if (known != layers_.end()) return known->second;
    return layers_.emplace(run, LayerRows(a_.hidden, a_.runs[run].layer, by_)).first->second;
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
  bool beside_adapter(std::string_view name) const {
    return (adapters_.qkv && name.ends_with("linear_qkv.weight")) || (adapters_.proj && name.ends_with("linear_proj.weight")) ||
           (adapters_.fc1 && name.ends_with("linear_fc1.weight")) || (adapters_.fc2 && name.ends_with("linear_fc2.weight"));
  }

  bool alone_;
  Converter by_;
  MegatronAdapters adapters_;
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

/// Of each layer the stage that has it.
std::vector<std::int32_t> stages_of(const Architecture& a, const Trainer& t) {
  std::vector<std::int32_t> out;
  for (const LayerRun& run : a.runs) out.insert(out.end(), static_cast<std::size_t>(run.count), 0);
  if (t.layout.pipeline == 1) return out;
  // chunks take turns: the first one of every stage, then the second one of every stage
  std::vector<std::vector<std::vector<int>>> chunks;
  for (std::int64_t stage = 0; stage < t.layout.pipeline; ++stage) chunks.push_back(megatron_layers(a, t, stage));
  std::size_t layer = 0;
  for (std::size_t chunk = 0; chunk < chunks[0].size(); ++chunk)
    for (std::size_t stage = 0; stage < chunks.size(); ++stage)
      for (std::size_t i = 0; i < chunks[stage][chunk].size() && layer < out.size(); ++i)
        out[layer++] = static_cast<std::int32_t>(stage);
  return out;
}

std::vector<std::size_t> runs_by_layer(const Architecture& a) {
  std::vector<std::size_t> out;
  for (std::size_t run = 0; run < a.runs.size(); ++run) out.insert(out.end(), static_cast<std::size_t>(a.runs[run].count), run);
  return out;
}

}  // namespace

namespace {

/// Megatron-Bridge's export (build_conversion_tasks, extract_sort_key, 0.2.0): by layer, then by a rank's expert, then by name.
SyncModel in_order_of_layers(const Architecture& a, const Trainer& t, const BucketForm& form) {
  Buckets out(a, t, form);
  out.norm_of_all();
  out.embedding();
  if (!a.tied) out.output();
  const std::vector<std::size_t> runs = runs_by_layer(a);
  for (std::int64_t layer = 0; layer < std::ssize(runs); ++layer) {
    const std::size_t run = runs[static_cast<std::size_t>(layer)];
    std::vector<Row> rows = out.rows_of(run).rows;
    std::sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.name < y.name; });
    for (const Row& row : rows)
      if (!row.expert) out.step(out.add(Buckets::key_of(run, row), row), layer, 0);
    const std::int64_t own = a.runs[run].layer.feed_forward.experts / t.layout.expert;
    for (std::int64_t e = 0; e < own; ++e)
      for (const Row& row : rows)
        if (row.expert) out.step(out.add(Buckets::key_of(run, row), row), layer, e);
  }
  SyncModel made = out.close();
  made.stages = stages_of(a, t);
  return made;
}

}  // namespace

SyncModel megatron_buckets(const Architecture& a, const Trainer& t, const BucketForm& form) {
  if (form.exports) return in_order_of_layers(a, t, form);
  Buckets out(a, t, form);
  const std::vector<std::size_t> runs = runs_by_layer(a);
  const auto layers = [&](auto&& which) {
    for (const std::int64_t layer : as_texts(std::ssize(runs))) {
      const std::size_t run = runs[static_cast<std::size_t>(layer)];
      std::vector<Row> rows = out.rows_of(run).rows;
      std::sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.name < y.name; });
      for (const Row& row : rows) {
        if (!which(row)) continue;
        const std::uint32_t tensor = out.add(Buckets::key_of(run, row), row);
        if (!row.expert) out.step(tensor, layer, 0);
        if (row.expert)
          for (const std::int64_t e : as_texts(a.runs[run].layer.feed_forward.experts)) out.step(tensor, layer, e);
      }
    }
  };
  if (form.bridge) layers([](const Row& row) { return row.expert; });  // in front, in buckets of their own
  out.norm_of_all();
  layers([&](const Row& row) { return !form.bridge || !row.expert; });
  out.embedding();
  if (!a.tied || t.layout.pipeline > 1) out.output();
  out.tower();
  SyncModel made = out.close();
  if (form.bridge) made.stages = stages_of(a, t);
  for (const LayerRun& run : a.runs)
    if (run.layer.feed_forward.kind == FeedForwardKind::moe)
      made.experts_of_a_rank = std::max<std::int64_t>(1, run.layer.feed_forward.experts / t.layout.expert);
  return made;
}

SyncModel megatron_stage_buckets(const Architecture& a, const Trainer& t, std::int64_t stage, const BucketForm& form) {
  Buckets out(a, t, form);
  const auto chunks = megatron_layers(a, t, stage);
  const bool first = stage == 0, last = stage + 1 == t.layout.pipeline;
  if (first) out.tower();
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
