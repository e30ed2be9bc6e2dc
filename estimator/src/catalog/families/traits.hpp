// How one model family's config.json becomes an Architecture, as a row of data.
//
// A family is a model_type (and, where a model_type is used by two different models, a class name) with Traits: which keys
// hold its sizes, what an absent key means, where its norms stand and which halves its layers have. read_decoder turns any
// Traits into an Architecture. A family whose layers differ in kind brings its own function for that half of a layer.
//
// A key may list alternatives, "n_embd|hidden_size": the first that is present is read. What an absent key means is the default
// of the family's configuration class (catalog/class_defaults). What a row says besides, `..._otherwise`, holds where there is no
// such class, where it leaves the matter to the model's code, or for keys that the class does not know.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "catalog/architecture.hpp"
#include "catalog/fields.hpp"

namespace oomplan {

// Limits of what a config may say: no product of them that counts parameters passes 2^60. A whole model is limited to
// kMostParameters, so that 16 bytes a parameter stay far below 2^60.
inline constexpr Limits kHiddenLimits{1, 65536};
inline constexpr Limits kLayerLimits{1, 1024};
inline constexpr Limits kHeadLimits{1, 4096};
inline constexpr Limits kHeadDimLimits{1, 4096};
inline constexpr Limits kWidthLimits{1, 1 << 20};
inline constexpr Limits kOptionalWidthLimits{0, 1 << 20};
inline constexpr Limits kVocabLimits{1, 1 << 22};
inline constexpr Limits kExpertLimits{1, 4096};
inline constexpr Limits kFewLimits{0, 1024};
inline constexpr Limits kPositionLimits{1, 1 << 30};
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 44;

/// A yes or no: what the family fixes (no key), or what a key says and an absent key means.
struct Choice {
  bool otherwise = false;
  std::string_view key;
};
inline constexpr Choice kNever{false, ""};
inline constexpr Choice kAlways{true, ""};
constexpr Choice by(std::string_view key, bool otherwise = false) { return {otherwise, key}; }

/// Which layers attend to a window only. A `layer_types` list in the config always decides where there is one.
enum class SpanRule : std::uint8_t {
  full,
  window,          ///< every layer, when sliding_window is stated
  qwen,            ///< layers from max_window_layers on, when use_sliding_window is true
  every_nth_full,  ///< all but each `span_period`-th
};

/// Which layers are MoE layers.
enum class MoeLayers : std::uint8_t {
  all,
  after_first_k,  ///< from first_k_dense_replace (or `first_dense`) on
  sparse_step,    ///< (i + 1) % decoder_sparse_step == 0 and i not in mlp_only_layers
  list,           ///< moe_layer_freq[i] != 0
  range,          ///< ERNIE: from moe_layer_start_index to moe_layer_end_index, each moe_layer_interval-th
};

struct MoeTraits {
  MoeLayers layers = MoeLayers::all;
  std::string_view experts = "num_experts|n_routed_experts|num_local_experts|moe_num_experts";
  std::string_view per_token = "num_experts_per_tok|num_experts_per_token|experts_per_token|moe_top_k|moe_k|top_k_experts";
  std::string_view width = "moe_intermediate_size";
  std::string_view dense_width = "intermediate_size";
  std::string_view first_dense = "first_k_dense_replace";  ///< how many layers, the first ones, are dense (after_first_k)
  std::int64_t first_dense_otherwise = 0;
  std::string_view shared_count = {};  ///< how many shared experts of the experts' width; "": none
  std::string_view shared_width = {};  ///< or their width in total
  std::int64_t shared_otherwise = 0;   ///< where the config says nothing: how many, or with no key for that their width
  bool shared_gate = false, router_bias = false, expert_bias = false, experts_gated = true, fused_experts = false;
  Choice correction_bias = kNever;
  Choice normalise_top_k = by("norm_topk_prob");
  RouterScore score = RouterScore::softmax;
  bool router_in_fp32 = false, weights_in_fp32 = false;
  std::int64_t groups_otherwise = 0, top_groups_otherwise = 0;  ///< n_group, topk_group; 0: the router knows no groups
};

struct Traits {
  std::string_view family = {};
  std::string_view hidden = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
                   kv_heads = "num_key_value_heads", head_dim = "head_dim", width = "intermediate_size",
                   positions = "max_position_embeddings", vocab = "vocab_size", activation = "hidden_act|hidden_activation",
                   hidden_dropout = "residual_dropout|resid_pdrop|hidden_dropout",
                   attention_dropout = "attention_dropout|attn_pdrop";
  std::int64_t kv_heads_otherwise = 0;  ///< 0: as many as heads
  std::int64_t head_dim_otherwise = 0;  ///< 0: hidden / heads
  std::int64_t width_factor = 0;        ///< times hidden, when the width is absent; 0: the width must be stated
  std::int64_t width_divisor = 1;       ///< Qwen 1 states twice the width
  Choice tied = by("tie_word_embeddings");
  Choice q_bias = kNever, kv_bias = kNever, out_bias = kNever, mlp_bias = kNever, head_bias = kNever;
  QkNorm qk_norm = QkNorm::none;
  Choice qk_norm_present = kAlways;
  NormKind norm = NormKind::rms;
  NormPlace norm_place = NormPlace::pre;
  bool gated = true, fused_qkv = false, fused_gate_up = false, softcap = false, sinks = false, output_gate = false;
  std::string_view activation_otherwise = "silu";
  bool rotary = true;
  double rotary_fraction = 1;  ///< of head_dim, when partial_rotary_factor is absent
  SpanRule span = SpanRule::full;
  std::int64_t span_period = 1;
  std::int64_t window_otherwise = 0;
  std::int64_t position_rows_extra = -1;  ///< rows of the learned position table beyond max positions; -1: no table
  bool embedding_norm = false;
  double hidden_dropout_otherwise = 0, attention_dropout_otherwise = 0, embedding_dropout_otherwise = 0;
  MoeTraits moe = {};
  bool is_moe = false;
  std::int64_t (*layer_count)(const Fields&, const Traits&) = nullptr;                      ///< nullptr: read_layers
  Mixer (*mixer)(const Fields&, const Traits&, std::int64_t layer) = nullptr;               ///< nullptr: attention_mixer
  FeedForward (*feed_forward)(const Fields&, const Traits&, std::int64_t layer) = nullptr;  ///< nullptr: dense_or_moe
  /// Corrects what a row cannot say, one layer at a time; and the whole, at the end.
  void (*adjust)(const Fields&, const Traits&, std::int64_t layer, Layer&) = nullptr;
  void (*finish)(const Fields&, const Traits&, Architecture&) = nullptr;
};

struct Family {
  std::string_view model_type;
  std::string_view only_class;  ///< "": whatever `architectures` says
  Traits traits;
};

// One table per group of families; catalog/families/registry.cpp joins them.
std::span<const Family> llama_like_families();
std::span<const Family> gpt_like_families();
std::span<const Family> moe_families();
std::span<const Family> dense_recent_families();
std::span<const Family> moe_recent_families();
std::span<const Family> mla_families();
std::span<const Family> gemma_families();
std::span<const Family> hybrid_families();
std::span<const Family> state_space_families();

/// The family of a model_type, preferring a row for this class; nullptr when there is none.
const Family* find_family(std::string_view model_type, std::string_view class_name);
/// The model_type of a class, for configs that name only the class; "" when unknown.
std::string_view model_type_of_class(std::string_view class_name);
std::vector<std::string> known_model_types();

// Readers of single values; errors name the key.
/// The first of the alternatives that is present, otherwise the first. Where transformers has a class for the config, names that
/// it does not know come last; "!" in front of a name: its class reads it although it is no field.
std::string_view present_key(const Fields&, std::string_view alternatives);
/// The class of the config knows none of these names, and so passes over them.
bool ignored_by_class(const Fields&, std::string_view alternatives);
bool chosen(const Fields&, Choice);
Activation read_activation(const Fields&, std::string_view key, std::string_view otherwise);
std::int64_t read_rotary_dim(const Fields&, const Traits&, std::int64_t head_dim);
std::int64_t read_hidden(const Fields&, const Traits&);
std::int64_t read_layers(const Fields&, const Traits&);

// The general halves of a layer.
Mixer attention_mixer(const Fields&, const Traits&, std::int64_t layer);
/// Of all positions.
Mixer attention_without_span(const Fields&, const Traits&);
FeedForward dense_feed_forward(const Fields&, const Traits&);
FeedForward moe_feed_forward(const Fields&, const Traits&);
FeedForward dense_or_moe(const Fields&, const Traits&, std::int64_t layer);
/// Sets span and window of `mixer` from layer_types or the family's rule.
void read_span(const Fields&, const Traits&, std::int64_t layer, Mixer& mixer);

/// Joins equal neighbours.
std::vector<LayerRun> runs_of(const std::vector<Layer>&);
/// Everything but name, model_type, dtype and quantisation.
Architecture read_decoder(const Fields&, const Traits&);

}  // namespace oomplan
