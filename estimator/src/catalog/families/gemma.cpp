// Gemma 1 to 4. Norms multiply by (1 + w); embeddings are tied; layers alternate between a window and full attention.
// Shapes and defaults: transformers 5.23, models/{gemma,gemma2,gemma3,gemma3n,gemma4}/{configuration,modeling}_*.py.
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr Traits kGemma{
    .family = "gemma",
    .kv_heads_otherwise = 16,
    .head_dim_otherwise = 256,
    .tied = by("tie_word_embeddings", true),
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .norm = NormKind::rms_plus_one,
    .activation_otherwise = "gelu_pytorch_tanh",
};

constexpr Traits gemma2() {
  Traits t = kGemma;
  t.family = "gemma2";
  t.kv_heads_otherwise = 4;
  t.norm_place = NormPlace::pre_and_post;
  t.softcap = true;
  t.span = SpanRule::every_nth_full;
  t.span_period = 2;
  t.window_otherwise = 4096;
  return t;
}

/// No norms behind the halves.
constexpr Traits vaultgemma() {
  Traits t = gemma2();
  t.family = "vaultgemma";
  t.norm_place = NormPlace::pre;
  return t;
}

constexpr Traits gemma3() {
  Traits t = gemma2();
  t.family = "gemma3";
  t.softcap = false;
  t.qk_norm = QkNorm::head;
  t.span_period = 6;
  return t;
}

/// The last num_kv_shared_layers layers use keys and values of earlier ones.
bool shares_kv(const Fields& fields, const Traits& traits, std::int64_t layer, std::int64_t otherwise) {
  const std::int64_t layers = read_layers(fields, traits);
  return layer >= layers - fields.integer_or("num_kv_shared_layers", otherwise, {0, layers});
}

/// ... of the last one of their span that has its own. `always`: whether later ones share them or not (transformers 5.24,
/// models/gemma4_unified/configuration_gemma4_unified.py: kv_sharing_modes; Gemma 4's of 5.23, where rows were executed, did
/// not).
void marks_stored(Architecture& out, bool always) {
  std::vector<LayerRun> runs;
  bool full = false, windowed = false;  // found
  const bool shares = always || (!out.runs.empty() && out.runs.back().layer.mixer.shared_kv);
  for (auto run = out.runs.rbegin(); run != out.runs.rend(); ++run) {
    bool& found = run->layer.mixer.span == AttentionSpan::full ? full : windowed;
    if (shares && !found && !run->layer.mixer.shared_kv) {
      found = true;
      LayerRun last = *run;
      last.count = 1;
      last.layer.mixer.stores_kv = true;
      runs.push_back(last);
      if (--run->count == 0) continue;
    }
    runs.push_back(*run);
  }
  out.runs.assign(runs.rbegin(), runs.rend());
}

void per_layer_embeddings(const Fields& fields, std::int64_t width, Architecture& out) {
  if (width > 0) out.per_layer_vocab = fields.integer_or("vocab_size_per_layer_input", 262144, kVocabLimits);
}

/// activation_sparsity_pattern: a number or one for each layer; the first ten of more than ten where it is left out.
bool keeps_little_of_gate(const Fields& fields, std::int64_t layer, std::int64_t layers) {
  constexpr std::int64_t kSparseLayers = 10;
  if (!fields.has("activation_sparsity_pattern")) return layer < kSparseLayers && layers > kSparseLayers;
  if (!fields.is_list("activation_sparsity_pattern")) return fields.number("activation_sparsity_pattern", 0, 1) > 0;
  const auto listed = fields.numbers("activation_sparsity_pattern", 0, 1);
  if (layer >= static_cast<std::int64_t>(listed.size())) fields.refuse("activation_sparsity_pattern", "an entry for each layer");
  return listed[static_cast<std::size_t>(layer)] > 0;
}

// Gemma 3n: residuals in altup_num_inputs copies, a low-rank augmented residual, embeddings of every layer.
FeedForward gemma3n_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  if (!fields.is_list("intermediate_size")) {
    FeedForward same = dense_feed_forward(fields, traits);
    same.sparse_gate = keeps_little_of_gate(fields, layer, read_layers(fields, traits));
    return same;
  }
  const auto widths = fields.integers("intermediate_size", kWidthLimits);
  if (layer >= static_cast<std::int64_t>(widths.size())) fields.refuse("intermediate_size", "an entry for each layer");
  FeedForward out;
  out.kind = FeedForwardKind::gated;
  out.activation = read_activation(fields, traits.activation, traits.activation_otherwise);
  out.width = widths[static_cast<std::size_t>(layer)];
  out.sparse_gate = keeps_little_of_gate(fields, layer, read_layers(fields, traits));
  return out;
}

void gemma3n_layer(const Fields& fields, const Traits& traits, std::int64_t i, Layer& layer) {
  layer.mixer.shared_kv = shares_kv(fields, traits, i, 15);
  layer.per_layer_input = fields.integer_or("hidden_size_per_layer_input", 256, kWidthLimits);
  layer.laurel_rank = fields.integer_or("laurel_rank", 64, kWidthLimits);
  layer.altup_inputs = fields.integer_or("altup_num_inputs", 4, {1, 64});
}

bool caps_logits(const Fields& fields, double otherwise) {
  return !fields.is_null("final_logit_softcapping") && fields.number_or("final_logit_softcapping", otherwise, 0, 1e9) > 0;
}

void gemma3n_whole(const Fields& fields, const Traits&, Architecture& out) {
  out.final_softcap = caps_logits(fields, 30);
  per_layer_embeddings(fields, out.runs.front().layer.per_layer_input, out);
  marks_stored(out, false);
}

constexpr Traits gemma3n() {
  Traits t = gemma3();
  t.family = "gemma3n";
  t.kv_heads_otherwise = 2;
  t.norm = NormKind::rms;
  t.span_period = 5;
  t.window_otherwise = 512;
  t.feed_forward = gemma3n_feed_forward;
  t.adjust = gemma3n_layer;
  t.finish = gemma3n_whole;
  return t;
}

// Gemma 4: full layers have heads of their own size, may give k and v with one projection, and rotate a quarter of a head; a
// mixture of experts may stand beside the dense block.
double full_rotary_fraction(const Fields& fields) {
  const auto rope = fields.object_if("rope_parameters");
  const auto full = rope ? rope->object_if("full_attention") : std::nullopt;
  return full ? full->number_or("partial_rotary_factor", 0.25, 0, 1) : 0.25;
}

/// What transformers 5.23 writes beside a layer's number when its sizes are not those of the others.
std::optional<Fields> own_sizes(const Fields& fields, std::int64_t layer) {
  const auto all = fields.object_if("per_layer_config");
  if (!all) return std::nullopt;
  for (const std::string& key : all->keys()) {
    std::int64_t number = -1;
    const char* end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, number);
    if (read.ec != std::errc() || read.ptr != end) all->refuse(key, "the number of a layer as its name");
    if (number == layer) return all->object(key);
  }
  return std::nullopt;
}

Mixer gemma4_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const bool last = layer == read_layers(fields, traits) - 1;  // attends to everything, whatever layer_types says
  Mixer mixer = last ? attention_without_span(fields, traits) : attention_mixer(fields, traits, layer);
  mixer.shared_kv = shares_kv(fields, traits, layer, 0);
  mixer.rotary_dim = mixer.head_dim;
  if (mixer.span != AttentionSpan::full) return mixer;
  const std::optional<Fields> own = own_sizes(fields, layer);
  mixer.head_dim = mixer.value_head_dim = own ? own->integer_or("head_dim", mixer.head_dim, kHeadDimLimits)
                                              : fields.integer_or("global_head_dim", 512, kHeadDimLimits);
  mixer.rotary_dim = static_cast<std::int64_t>(full_rotary_fraction(fields) * static_cast<double>(mixer.head_dim));
  if (!fields.flag_or("attention_k_eq_v", false)) return mixer;
  mixer.key_is_value = true;
  const std::string_view key = own ? "num_key_value_heads" : "num_global_key_value_heads";
  mixer.kv_heads = (own ? *own : fields).integer_or(key, mixer.kv_heads, {1, mixer.heads});
  return mixer;
}

void gemma4_whole(const Fields& fields, const Traits& traits, Architecture& out) {
  gemma3n_whole(fields, traits, out);
  out.final_softcap = caps_logits(fields, 0);
}

FeedForward gemma4_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  FeedForward dense = dense_feed_forward(fields, traits);
  if (fields.flag_or("use_double_wide_mlp", false) && shares_kv(fields, traits, layer, 0)) dense.width *= 2;
  if (!fields.flag_or("enable_moe_block", false)) return dense;
  FeedForward out = moe_feed_forward(fields, traits);
  out.width = dense.width;
  out.router_scales = true;
  return out;
}

void gemma4_layer(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.buffer_scalars = 1;  // the layer's output is multiplied by it
  layer.per_layer_input = fields.integer_or("hidden_size_per_layer_input", 256, kOptionalWidthLimits);
}

constexpr Traits gemma4() {
  Traits t = gemma3();
  t.family = "gemma4";
  t.norm = NormKind::rms;
  t.window_otherwise = 512;
  t.moe = {.per_token = "top_k_experts", .width = "moe_intermediate_size|expert_intermediate_size", .fused_experts = true};
  t.mixer = gemma4_mixer;
  t.feed_forward = gemma4_feed_forward;
  t.adjust = gemma4_layer;
  t.finish = gemma4_whole;
  return t;
}

/// Gemma 4 12B has no embeddings of layers.
void gemma4_unified_layer(const Fields&, const Traits&, std::int64_t, Layer& layer) { layer.buffer_scalars = 1; }
void gemma4_unified_whole(const Fields& fields, const Traits&, Architecture& out) {
  out.final_softcap = caps_logits(fields, 0);
  marks_stored(out, true);
}
constexpr Traits gemma4_unified() {
  Traits t = gemma4();
  t.window_otherwise = 1024;
  t.adjust = gemma4_unified_layer;
  t.finish = gemma4_unified_whole;
  return t;
}

constexpr Family kGemmaFamilies[] = {
    {"gemma", "", kGemma},
    {"gemma2", "", gemma2()},
    {"vaultgemma", "", vaultgemma()},
    {"gemma3_text", "", gemma3()},
    {"gemma3n_text", "", gemma3n()},
    {"gemma4_text", "", gemma4()},
    {"gemma4_unified_text", "", gemma4_unified()},
};

}  // namespace

std::span<const Family> gemma_families() { return kGemmaFamilies; }

}  // namespace oomplan
