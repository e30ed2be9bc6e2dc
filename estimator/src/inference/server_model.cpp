#include "inference/server_model.hpp"

#include <algorithm>
#include <string_view>

#include <oomplan/units/errors.hpp>

#include "catalog/parameters.hpp"
#include "inference/adapter_slots.hpp"

namespace oomplan {
namespace {

/// Elements that a group shares one scale with, and bits of the scale. Source: checkpoints of vLLM's compressed-tensors,
/// gpt_oss (mxfp4) and modelopt (nvfp4) readers, vllm/model_executor/layers/quantization, 0.19.
struct Format {
  DType dtype;
  std::int64_t group, scale_bits;
  Bytes per_row;
};
constexpr Format kFormats[] = {
    {DType::fp8, 0, 0, 4},   {DType::int8, 0, 0, 4},   {DType::int4, 128, 20, 0},
    {DType::nf4, 64, 32, 0}, {DType::mxfp4, 32, 8, 0}, {DType::nvfp4, 16, 8, 0},
};

/// Families whose sliding-window layers rotate with another base than the full ones, so that there are two cos/sin tables, and
/// the factor of linear scaling of the full layers' table, which has so many times the positions
/// (vllm/model_executor/layers/rotary_embedding/linear_scaling_rope.py, 0.19; config.json of google/gemma-3-*).
struct RopeFamily {
  std::string_view model_type;
  std::int64_t factor;
};
constexpr RopeFamily kTwoRopeBases[] = {{"gemma3", 8},       {"gemma3_text", 1}, {"gemma3n", 1},
                                        {"gemma3n_text", 1}, {"gemma4", 1},      {"gemma4_text", 1}};

/// Towers with images of one size: tokens that the language model sees of an image (mm_tokens_per_image of config.json). What a
/// tower with images of any size takes in the profile run is not described.
struct ImageTokens {
  std::string_view tower;
  std::int64_t tokens;
};
constexpr ImageTokens kImageTokens[] = {{"siglip", 256}};

bool quantised(DType d) { return row(d).bits <= 8; }

bool is_linear(const Parameter& p) {
  if (p.part == ParameterPart::experts) return p.shape.size() >= 2;
  const bool in_block =
      p.part == ParameterPart::mixer || p.part == ParameterPart::feed_forward || p.part == ParameterPart::shared_experts;
  return in_block && p.shape.size() == 2 && p.shape[0] > 1;
}

class Builder {
 public:
  Builder(const Architecture& architecture, EngineKind engine, DType weights, DType kv) : a_(architecture) {
    m_.engine = engine;
    m_.weights = weights;
    m_.kv = kv;
    m_.compute = quantised(weights) ? (a_.dtype == DType::fp16 ? DType::fp16 : DType::bf16) : weights;
  }

  ServerModel build() {
    sizes();
    for (const LayerRun& run : a_.runs) layers_.push_back(shape_of(run.layer));
    for (const Parameter& p : parameters(a_)) add(p);
    for (std::size_t i = 0; i < layers_.size(); ++i) merge(layers_[i], a_.runs[i].count);
    return std::move(m_);
  }

 private:
  void sizes() {
    m_.family = a_.model_type;
    m_.hidden = a_.hidden;
    m_.vocab = a_.vocab;
    m_.layers = a_.layers();
    m_.max_positions = a_.max_positions;
    m_.tied = a_.tied;
    m_.multimodal = !a_.tower.kind.empty();
    const std::int64_t width = a_.embedding_width > 0 ? a_.embedding_width : a_.hidden;
    m_.row = bytes_of(width, m_.compute);
    bool sliding = false, full = false;
    for (const LayerRun& run : a_.runs) {
      m_.moe = m_.moe || run.layer.feed_forward.kind == FeedForwardKind::moe;
      m_.mla = m_.mla || run.layer.mixer.kind == MixerKind::mla;
      sliding = sliding || run.layer.mixer.span != AttentionSpan::full;
      full = full || run.layer.mixer.span == AttentionSpan::full;
    }
    rope_tables(sliding && full);
    for (const ImageTokens& image : kImageTokens) {
      if (image.tower != a_.tower.kind) continue;
      m_.image_tokens = image.tokens;
      m_.image_elements = a_.tower.positions * a_.tower.patch * a_.tower.patch * 3;
    }
  }

  void rope_tables(bool mixed_spans) {
    std::vector<std::int64_t> dims;
    for (const LayerRun& run : a_.runs) {
      const Mixer& m = run.layer.mixer;
      const std::int64_t dim = m.kind == MixerKind::mla ? m.rope_head_dim : m.rotary_dim;
      if (dim > 0 && std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
    }
    for (const std::int64_t dim : dims) m_.rope_elements += a_.max_positions * dim;
    for (const RopeFamily& family : kTwoRopeBases)
      if (family.model_type == a_.model_type && mixed_spans && dims.size() == 1) m_.rope_elements *= 1 + family.factor;
  }

  ServerLayer shape_of(const Layer& layer) {
    ServerLayer out;
    const Mixer& m = layer.mixer;
    const FeedForward& ff = layer.feed_forward;
    out.heads = m.heads;
    out.kv_heads = m.kv_heads;
    out.attention_width =
        m.kind == MixerKind::mla ? m.heads * (m.value_head_dim ? m.value_head_dim : m.nope_head_dim) : m.out_width();
    if (m.linear_value_heads > 0) out.attention_width = m.linear_value_heads * m.linear_value_dim;
    if (m.inner > 0) out.attention_width = m.inner;
    out.width = ff.kind == FeedForwardKind::moe ? std::max(ff.shared_width, ff.width) : ff.width;
    out.gated = ff.kind != FeedForwardKind::plain;
    out.experts = ff.experts;
    out.experts_per_token = ff.experts_per_token;
    out.expert_width = ff.expert_width;
    out.experts_gated = ff.experts_gated;
    out.cache = cache_of(m);
    if (m.kind == MixerKind::mla) mla(out, m);
    if (m.heads > 0) m_.heads = m_.heads == 0 ? m.heads : std::min(m_.heads, m.heads);
    if (m.kv_heads > 0) m_.kv_heads = m_.kv_heads == 0 ? m.kv_heads : std::min(m_.kv_heads, m.kv_heads);
    return out;
  }

  /// vLLM and SGLang keep a second kv_b in 16 bits for the absorbed products (vllm/model_executor/layers/attention/
  /// mla_attention.py, process_weights_after_loading, 0.19; DeepSeek-V2-Lite's logged weights have room for it).
  void mla(ServerLayer& out, const Mixer& m) {
    const std::int64_t v = m.value_head_dim ? m.value_head_dim : m.nope_head_dim;
    out.context_width = m.heads * (m.nope_head_dim + m.rope_head_dim + v);
    out.absorbed = bytes_of(m.heads * m.kv_lora_rank * (m.nope_head_dim + v), m_.compute);
  }

  LayerCache cache_of(const Mixer& m) {
    LayerCache out;
    switch (m.kind) {
      case MixerKind::attention:
        if (m.shared_kv) return out;
        out.kind = m.span == AttentionSpan::full ? CacheKind::full
                                                 : (m.span == AttentionSpan::sliding ? CacheKind::sliding : CacheKind::chunked);
        out.window = m.window;
        out.heads = m.kv_heads;
        out.token_head = cache_bytes(m.head_dim + (m.value_head_dim ? m.value_head_dim : m.head_dim));
        return out;
      case MixerKind::mla:
        return latent(m);
      case MixerKind::gated_delta:
      case MixerKind::kimi_delta:
        out.kind = CacheKind::state;
        out.state_conv = bytes_of(
            (m.conv_kernel - 1) * (2 * m.linear_key_heads * m.linear_key_dim + m.linear_value_heads * m.linear_value_dim),
            m_.compute);
        out.state_recurrent = bytes_of(m.linear_value_heads * m.linear_value_dim * m.linear_key_dim, DType::fp32);
        return out;
      case MixerKind::mamba1:
        out.kind = CacheKind::state;
        out.state_conv = bytes_of((m.conv_kernel - 1) * m.inner, m_.compute);
        out.state_recurrent = bytes_of(m.inner * m.state_size, state_dtype());
        return out;
      case MixerKind::mamba2:
        out.kind = CacheKind::state;
        out.state_conv = bytes_of((m.conv_kernel - 1) * (m.inner + 2 * m.groups * m.state_size), m_.compute);
        out.state_recurrent = bytes_of(m.inner * m.state_size, state_dtype());
        return out;
      case MixerKind::lightning:
        out.kind = CacheKind::state;
        out.state_recurrent = bytes_of(m.heads * m.head_dim * m.head_dim, DType::fp32);
        return out;
      case MixerKind::short_conv:
        out.kind = CacheKind::state;
        out.state_conv = bytes_of((m.conv_kernel - 1) * a_.hidden, m_.compute);
        return out;
      case MixerKind::none:
      case MixerKind::linear:
        return out;
    }
    return out;
  }

  /// SGLang keeps recurrent states in fp32; vLLM in the model's dtype unless the model asks for fp32.
  DType state_dtype() const { return m_.engine == EngineKind::sglang ? DType::fp32 : m_.compute; }

  /// DeepSeek V3.2's sparse attention: 512 fp8 + 4 fp32 scales + 64 bf16 a token, and an indexer of 128 fp8 + one fp32 scale.
  LayerCache latent(const Mixer& m) const {
    LayerCache out;
    out.kind = CacheKind::latent;
    out.heads = 1;
    const std::int64_t width = m.kv_lora_rank + m.rope_head_dim;
    out.token_head = bytes_of(width, m_.kv);
    if (m.index_heads > 0) {
      if (m_.kv == DType::fp8) out.token_head = m.kv_lora_rank + m.kv_lora_rank / 128 * 4 + 2 * m.rope_head_dim;
      out.token_head += m.index_head_dim + m.index_head_dim / 128 * 4;
    }
    return out;
  }

  Bytes cache_bytes(std::int64_t elements) const {
    const Bytes plain = bytes_of(elements, m_.kv);
    if (m_.kv == DType::mxfp4 || m_.kv == DType::nvfp4) return plain + elements / 16;
    return plain;
  }

  Bytes bytes(const Parameter& p) const {
    const std::int64_t elements = p.elements();
    if (!quantised(m_.weights) || !is_linear(p)) return bytes_of(elements, m_.compute);
    const bool stacked = p.shape.size() == 3;
    const std::int64_t rows = stacked ? p.shape[0] * p.shape[2] : p.shape[0];
    return linear_bytes(elements, rows, m_.weights);
  }

  void add(const Parameter& p) {
    if (p.part == ParameterPart::mtp) return;  // not served unless asked
    m_.largest_tensor = std::max(m_.largest_tensor, bytes_of(p.elements(), m_.compute));
    if (p.part == ParameterPart::tower) {
      m_.tower += bytes_of(p.total(), m_.compute);
      return;
    }
    if (p.part == ParameterPart::embedding || (p.part == ParameterPart::head && p.shape.size() == 2)) return;  // ServerModel::row
    if (p.run < 0) {
      m_.outside += bytes_of(p.total(), m_.compute);
      return;
    }
    in_layer(p, layers_[static_cast<std::size_t>(p.run)], a_.runs[static_cast<std::size_t>(p.run)].layer.mixer);
  }

  void in_layer(const Parameter& p, ServerLayer& to, const Mixer& mixer) {
    const Bytes one = bytes(p) * p.copies;
    switch (p.part) {
      case ParameterPart::experts:
        to.expert += one;
        return;  // divided by the number of experts in merge()
      case ParameterPart::router:
        to.router += one;
        return;
      case ParameterPart::norm:
        to.norms += one;
        return;
      case ParameterPart::feed_forward:
      case ParameterPart::shared_experts:
        (p.split == SplitAxis::none ? to.feed_forward_replicated : to.feed_forward) += one;
        return;
      default:
        break;
    }
    if (p.split == SplitAxis::kv_rows) {
      to.kv_head += one;
    } else if (p.split == SplitAxis::none) {
      to.mixer_replicated += one;
    } else if (mixer.fused_qkv && p.split == SplitAxis::rows && mixer.kv_heads > 0 &&
               p.shape[0] == mixer.q_width() + mixer.k_width() + mixer.v_width()) {
      const Bytes kv = one * (mixer.k_width() + mixer.v_width()) / p.shape[0];
      to.kv_head += kv;
      to.mixer += one - kv;
    } else {
      to.mixer += one;
    }
  }

  void merge(ServerLayer layer, std::int64_t count) {
    if (layer.experts > 0) layer.expert = ceil_div(layer.expert, layer.experts);
    if (m_.weights == DType::mxfp4 && layer.expert_width > 0) {  // vllm/model_executor/layers/quantization/mxfp4.py, 0.16
      layer.expert = layer.expert / m_.hidden * round_up(m_.hidden, 256);
      layer.expert = layer.expert / layer.expert_width * round_up(layer.expert_width, 128);
    }
    if (layer.kv_heads > 0) layer.kv_head = ceil_div(layer.kv_head, layer.kv_heads);
    auto found = std::find(m_.kinds.begin(), m_.kinds.end(), layer);
    const auto kind = static_cast<int>(found - m_.kinds.begin());
    if (found == m_.kinds.end()) {
      m_.kinds.push_back(layer);
      m_.totals.push_back({kind, 0});
    }
    m_.totals[static_cast<std::size_t>(kind)].count += count;
    if (!m_.runs.empty() && m_.runs.back().kind == kind) {
      m_.runs.back().count += count;
    } else {
      m_.runs.push_back({kind, count});
    }
  }

  const Architecture& a_;
  ServerModel m_;
  std::vector<ServerLayer> layers_;
};

void check(const Architecture& a, EngineKind engine, DType weights, DType kv) {
  std::vector<Problem> problems;
  if (engine != EngineKind::sglang && engine != EngineKind::vllm)
    problems.push_back({{}, "an engine that trains", "sglang or vllm", "", "only these serve"});
  const bool plain = weights == DType::bf16 || weights == DType::fp16 || weights == DType::fp32;
  if (!plain && std::none_of(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.dtype == weights; }))
    problems.push_back({{},
                        std::string(name(weights)),
                        "bf16, fp16, fp32, fp8, int8, int4, nf4, mxfp4 or nvfp4",
                        "",
                        "format of a server's weights"});
  if (row(kv).bits > 32 || kv == DType::int32 || kv == DType::boolean)
    problems.push_back({{}, std::string(name(kv)), "bf16, fp16, fp32, fp8, int8, mxfp4 or nvfp4", "", "format of a KV cache"});
  if (a.runs.empty()) problems.push_back({{}, a.name, "a model with layers", "", ""});
  if (!problems.empty()) throw InputError(std::move(problems));
}

}  // namespace

Bytes linear_bytes(std::int64_t elements, std::int64_t rows, DType weights) {
  const Bytes plain = bytes_of(elements, weights);
  for (const Format& f : kFormats) {
    if (f.dtype != weights) continue;
    return plain + (f.group > 0 ? ceil_div(elements, f.group) * f.scale_bits / 8 : 0) + f.per_row * rows;
  }
  return plain;
}

ServerModel server_model(const Architecture& architecture, EngineKind engine, DType weights, DType kv) {
  check(architecture, engine, weights, kv);
  return Builder(architecture, engine, weights, kv).build();
}

ServerModel server_model(const Architecture& architecture, EngineKind engine, const Server& server) {
  ServerModel out = server_model(architecture, engine, server.weights, server.kv);
  add_adapter_slots(out, architecture, server);
  return out;
}

}  // namespace oomplan
