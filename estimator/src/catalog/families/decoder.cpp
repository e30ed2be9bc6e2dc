// The general reader: a decoder of layers that each have a mixer and a feed-forward, as a family's Traits describe it.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

std::int64_t head_dim_of(const Fields& fields, const Traits& traits, std::int64_t hidden, std::int64_t heads) {
  const std::string_view key = present_key(fields, traits.head_dim);
  if (fields.has(key)) return fields.integer(key, kHeadDimLimits);
  if (fields.has_class() && fields.stated(key) && !fields.of_class(key))
    fields.refuse(key, "an integer", "transformers takes null for it as it stands");
  if (traits.head_dim_otherwise > 0 && !fields.of_class(key)) return traits.head_dim_otherwise;
  const std::string_view hidden_key = present_key(fields, traits.hidden);
  if (hidden % heads != 0)
    fields.refuse(hidden_key, fmt::format("a multiple of {} ({} heads)", heads, heads), "head_dim is not stated");
  return hidden / heads;
}

std::string layer_type(const Fields& fields, std::int64_t layer) {
  const auto types = fields.texts("layer_types");
  if (layer >= static_cast<std::int64_t>(types.size()))
    fields.refuse("layer_types", fmt::format("an entry for each layer, {} at least", layer + 1));
  return types[static_cast<std::size_t>(layer)];
}

std::int64_t window_of(const Fields& fields, const Traits& traits) {
  const std::string_view key =
      present_key(fields, "sliding_window|sliding_window_size|sliding_window_attention_size|attention_chunk_size");
  if (!fields.has(key) && traits.window_otherwise > 0) return traits.window_otherwise;
  return fields.integer(key, kPositionLimits);
}

bool windowed(const Fields& fields, const Traits& traits, std::int64_t layer) {
  switch (traits.span) {
    case SpanRule::full:
      return false;
    case SpanRule::window:
      return fields.has("sliding_window") || (traits.window_otherwise > 0 && !fields.of_class("sliding_window"));
    case SpanRule::qwen:
      return fields.flag_or("use_sliding_window", false) && layer >= fields.integer("max_window_layers", {0, 1 << 20});
    case SpanRule::every_nth_full:
      break;
  }
  const std::string_view key = present_key(fields, "sliding_window_pattern|_sliding_window_pattern");
  return (layer + 1) % fields.integer_or(key, traits.span_period, kLayerLimits) != 0;
}

/// transformers 5 writes the kind of every feed-forward down when it saves a config.
bool listed_as_moe(const Fields& fields, std::int64_t layer) {
  const auto types = fields.texts("mlp_layer_types");
  if (layer >= static_cast<std::int64_t>(types.size()))
    fields.refuse("mlp_layer_types", fmt::format("an entry for each layer, {} at least", layer + 1));
  const std::string& type = types[static_cast<std::size_t>(layer)];
  if (type != "dense" && type != "sparse" && type != "moe" && type != "hash_moe")
    fields.refuse("mlp_layer_types", "dense, sparse, moe or hash_moe", "layer type '" + type + "'");
  return type != "dense";
}

bool is_moe_layer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  if (fields.has("mlp_layer_types")) return listed_as_moe(fields, layer);
  switch (traits.moe.layers) {
    case MoeLayers::all:
      return true;
    case MoeLayers::after_first_k:
      if (ignored_by_class(fields, traits.moe.first_dense)) return layer >= traits.moe.first_dense_otherwise;
      return layer >=
             fields.integer_or(present_key(fields, traits.moe.first_dense), traits.moe.first_dense_otherwise, kFewLimits);
    case MoeLayers::sparse_step: {
      const std::int64_t step = fields.integer_or("decoder_sparse_step", 1, kLayerLimits);
      if (fields.has("mlp_only_layers")) {
        const auto dense = fields.integers("mlp_only_layers", kFewLimits);
        if (std::find(dense.begin(), dense.end(), layer) != dense.end()) return false;
      }
      return (layer + 1) % step == 0;
    }
    case MoeLayers::list: {
      const auto frequency = fields.integers("moe_layer_freq", {0, 1});
      if (layer >= static_cast<std::int64_t>(frequency.size()))
        fields.refuse("moe_layer_freq", fmt::format("an entry for each layer, {} at least", layer + 1));
      return frequency[static_cast<std::size_t>(layer)] != 0;
    }
    case MoeLayers::range:
      break;
  }
  const std::int64_t first = fields.integer_or("moe_layer_start_index", 1, kFewLimits);
  if (fields.stated("moe_layer_end_index") && fields.is_null("moe_layer_end_index") && fields.has_class())
    fields.refuse("moe_layer_end_index", "an integer", "the class in transformers needs it");
  // -1 in the config stands for the last layer.
  std::int64_t last = fields.integer_or("moe_layer_end_index", -1, {-1, 1024});
  if (last == -1) last = kLayerLimits.most;
  const std::int64_t interval = fields.integer_or("moe_layer_interval", 1, kLayerLimits);
  return layer >= first && layer <= last && (layer + 1) % interval == 0;
}

std::int64_t width_of(const Fields& fields, const Traits& traits) {
  const std::string_view key = present_key(fields, traits.width);
  if (!fields.has(key) && traits.width_factor > 0) return traits.width_factor * read_hidden(fields, traits);
  return fields.integer(key, kWidthLimits) / traits.width_divisor;
}

/// An integer, or a list of equal ones (HunYuan states one per layer).
std::int64_t integer_or_list(const Fields& fields, std::string_view key, Limits limits) {
  if (!fields.is_list(key)) return fields.integer(key, limits);
  const auto all = fields.integers(key, limits);
  if (all.empty() || std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end())
    fields.refuse(key, "one integer, or a list of equal ones", "a number that differs from layer to layer is not described");
  return all.front();
}

std::int64_t shared_width_of(const Fields& fields, const MoeTraits& moe, std::int64_t expert_width) {
  if (!moe.shared_width.empty()) {
    const std::string_view key = present_key(fields, moe.shared_width);
    if (fields.has(key)) return fields.integer(key, kOptionalWidthLimits);
  }
  if (moe.shared_count.empty()) return moe.shared_otherwise;  // a width here
  if (ignored_by_class(fields, moe.shared_count)) return moe.shared_otherwise * expert_width;
  const std::string_view key = present_key(fields, moe.shared_count);
  if (fields.of_class(key) && fields.is_null(key)) fields.refuse(key, "an integer", "the class in transformers needs it");
  return (fields.has(key) ? integer_or_list(fields, key, kFewLimits) : moe.shared_otherwise) * expert_width;
}

/// A soft cap that configs leave out is the family's; null turns it off.
bool capped(const Fields& fields, std::string_view key, double otherwise) {
  return !fields.is_null(key) && fields.number_or(key, otherwise, 0, 1e9) > 0;
}

}  // namespace

void read_span(const Fields& fields, const Traits& traits, std::int64_t layer, Mixer& mixer) {
  const bool listed = fields.has("layer_types");
  const std::string type = listed ? layer_type(fields, layer) : "";
  if (listed && type == "chunked_attention") {
    mixer.span = AttentionSpan::chunked;
  } else if (listed ? type == "sliding_attention" : windowed(fields, traits, layer)) {
    mixer.span = AttentionSpan::sliding;
  } else {
    if (listed && type != "full_attention" && type != "attention")
      fields.refuse("layer_types", "full_attention, sliding_attention or chunked_attention", "layer type '" + type + "'");
    return;
  }
  mixer.window = window_of(fields, traits);
}

Mixer attention_without_span(const Fields& fields, const Traits& traits) {
  Mixer mixer;
  mixer.kind = MixerKind::attention;
  const std::string_view kv_key = present_key(fields, traits.kv_heads);
  mixer.heads = fields.integer(present_key(fields, traits.heads), kHeadLimits);
  const bool otherwise = traits.kv_heads_otherwise > 0 && !fields.of_class(kv_key);  // a class that leaves it null: the heads
  mixer.kv_heads = fields.integer_or(kv_key, otherwise ? traits.kv_heads_otherwise : mixer.heads, kHeadLimits);
  if (mixer.heads % mixer.kv_heads != 0) fields.refuse(kv_key, fmt::format("a divisor of {} (the heads)", mixer.heads));
  mixer.head_dim = head_dim_of(fields, traits, read_hidden(fields, traits), mixer.heads);
  mixer.value_head_dim = mixer.head_dim;
  mixer.rotary_dim = read_rotary_dim(fields, traits, mixer.head_dim);
  if (mixer.rotary_dim % 2 != 0 && fields.of_class("head_dim"))
    fields.refuse(present_key(fields, traits.head_dim), "an even width that rotates", "transformers refuses another");
  mixer.q_bias = chosen(fields, traits.q_bias);
  mixer.k_bias = mixer.v_bias = chosen(fields, traits.kv_bias);
  mixer.out_bias = chosen(fields, traits.out_bias);
  mixer.qk_norm = chosen(fields, traits.qk_norm_present) ? traits.qk_norm : QkNorm::none;
  mixer.softcap = traits.softcap && capped(fields, "attn_logit_softcapping", 50);
  mixer.clip = fields.has("clip_qkv");
  mixer.sinks = traits.sinks;
  mixer.output_gate = traits.output_gate;
  mixer.fused_qkv = traits.fused_qkv;
  return mixer;
}

Mixer attention_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = attention_without_span(fields, traits);
  read_span(fields, traits, layer, mixer);
  return mixer;
}

FeedForward dense_feed_forward(const Fields& fields, const Traits& traits) {
  FeedForward out;
  out.kind = traits.gated ? FeedForwardKind::gated : FeedForwardKind::plain;
  out.activation = read_activation(fields, traits.activation, traits.activation_otherwise);
  out.width = width_of(fields, traits);
  out.bias = chosen(fields, traits.mlp_bias);
  out.fused_gate_up = traits.fused_gate_up;
  return out;
}

FeedForward moe_feed_forward(const Fields& fields, const Traits& traits) {
  const MoeTraits& moe = traits.moe;
  FeedForward out;
  out.kind = FeedForwardKind::moe;
  out.activation = read_activation(fields, traits.activation, traits.activation_otherwise);
  out.experts = fields.integer(present_key(fields, moe.experts), kExpertLimits);
  out.experts_per_token = integer_or_list(fields, present_key(fields, moe.per_token), {1, out.experts});
  out.expert_width = integer_or_list(fields, present_key(fields, moe.width), kWidthLimits);
  out.shared_width = shared_width_of(fields, moe, out.expert_width);
  out.shared_gate = moe.shared_gate && out.shared_width > 0;
  out.bias = chosen(fields, traits.mlp_bias);
  out.router_bias = moe.router_bias;
  out.correction_bias = chosen(fields, moe.correction_bias);
  out.expert_bias = moe.expert_bias;
  out.experts_gated = moe.experts_gated;
  out.fused_experts = moe.fused_experts;
  out.normalise_top_k = chosen(fields, moe.normalise_top_k);
  out.score = moe.score;
  out.router_in_fp32 = moe.router_in_fp32;
  out.weights_in_fp32 = moe.weights_in_fp32;
  if (moe.groups_otherwise > 0) {
    out.router_groups = fields.integer_or("n_group", moe.groups_otherwise, {1, out.experts});
    const std::int64_t few = std::min(moe.top_groups_otherwise, out.router_groups);
    out.router_top_groups = fields.stated("topk_group") ? fields.integer_or("topk_group", few, {1, out.router_groups}) : few;
  }
  return out;
}

FeedForward dense_or_moe(const Fields& fields, const Traits& traits, std::int64_t layer) {
  if (traits.is_moe && is_moe_layer(fields, traits, layer)) return moe_feed_forward(fields, traits);
  return dense_feed_forward(fields, traits);
}

std::vector<LayerRun> runs_of(const std::vector<Layer>& layers) {
  std::vector<LayerRun> out;
  for (const Layer& layer : layers) {
    if (!out.empty() && out.back().layer == layer) {
      ++out.back().count;
    } else {
      out.push_back({layer, 1});
    }
  }
  return out;
}

/// Of config.json: `rope_scaling` (type or rope_type), or `rope_parameters` of transformers 5.
bool by_yarn(const Fields& fields) {
  bool yarn = false;
  for (const char* place : {"rope_scaling", "rope_parameters"})
    if (const std::optional<Fields> scaling = fields.object_if(place))
      for (const char* kind : {"type", "rope_type"}) yarn = yarn || (scaling->is_text(kind) && scaling->text(kind) == "yarn");
  return yarn;
}

Architecture read_decoder(const Fields& fields, const Traits& traits) {
  Architecture out;
  out.family = traits.family;
  out.hidden = read_hidden(fields, traits);
  out.vocab = fields.integer(present_key(fields, traits.vocab), kVocabLimits);
  out.max_positions = fields.integer_or(present_key(fields, traits.positions), 0, kPositionLimits);
  out.yarn = by_yarn(fields);
  out.tied = chosen(fields, traits.tied);
  out.head_bias = chosen(fields, traits.head_bias);
  out.embedding_norm = traits.embedding_norm;
  out.final_norm = traits.norm;
  if (traits.position_rows_extra >= 0) {
    out.max_positions = fields.integer(present_key(fields, traits.positions), {1, 1 << 24});
    out.position_rows = out.max_positions + traits.position_rows_extra;
  }
  out.final_softcap = traits.softcap && capped(fields, "final_logit_softcapping", 30);
  out.embedding_dropout =
      fields.number_or(present_key(fields, "embd_pdrop|embedding_dropout"), traits.embedding_dropout_otherwise, 0, 1);
  out.hidden_dropout = fields.number_or(present_key(fields, traits.hidden_dropout), traits.hidden_dropout_otherwise, 0, 1);
  out.attention_dropout =
      fields.number_or(present_key(fields, traits.attention_dropout), traits.attention_dropout_otherwise, 0, 1);
  const std::int64_t count = traits.layer_count != nullptr ? traits.layer_count(fields, traits) : read_layers(fields, traits);
  std::vector<Layer> layers;
  for (std::int64_t i = 0; i < count; ++i) {
    Layer layer;
    layer.mixer = traits.mixer != nullptr ? traits.mixer(fields, traits, i) : attention_mixer(fields, traits, i);
    layer.feed_forward =
        traits.feed_forward != nullptr ? traits.feed_forward(fields, traits, i) : dense_or_moe(fields, traits, i);
    layer.norm = traits.norm;
    layer.norm_place = traits.norm_place;
    if (traits.adjust != nullptr) traits.adjust(fields, traits, i, layer);
    layers.push_back(layer);
  }
  out.runs = runs_of(layers);
  if (traits.finish != nullptr) traits.finish(fields, traits, out);
  return out;
}

}  // namespace oomplan
