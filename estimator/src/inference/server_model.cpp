#include "inference/server_model.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/parameters.hpp"
#include "catalog/text_alone.hpp"
#include "inference/adapter_slots.hpp"
#include "inference/cache_format.hpp"
#include "inference/compressed_weights.hpp"
#include "inference/layer_cache.hpp"
#include "inference/online_formats.hpp"
#include "inference/server_draft.hpp"

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
/// SGLang's Gemma 3 leaves the factor out, and had no tables at all before 0.5.10 (sglang/srt/models/gemma3_causal.py: the fact
/// rope_tables).
constexpr RopeFamily kTwoRopeBases[] = {{"gemma3", 8}, {"gemma3_text", 1}, {"gemma3n", 1}, {"gemma3n_text", 1},
                                        {"gemma4", 1}, {"gemma4_text", 1}, {"olmo3", 1},   {"mimo_v2_flash", 1}};

/// Towers with images of one size: tokens that the language model sees of an image (mm_tokens_per_image of config.json). What a
/// tower with images of any size takes in the profile run is not described.
struct ImageTokens {
  std::string_view tower;
  std::int64_t tokens;
};
constexpr ImageTokens kImageTokens[] = {{"siglip", 256}};

template <std::size_t N>
bool is_one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// Families whose embedding is a plain nn.Embedding in SGLang, with all rows on every rank (sglang/srt/models/gemma3_causal.py
/// Gemma3TextScaledWordEmbedding, 0.4.6 to 0.5.18; gemma4_causal.py, 0.5.12).
constexpr std::string_view kWholeEmbeddings[] = {"gemma3", "gemma3n", "gemma4"};

/// Matrices of a tower that are cut by tp: those of its blocks, and of merging layers, which are column- and row-parallel
/// (vllm/model_executor/models/{qwen2_vl,mllama4,moonvit}.py, 0.19). Patches, positions and other projectors are on every rank
/// (kimi_vl.py KimiVLMultiModalProjector, gemma3_mm.py). vLLM also cuts what Llama 4's and Mistral 3's projectors have; Gemma 4's
/// tower is transformers' own class there (mllama4.py, mistral3.py, gemma4_mm.py, 0.19 to 0.24).
bool is_cut(const Parameter& tower, std::string_view kind, EngineKind engine) {
  if (tower.shape.size() != 2) return false;
  const auto named = [&](std::string_view part) { return tower.name.find(part) != std::string::npos; };
  // sglang/srt/models/{kimi_k25,pixtral}.py, 0.5.10: matrices behind attention, and the merging one, are plain there
  if (engine == EngineKind::sglang && ((kind == "moonvit" && named("mlp.")) || named("patch_merger"))) return false;
  if (engine == EngineKind::vllm) {
    if (kind == "gemma4" || named("patch_merger")) return false;
    if (kind == "llama4" && (named("multi_modal_projector") || named("patch_embed"))) return true;
    if (kind == "pixtral" && named("projector.linear")) return true;
  }
  return named(".blocks.") || named("merger") || named("vision_adapter");
}

/// Towers whose table of positions SGLang divides like a vocabulary, the fact tower_positions_cut
/// (sglang/srt/models/siglip.py, 0.4.7 to 0.5.18; qwen3_vl.py, 0.5.8 to 0.5.18).
constexpr std::string_view kPositionsCut[] = {"siglip", "qwen3_vl"};

/// Towers that rotate by a table of 8,192 positions and half a head, and the engines whose classes have it
/// (vllm/model_executor/models/{qwen2_vl,qwen2_5_vl,qwen3_vl}.py, 0.19; sglang/srt/models/qwen3_vl.py, 0.5.7 to 0.5.18).
constexpr std::string_view kTowerTables[] = {"qwen3_vl", "qwen2_vl", "qwen2_5_vl"};
constexpr std::int64_t kTowerPositions = 8192;

/// Families that SGLang serves by transformers' own classes, which have no cos/sin table (sglang/srt/models, 0.5.10).
constexpr std::string_view kOfTransformers[] = {"seed_oss", "ernie4_5", "gpt_neox", "smollm3", "dots1"};

/// Towers whose models rotate by three axes at once: the cos/sin table has four times the positions (vllm/model_executor/layers/
/// rotary_embedding/mrope.py, 0.9 to 0.24).
constexpr std::string_view kThreeAxes[] = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"};

/// Families whose router is an fp32 matrix in vLLM (vllm/model_executor/models/{glm4_moe,ernie45_moe,minimax_m2}.py, 0.10 to
/// 0.24).
constexpr std::string_view kFp32Routers[] = {"glm4_moe", "glm4_moe_lite", "ernie4_5_moe", "minimax_m2"};

bool is_linear(const Parameter& p) {
  if (p.part == ParameterPart::experts) return p.shape.size() >= 2 && !p.name.ends_with("bias");
  const bool in_block =
      p.part == ParameterPart::mixer || p.part == ParameterPart::feed_forward || p.part == ParameterPart::shared_experts;
  return in_block && p.shape.size() == 2 && p.shape[0] > 1;
}

/// Gemma 3n's and 4's matrices of per-layer inputs.
bool is_per_layer(const Parameter& p) {
  return p.part == ParameterPart::other && p.shape.size() == 2 && p.name.find("per_layer") != std::string::npos;
}

/// "model.layers.{l}.mlp.experts.{e}.up_proj.weight" of layer 3 as the name of its module, of the first expert.
std::string module_of(std::string name, std::int64_t layer) {
  for (const auto& [hole, number] : {std::pair{"{l}", layer}, std::pair{"{e}", std::int64_t{0}}})
    if (const std::size_t at = name.find(hole); at != std::string::npos) name.replace(at, 3, std::to_string(number));
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return name;
}

/// Layers that are built as one: a run of the architecture, or one layer where the checkpoint's formats may differ by layer.
struct Built {
  ServerLayer layer;
  std::size_t run = 0;
  std::int64_t first = 0, count = 0;
};

class Builder {
 public:
  Builder(const Architecture& architecture, EngineKind engine, DType weights, DType kv, std::int64_t draft_tokens = 0)
      : a_(architecture) {
    m_.engine = engine;
    m_.weights = weights;
    m_.kv = kv;
    m_.compute = compute_format(a_, weights);
    m_.draft_tokens = draft_tokens;
  }
  /// Every matrix in the format that the checkpoint has it in.
  void as_stored() { stored_.emplace(a_.quantization); }
  /// Every matrix as the engine converts it.
  void converted(const Quantization& q) {
    stored_.emplace(q);
    online_ = true;
  }
  void token_scales() { token_scales_ = true; }
  /// sglang/srt/models/{qwen2_5_vl,qwen3_vl}.py, use_data_parallel, 0.5.9 to 0.5.15: column- and row-parallel matrices of one
  /// rank.
  void whole_tower() { m_.whole_tower = true; }
  void without_towers(bool images, bool sound) {
    no_images_ = images;
    no_sound_ = sound;
  }

  ServerModel build() {
    sizes();
    std::int64_t first = 0;
    for (std::size_t run = 0; run < a_.runs.size(); ++run) {
      const std::int64_t count = a_.runs[run].count, step = stored_ ? 1 : count;
      for (std::int64_t i = 0; i < count; i += step) layers_.push_back({shape_of(a_.runs[run].layer), run, first + i, step});
      first += count;
    }
    for (const Parameter& p : parameters(with_all_keys())) add(p);
    for (const Built& b : layers_) merge(b.layer, b.count);
    return std::move(m_);
  }

 private:
  /// vLLM's Gemma 4 makes keys and values also in layers that read an earlier layer's cache (vllm/model_executor/models/gemma4.py
  /// Gemma4Attention, 0.19.1).
  Architecture with_all_keys() const {
    Architecture out = a_;
    if (m_.engine == EngineKind::vllm && a_.family == "gemma4")
      for (LayerRun& run : out.runs) run.layer.mixer.shared_kv = false;
    return out;
  }

  void sizes() {
    m_.family = a_.model_type;
    m_.hidden = a_.hidden;
    m_.vocab = a_.vocab;
    m_.layers = a_.layers();
    m_.max_positions = a_.max_positions;
    m_.tied = a_.tied;
    m_.multimodal = !a_.tower.kind.empty();
    const std::int64_t width = a_.embedding_width > 0 ? a_.embedding_width : a_.hidden;
    m_.row = m_.head_row = bytes_of(width, m_.compute);
    m_.whole_embedding = m_.engine == EngineKind::sglang && std::find(std::begin(kWholeEmbeddings), std::end(kWholeEmbeddings),
                                                                      a_.family) != std::end(kWholeEmbeddings);
    if (m_.engine == EngineKind::vllm) input_buffers();
    bool sliding = false, full = false;
    for (const LayerRun& run : a_.runs) {
      m_.moe = m_.moe || run.layer.feed_forward.kind == FeedForwardKind::moe;
      m_.mla = m_.mla || run.layer.mixer.kind == MixerKind::mla;
      m_.sparse = m_.sparse || run.layer.mixer.index_heads > 0;
      sliding = sliding || run.layer.mixer.span != AttentionSpan::full;
      full = full || run.layer.mixer.span == AttentionSpan::full;
    }
    m_.latent_yarn = m_.mla && a_.yarn;
    rope_tables(sliding && full);
    if (is_compressed(a_)) compressed_sizes(a_, m_);
    if (is_compressed(a_) && stored_)  // vllm/models/deepseek_v4/nvidia/model.py DeepseekV4MLP, 0.24
      for (const QuantizedModules& part : a_.quantization.parts) m_.shared_step = std::max(m_.shared_step, part.format.block);
    for (const ImageTokens& image : kImageTokens) {
      if (image.tower != a_.tower.kind || no_images_) continue;
      m_.image_tokens = image.tokens;
      m_.image_elements = a_.tower.positions * a_.tower.patch * a_.tower.patch * 3;
    }
  }

  /// What the language model gets beside the embeddings lies in buffers for a whole batch: the outputs of a tower's inner blocks,
  /// which go with the tower (vllm/model_executor/models/qwen3_vl.py deepstack_input_embeds, 0.11 to 0.24), the per-layer
  /// embeddings of the class with towers (gemma3n_mm.py, gemma4_mm.py per_layer_embeddings; the one for text alone has none
  /// without fast prefill). vLLM's classes make them on every stage of a pipeline (0.19.1 executed).
  void input_buffers() {
    if (!no_images_) m_.stage_elements = a_.tower.deepstack * a_.hidden;
    const bool text = a_.model_type.ends_with("_text") || a_.name.ends_with(kTextAlone);
    if (a_.per_layer_vocab > 0 && !a_.runs.empty() && !text)
      m_.stage_elements += a_.layers() * a_.runs.front().layer.per_layer_input;
  }

  void rope_tables(bool mixed_spans) {
    std::vector<std::int64_t> dims;
    for (const LayerRun& run : a_.runs) {
      const Mixer& m = run.layer.mixer;
      std::int64_t dim = m.rotary_dim;
      // Gemma 4 turns a part of a head, with zeros for the rest in the table (vllm/model_executor/layers/rotary_embedding/
      // gemma4_rope.py, August 2026; sglang/srt/layers/rotary_embedding/rope_variant.py, 0.5.12)
      if (a_.family == "gemma4" && dim > 0) dim = m.head_dim;
      if (dim > 0 && std::find(dims.begin(), dims.end(), dim) == dims.end()) dims.push_back(dim);
    }
    for (const std::int64_t dim : dims) m_.rope_elements += a_.max_positions * dim;
    const bool unscaled = m_.engine == EngineKind::sglang && a_.family == "gemma3";
    for (const RopeFamily& family : kTwoRopeBases)
      if (family.model_type == a_.model_type && mixed_spans && dims.size() == 1)
        m_.rope_elements *= 1 + (unscaled ? 1 : family.factor);
    if (m_.engine != EngineKind::vllm) {
      if (is_one_of(a_.model_type, kOfTransformers)) m_.rope_elements = 0;
      // an indexer that turns halves where attention turns pairs (sglang/srt/layers/attention/nsa/nsa_indexer.py, 0.5.10)
      if (a_.model_type == "deepseek_v32") m_.rope_elements *= 2;
      if (a_.tower.kind == kTowerTables[0]) tower_table();
      return;
    }
    if (is_one_of(a_.tower.kind, kThreeAxes)) m_.rope_elements *= 4;
    if (a_.family == "gpt_oss" && m_.compute != DType::fp32) m_.rope_elements *= 2;  // fp32: gpt_oss.py, 0.10 to 0.24
    if (is_one_of(a_.tower.kind, kTowerTables)) tower_table();
  }

  void tower_table() {
    if (!no_images_ && a_.tower.heads > 0) m_.rope_elements += kTowerPositions * (a_.tower.hidden / a_.tower.heads / 2);
  }

  ServerLayer shape_of(const Layer& layer) {
    ServerLayer out;
    const Mixer& m = layer.mixer;
    const FeedForward& ff = layer.feed_forward;
    out.heads = m.heads;
    out.kv_heads = m.kind == MixerKind::mamba2 ? m.groups : m.kv_heads;
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
    out.cache = layer_cache(m, a_, {m_.engine, m_.kv, m_.compute, m_.draft_tokens, token_scales_});
    if (m.kind == MixerKind::mla && m.out_groups == 0) mla(out, m);
    if (m.out_groups > 0) out.router += routing_table(ff, a_.vocab);
    if (m.heads > 0) m_.heads = m_.heads == 0 ? m.heads : std::min(m_.heads, m.heads);
    if (m.kv_heads > 0) m_.kv_heads = m_.kv_heads == 0 ? m.kv_heads : std::min(m_.kv_heads, m.kv_heads);
    return out;
  }

  /// SGLang keeps a second kv_b in 16 bits for the absorbed products (sglang/srt/models/deepseek_v2.py, post_load_weights,
  /// 0.5.10). vLLM has views of a kv_b in 16 bits and makes one of a quantised kv_b
  /// (vllm/model_executor/layers/attention/mla_attention.py, process_weights_after_loading, 0.9 to 0.24).
  void mla(ServerLayer& out, const Mixer& m) {
    const std::int64_t v = m.value_head_dim ? m.value_head_dim : m.nope_head_dim;
    out.context_width = m.heads * (m.nope_head_dim + m.rope_head_dim + v);
    if (m_.engine == EngineKind::sglang || (!stored_ && in_8_bits_or_less(m_.weights)))
      out.absorbed = bytes_of(m.heads * m.kv_lora_rank * (m.nope_head_dim + v), m_.compute);
    m_.latent = m.kv_lora_rank;
  }

  /// Of one parameter: its elements, and what a quantised matrix has beside them.
  struct Stored {
    Bytes elements = 0, scales = 0;
    bool per_row = false;  ///< the scales are those of output rows
    Bytes all() const { return elements + scales; }
  };

  /// What is fp32 in a model of 16 bits (vllm/model_executor/layers/mamba/*.py, 0.19; sglang/srt/layers/quantization/unquant.py
  /// UnquantizedFusedMoEMethod: biases of experts, 0.5.10; its routers: ServerFacts::router_bits).
  bool in_fp32(const Parameter& p) const {
    // vllm/model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py, 0.24; sglang/srt/models/kimi_linear.py, 0.5.10
    if (a_.family == "kimi_linear" &&
        (p.name.ends_with("dt_bias") || p.name.ends_with("A_log") || p.name.find("_conv1d.") != std::string::npos))
      return true;
    if (m_.engine != EngineKind::vllm)
      return p.part == ParameterPart::experts && p.name.ends_with("bias") && !stored_ && !in_8_bits_or_less(m_.weights);
    if (p.name.ends_with("A_log") || (m_.compressed && compressed_in_fp32(p))) return true;
    return p.part == ParameterPart::router && p.shape.size() == 2 && is_one_of(a_.model_type, kFp32Routers);
  }

  Stored stored(const Parameter& p, std::int64_t layer) {
    const std::int64_t elements = p.elements();
    const Stored plain{bytes_of(elements, in_fp32(p) ? DType::fp32 : m_.compute), 0};
    const bool router = p.part == ParameterPart::router && p.shape.size() == 2 && router_is_converted(m_.engine, a_.model_type);
    if (!is_linear(p) && !(online_ && (router || is_per_layer(p)))) return plain;
    const bool stacked = p.shape.size() == 3;
    if (stored_) {
      const bool expert = p.part == ParameterPart::experts;
      const WeightFormat* const format = stored_->of(module_of(p.name, layer), expert, false);
      if (format == nullptr) return plain;
      if (expert && format->dtype == DType::mxfp4) m_.weights = DType::mxfp4;
      const Bytes all =
          stacked ? p.shape[0] * stored_bytes(*format, p.shape[2], p.shape[1]) : stored_bytes(*format, p.shape[0], p.shape[1]);
      const Bytes bare = bytes_of(elements, format->dtype);
      m_.unpacks = m_.unpacks || format->dtype == DType::nf4;
      return {bare, all - bare, format->per_row};
    }
    if (!in_8_bits_or_less(m_.weights)) return plain;
    const Bytes bare = bytes_of(elements, m_.weights);
    return {bare, linear_bytes(elements, stacked ? p.shape[0] * p.shape[2] : p.shape[0], m_.weights) - bare,
            m_.weights == DType::int8};
  }

  void add(const Parameter& p) {
    if (p.part == ParameterPart::mtp) return;  // drafts()
    if (p.part == ParameterPart::tower && (p.name.starts_with("audio.") ? no_sound_ : no_images_)) return;
    m_.largest_tensor = std::max(m_.largest_tensor, bytes_of(p.elements(), m_.compute));
    if (p.part == ParameterPart::tower && m_.engine == EngineKind::sglang && is_one_of(a_.tower.kind, kPositionsCut) &&
        p.name.ends_with("position_embedding")) {
      m_.tower_positions += bytes_of(p.total(), m_.compute);
      return;
    }
    if (p.part == ParameterPart::tower) {
      (!m_.whole_tower && is_cut(p, a_.tower.kind, m_.engine) ? m_.tower : m_.tower_whole) +=
          p.total() / p.elements() * in_tower(p);
      return;
    }
    if (p.part == ParameterPart::head && p.shape.size() == 2) head(p);
    if (p.part == ParameterPart::embedding && a_.per_layer_vocab > 0 && p.name.find("per_layer") != std::string::npos) {
      m_.layer_vocab = p.shape[0];
      m_.layer_row = bytes_of(p.shape[1], m_.compute);
    }
    if (p.part == ParameterPart::embedding || (p.part == ParameterPart::head && p.shape.size() == 2)) return;  // ServerModel::row
    if (p.run < 0) {
      // vllm/model_executor/models/gemma4.py: a ColumnParallelLinear, 0.19.1
      const bool cut = m_.engine == EngineKind::vllm && a_.family == "gemma4" && is_per_layer(p);
      (cut ? m_.outside_cut : m_.outside) += p.total() / p.elements() * stored(p, 0).all();
      return;
    }
    for (Built& b : layers_)
      if (b.run == static_cast<std::size_t>(p.run)) in_layer(p, b, a_.runs[b.run].layer.mixer);
  }

  Bytes in_tower(const Parameter& p) {
    const WeightFormat* const format = online_ ? stored_->of(module_of(p.name, 0), false, false) : nullptr;
    if (format == nullptr || !tower_is_converted(m_.engine, a_.tower.kind, p, format->dtype))
      return bytes_of(p.elements(), m_.compute);
    return stored_bytes(*format, p.shape[0], p.shape[1]);
  }

  void head(const Parameter& p) {
    const WeightFormat* const format = stored_ && !m_.tied ? stored_->of(module_of(p.name, 0), false, true) : nullptr;
    if (format != nullptr) m_.head_row = stored_bytes(*format, p.shape[0], p.shape[1]) / p.shape[0];
  }

  void in_layer(const Parameter& p, Built& built, const Mixer& mixer) {
    ServerLayer& to = built.layer;
    const Stored each = stored(p, built.first);
    // a matrix that is cut along its columns has all its rows, and their scales, on every rank
    const Bytes whole = each.per_row && p.split == SplitAxis::columns ? each.scales * p.copies : 0;
    const Bytes one = each.all() * p.copies - whole;
    if (m_.engine == EngineKind::vllm && stored_ && each.scales > 0 && mixer.kind == MixerKind::mla &&
        p.name.find("kv_b") != std::string::npos)
      to.absorbed = bytes_of(p.elements(), m_.compute);
    if (is_linear(p)) {
      allocated(to.matrices, p, each.elements * p.copies, mixer);
      allocated(to.scales, p, each.scales * p.copies - whole, mixer);
    }
    switch (p.part) {
      case ParameterPart::experts:
        to.expert += one + whole;  // divided by the number of experts in merge()
        to.expert_whole += whole;
        if (!is_linear(p)) to.expert_bias += one;
        if (!is_linear(p) && p.split == SplitAxis::none) to.expert_whole += one;
        return;
      case ParameterPart::router:
        to.router += one;
        return;
      case ParameterPart::norm:
        to.norms += one;
        return;
      case ParameterPart::feed_forward:
      case ParameterPart::shared_experts:
        (p.split == SplitAxis::none ? to.feed_forward_replicated : to.feed_forward) += one;
        to.feed_forward_replicated += whole;
        return;
      default:
        break;
    }
    to.mixer_replicated += whole;
    if (p.split == SplitAxis::kv_rows) {
      to.kv_head += keys_as_values(mixer) * one;
    } else if (p.split == SplitAxis::none) {
      to.mixer_replicated += one;
    } else if (mixer.fused_qkv && p.split == SplitAxis::rows && mixer.kv_heads > 0 &&
               p.shape[0] == mixer.q_width() + mixer.k_width() + mixer.v_width()) {
      const Bytes kv = one * (mixer.k_width() + mixer.v_width()) / p.shape[0];
      to.kv_head += kv;
      to.mixer += one - kv;
    } else if (const Bytes groups = group_rows(p, one, mixer); groups > 0) {
      to.kv_head += groups;
      to.mixer += one - groups;
    } else {
      to.mixer += one;
    }
  }

  /// Of a Mamba-2 matrix: what its groups take, of which every rank has at least one (vllm/model_executor/layers/mamba/
  /// mamba_utils.py extra_groups_for_head_shards, 0.9 to 0.24).
  static Bytes group_rows(const Parameter& p, Bytes one, const Mixer& mixer) {
    if (mixer.kind != MixerKind::mamba2 || p.shape[0] <= mixer.inner) return 0;
    return one * 2 * mixer.groups * mixer.state_size / p.shape[0];
  }

  /// Both engines make rows for values too where keys are the values, and load the keys twice (vllm/model_executor/models/
  /// gemma4.py, August 2026; sglang/srt/models/gemma4_causal.py, 0.5.12).
  static std::int64_t keys_as_values(const Mixer& mixer) { return mixer.key_is_value ? 2 : 1; }

  /// Into which of the engine's matrices the parameter goes.
  static void allocated(std::array<FusedMatrix, kFusedCount>& to, const Parameter& p, Bytes one, const Mixer& mixer) {
    const bool up = p.split == SplitAxis::rows || p.split == SplitAxis::kv_rows;
    const auto at = [&](Fused matrix) -> FusedMatrix& { return to[static_cast<std::size_t>(matrix)]; };
    const auto add = [&](Fused first, Fused second) -> FusedMatrix& { return at(up ? first : second); };
    if (p.part == ParameterPart::experts) {
      const bool down = p.name.find("down") != std::string::npos || p.name.find("w2") != std::string::npos;
      at(down ? Fused::experts_down : Fused::experts_up).split += one;
    } else if (p.split == SplitAxis::none) {
      if (p.part == ParameterPart::mixer) at(Fused::latent_down).whole += one;
    } else if (p.part == ParameterPart::feed_forward) {
      add(Fused::gate_up, Fused::down).split += one;
    } else if (p.part == ParameterPart::shared_experts) {
      add(Fused::shared_gate_up, Fused::shared_down).split += one;
    } else if (p.split == SplitAxis::kv_rows) {
      add(Fused::qkv, Fused::out).kv_head += keys_as_values(mixer) * one;
    } else if (mixer.kind == MixerKind::mla && p.name.find("kv_b") != std::string::npos) {
      at(Fused::latent).split += one;
    } else {
      const Bytes groups = group_rows(p, one, mixer);
      add(Fused::qkv, Fused::out).kv_head += groups;
      add(Fused::qkv, Fused::out).split += one - groups;
    }
  }

  void merge(ServerLayer layer, std::int64_t count) {
    for (auto* tensors : {&layer.matrices, &layer.scales}) {
      for (FusedMatrix& matrix : *tensors)
        if (layer.kv_heads > 0) matrix.kv_head = ceil_div(matrix.kv_head, layer.kv_heads);
      for (const Fused experts : {Fused::experts_up, Fused::experts_down}) {
        Bytes& all = (*tensors)[static_cast<std::size_t>(experts)].split;
        if (layer.experts > 0) all = ceil_div(all, layer.experts);
      }
    }
    if (layer.experts > 0) {
      layer.expert = ceil_div(layer.expert, layer.experts);
      layer.expert_bias = ceil_div(layer.expert_bias, layer.experts);
      layer.expert_whole = ceil_div(layer.expert_whole, layer.experts);
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
  std::optional<ModuleFormats> stored_;
  bool online_ = false, token_scales_ = false, no_images_ = false, no_sound_ = false;
  std::vector<Built> layers_;
};

/// The checkpoint's MTP blocks as a model of their own, to be built like one; nothing where there are none.
Architecture drafts_of(const Architecture& a) {
  Architecture out = a;
  out.runs = a.mtp.layers;
  out.mtp = {};
  out.tower = {};
  return out;
}

/// Both engines load one set of MTP blocks beside the model and share embedding and head with it (vllm/v1/spec_decode/eagle.py,
/// 0.19; sglang/srt/models/deepseek_nextn.py and srt/speculative/eagle_worker.py set_embed_and_head, 0.5.10): per block a
/// projection 2h -> h and three norms, then a layer with a cache of its own.
void add_drafts(ServerModel& m, const Architecture& a, ServerModel drafts) {
  const auto kinds = static_cast<int>(m.kinds.size());
  for (ServerLayer& kind : drafts.kinds) m.kinds.push_back(kind);
  for (const ServerLayerRun& run : drafts.totals) m.drafts.push_back({run.kind + kinds, run.count});
  m.draft_outside = bytes_of(a.mtp.projections * 2 * a.hidden * a.hidden + a.mtp.norms * a.hidden, m.compute);
}

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

/// A reward model has one label. Its layer is in fp32 under vLLM, which casts what goes into it (vllm/config/model.py head_dtype,
/// vllm/model_executor/models/adapters.py as_seq_cls_model, 0.12 to 0.24), and in the model's format under SGLang
/// (sglang/srt/models/qwen2_classification.py, layers/pooler.py score_and_pool, 0.5.6 to 0.5.12). Every rank has it whole.
void score_requests(ServerModel& m) {
  m.labels = 1;
  m.score = m.engine == EngineKind::vllm ? DType::fp32 : m.compute;
  m.head_row = bytes_of(m.hidden, m.score);
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
  const DType kv = server.kv.value_or(compute_format(architecture, server.weights));  // with_cache_format has been asked
  check(architecture, engine, server.weights, kv);
  const bool stored = server.as_stored && !in_8_bits_or_less(server.weights) && !architecture.quantization.method.empty();
  if (stored && architecture.quantization.parts.empty())
    throw InputError(Problem{{}, architecture.quantization.method, "", "", "not supported yet: weights stored in this format"});
  if (architecture.tower.kind == "clip")
    throw InputError(Problem{{}, architecture.name, "", "", "not supported yet: a server of a model with CLIP's tower"});
  if (is_compressed(architecture)) check_compressed(architecture, engine, server);
  const Quantization* const online = stored ? nullptr : online_quantization(engine, server);
  const std::int64_t ahead = server.draft_tokens;
  const bool other = ahead > 0 && !server.draft_model.empty();
  if (ahead > 0 && !other && architecture.mtp.layers.empty())
    throw InputError(Problem{{}, architecture.name, "a model with MTP blocks, or a draft_model", "", "it has none"});
  const auto build = [&](const Architecture& of) {
    Builder builder(of, engine, server.weights, kv, ahead);
    if (stored) builder.as_stored();
    if (online != nullptr) builder.converted(*online);
    if (server.kv_token_scales) builder.token_scales();
    if (server.whole_tower) builder.whole_tower();
    builder.without_towers(server.text_only || server.no_images, server.text_only || server.no_sound);
    return builder.build();
  };
  ServerModel out = build(architecture);
  if (other) {
    const Architecture draft = draft_as_built(server);
    add_draft(out, draft, draft_method(server), Builder(draft, engine, out.compute, kv, ahead).build());
  } else if (ahead > 0) {
    add_drafts(out, architecture, build(drafts_of(architecture)));
    if (out.compressed) {
      const ModuleFormats formats(architecture.quantization);
      out.draft_outside = compressed_draft_outside(architecture, stored ? &formats : nullptr, out.compute);
    }
  }
  add_adapter_slots(out, architecture, server);
  if (server.pooling) score_requests(out);
  return out;
}

}  // namespace oomplan
