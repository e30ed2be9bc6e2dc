// What a model is made of, as its config.json says: runs of equal layers, each a mixer and a feed-forward with their norms.
//
// An Architecture is a plain value: read once (catalog/read_config), never changed, compared with ==. Dimensions are counts of
// elements, unsharded. Zero means "does not apply". The kernel sets (layers/) and the parameter inventory (catalog/parameters)
// are both functions of this value and of nothing else.
//
// Legend: h hidden size, V rows of the embedding matrix, L layers, E experts.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/units/dtype.hpp>

#include "catalog/quantization.hpp"
#include "units/enums.hpp"

namespace oomplan {

enum class MixerKind : std::uint8_t {
  none,         ///< the layer has no mixer (Nemotron-H feed-forward blocks, pruned DeciLM layers)
  attention,    ///< softmax attention over heads (full, sliding or chunked span)
  mla,          ///< multi-head latent attention (DeepSeek V2 and later)
  gated_delta,  ///< gated DeltaNet (Qwen3-Next, Qwen3.5)
  kimi_delta,   ///< Kimi delta attention
  mamba1,
  mamba2,
  lightning,   ///< MiniMax lightning attention
  short_conv,  ///< LFM2
  linear,      ///< one h x h matrix in place of attention (DeciLM)
};
enum class AttentionSpan : std::uint8_t { full, sliding, chunked };
enum class NormKind : std::uint8_t {
  none,
  rms,             ///< x * rsqrt(mean(x^2) + eps) * w
  rms_plus_one,    ///< Gemma: multiplied by (1 + w) in fp32
  layer,           ///< LayerNorm with weight and bias
  layer_no_bias,   ///< LayerNorm with weight only (Cohere)
  non_parametric,  ///< LayerNorm without parameters (OLMo 1)
};
/// Over what the q/k norms run: nothing, one head (weight of head_dim), or all heads (weight of heads * head_dim).
enum class QkNorm : std::uint8_t { none, head, full, unweighted };
/// Where a layer's norms stand, and how many there are.
enum class NormPlace : std::uint8_t {
  pre,           ///< 2: before mixer, before feed-forward (Llama)
  pre_and_post,  ///< 4: before and after both (Gemma 2, GLM-4-0414)
  post,          ///< 2: after mixer, after feed-forward (OLMo 2)
  parallel_one,  ///< 1: mixer and feed-forward read the same normed input (Falcon-7B, Cohere, Phi-2)
  parallel_two,  ///< 2: parallel, one norm each (GPT-NeoX, Falcon-40B)
  single,        ///< 1: the layer has only one half (Nemotron-H)
};
enum class FeedForwardKind : std::uint8_t { none, gated, plain, moe, linear };
/// xielu: has two learned numbers (Apertus). gelu_new: GELU's tanh form written out operator by operator, where gelu_tanh is one
/// kernel.
enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, gelu_new, relu, relu_squared, xielu };
enum class RouterScore : std::uint8_t { softmax, sigmoid, softmax_of_top_k, sqrt_softplus };

struct Mixer {
  MixerKind kind = MixerKind::none;
  // attention
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t value_head_dim = 0;  ///< of v; head_dim unless the model says otherwise
  AttentionSpan span = AttentionSpan::full;
  std::int64_t window = 0;      ///< tokens, for sliding and chunked spans
  std::int64_t rotary_dim = 0;  ///< leading part of head_dim that is rotated; 0: no rotary positions
  bool q_bias = false, k_bias = false, v_bias = false, out_bias = false;
  QkNorm qk_norm = QkNorm::none;
  bool output_gate = false;            ///< q projection doubled, output multiplied by sigmoid of the second half (Qwen3-Next)
  bool sinks = false;                  ///< one learned logit a head (gpt-oss)
  bool softcap = false;                ///< tanh soft cap of the scores (Gemma 2)
  bool clip = false;                   ///< clip_qkv is stated: projections are clamped in place (OLMo)
  bool fused_qkv = false;              ///< the checkpoint stores one matrix for q, k, v
  bool fused_by_group = false;         ///< ... in groups of queries with one key and one value (Falcon's new architecture)
  bool shared_kv = false;              ///< keys and values of an earlier layer are used: no k, v weights and no cache
  bool stores_kv = false;              ///< its keys and values are those that later layers use
  bool key_is_value = false;           ///< one projection gives k and v (Gemma 4 full layers)
  std::int64_t query_group_width = 0;  ///< Step-3: width of the shared, normed query
  bool head_gate = false;              ///< one sigmoid gate a head on the output (Step-3.7)
  // mla
  std::int64_t q_lora_rank = 0, kv_lora_rank = 0, nope_head_dim = 0, rope_head_dim = 0;
  std::int64_t index_top = 0;                        ///< keys that the indexer chooses for a query
  bool index_shared = false;                         ///< what an earlier layer's indexer chose
  std::int64_t index_heads = 0, index_head_dim = 0;  ///< sparse-attention indexer (DeepSeek V3.2, GLM-5, MiniMax-M3)
  std::int64_t index_chosen = 0;                     ///< entries that it chooses for a token (DeepSeek V4); 0: not read
  /// DeepSeek V4: keys and values are one shared head of head_dim; the output passes through out_groups projections of rank
  /// out_lora_rank; beside the window every compress_ratio tokens leave one entry (0: none).
  std::int64_t out_lora_rank = 0, out_groups = 0, compress_ratio = 0;
  // linear attention and state space: d_inner = linear_value_heads * linear_value_dim where split in heads
  std::int64_t linear_key_heads = 0, linear_key_dim = 0, linear_value_heads = 0, linear_value_dim = 0;
  std::int64_t conv_kernel = 0, state_size = 0, groups = 0, inner = 0, dt_rank = 0;
  std::int64_t chunk = 0;  ///< tokens that a scan takes at a time (Mamba-2)
  bool conv_bias = false, ssm_norms = false;
  std::int64_t input_width = 0;  ///< of what queries, keys and values are made of, where it is not h (EAGLE-3: 2h); 0: h
  bool operator==(const Mixer&) const = default;

  std::int64_t q_width() const { return heads * head_dim; }     // "A"
  std::int64_t k_width() const { return kv_heads * head_dim; }  // "K"
  std::int64_t v_width() const { return kv_heads * (value_head_dim ? value_head_dim : head_dim); }
  std::int64_t out_width() const { return heads * (value_head_dim ? value_head_dim : head_dim); }
};

struct FeedForward {
  FeedForwardKind kind = FeedForwardKind::none;
  Activation activation = Activation::silu;
  std::int64_t width = 0;  ///< of the dense block; in a MoE layer: of the dense block beside the experts, if any
  bool bias = false;
  bool sparse_gate = false;    ///< Gemma 3n: of the gate only what lies far above its mean is kept
  bool fused_gate_up = false;  ///< the checkpoint stores gate and up as one matrix
  // moe
  std::int64_t experts = 0, experts_per_token = 0, expert_width = 0;
  std::int64_t shared_width = 0;   ///< of all shared experts together
  std::int64_t latent_width = 0;   ///< Nemotron-H: experts work on a projection of h
  bool shared_gate = false;        ///< sigmoid gate of the shared expert (Qwen2-MoE)
  bool router_scales = false;      ///< Gemma 4: learned scales of router input and experts, three more norms around the branches
  bool router_bias = false;        ///< bias of the router matrix (gpt-oss)
  std::int64_t router_groups = 0;  ///< groups of experts of which some are chosen first (n_group); 0: none
  std::int64_t router_top_groups = 0;  ///< ... how many (topk_group)
  bool correction_bias = false;        ///< e_score_correction_bias (DeepSeek V3)
  bool token_table = false;            ///< a buffer tells the experts of every token id (DeepSeek V4)
  bool expert_bias = false;
  bool experts_gated = true;     ///< gate, up, down; false: up, down
  bool fused_experts = false;    ///< the checkpoint stores all experts of a matrix as one 3-D tensor
  bool normalise_top_k = false;  ///< the k weights are divided by their sum (norm_topk_prob)
  RouterScore score = RouterScore::softmax;
  bool router_in_fp32 = false;   ///< router weight and input are cast to fp32 (DeepSeek V3)
  bool weights_in_fp32 = false;  ///< routing weights stay fp32, and so does their product with the experts' output
  bool input_jitter = false;     ///< what comes into the block is multiplied by noise in training (Phi-3.5 MoE)
  bool sums_in_fp32 = false;     ///< what routed and shared experts give is added in fp32 (Hunyuan 3)
  bool operator==(const FeedForward&) const = default;
};

struct Layer {
  Mixer mixer;
  FeedForward feed_forward;
  NormKind norm = NormKind::rms;
  NormPlace norm_place = NormPlace::pre;
  bool wide_residual = false;        ///< the residual is added up in fp32 (Mamba)
  std::int64_t layer_scalars = 0;    ///< further learned elements of the layer that belong to no block
  std::int64_t buffer_scalars = 0;   ///< elements of the layer that nothing trains
  std::int64_t per_layer_input = 0;  ///< Gemma 3n/4: width of the per-layer embedding that joins here
  std::int64_t laurel_rank = 0;      ///< Gemma 3n: rank of the learned augmented residual
  std::int64_t altup_inputs = 0;     ///< Gemma 3n: copies of the hidden state that alternate (AltUp)
  std::int64_t streams = 0;          ///< DeepSeek V4: residual streams mixed before and behind both halves (hyper-connections)
  bool operator==(const Layer&) const = default;
};

/// `count` equal layers in a row.
struct LayerRun {
  Layer layer;
  std::int64_t count = 0;
  bool operator==(const LayerRun&) const = default;
};

/// Multi-token prediction blocks stored in the checkpoint; training and serving drop them unless asked.
struct Mtp {
  std::vector<LayerRun> layers;
  std::int64_t projections = 0;                  ///< matrices 2h -> h
  std::int64_t norms = 0;                        ///< norms of width h outside the layers
  bool own_embedding = false, own_head = false;  ///< copies of embedding and head stored in the checkpoint
  bool operator==(const Mtp&) const = default;
};

/// What the config.json of a head that drafts for another model says beside its layers (EAGLE, EAGLE-3).
struct DraftHead {
  std::string class_name;               ///< of `architectures`, where it names a draft
  std::int64_t vocab = 0;               ///< draft_vocab_size: rows of its own head; 0: unstated
  std::int64_t target_hidden = 0;       ///< target_hidden_size: width of the states that it reads; 0: its own
  std::int64_t states = 3;              ///< of how many layers it reads them; 0: of the last one alone (use_aux_hidden_state)
  bool norm_before_projection = false;  ///< norm_before_fc
  bool operator==(const DraftHead&) const = default;
};

/// Gemma 4's tower of sound (a Conformer), with its projection. Only counted.
struct AudioTower {
  std::int64_t layers = 0, hidden = 0, heads = 0,
               kernel = 0;            ///< layers 0: the model has none; kernel of the depthwise convolution
  std::int64_t channels[2] = {0, 0};  ///< of the two convolutions in front
  std::int64_t out_hidden = 0;
  bool operator==(const AudioTower&) const = default;
};

/// The vision (or other modality) tower and its projector. What the kernel sets do not describe yet is only counted.
struct Tower {
  std::string kind;  ///< a row of tower_parameters.cpp: "qwen3_vl", "siglip", ...; "" when the model has none
  std::int64_t layers = 0, hidden = 0, heads = 0, width = 0, patch = 0, temporal_patch = 0, merge = 0, positions = 0;
  std::int64_t out_hidden = 0, deepstack = 0;
  std::int64_t head_dim = 0, projector_width = 0;
  bool projector_bias = false;
  bool pooling_head = false;                   ///< SigLIP: attention that pools all patches, beside what the language model reads
  std::int64_t window = 0;                     ///< pixels of a window's side, where blocks attend by windows; 0: none does
  std::vector<std::int64_t> full_blocks;       ///< of those: blocks that attend to the whole image
  std::vector<std::int64_t> deepstack_blocks;  ///< whose output layers of the language model get too
  AudioTower audio;
  bool operator==(const Tower&) const = default;
};

struct Architecture {
  std::string name;        ///< hub id, or the path it was read from
  std::string model_type;  ///< of config.json
  std::string family;      ///< our key for kernel sets: "llama", "qwen2", "qwen3", "qwen3_moe", ...
  std::int64_t hidden = 0, vocab = 0;
  std::int64_t max_positions = 0;
  bool yarn = false;              ///< positions are stretched by YaRN (rope_scaling)
  bool tied = false;              ///< the head is the embedding
  bool scaled_embedding = false;  ///< the config asks for it (Trinity); families that always scale are kernel sets' affair
  bool head_bias = false;
  bool final_softcap = false;        ///< tanh soft cap of the logits (Gemma 2)
  std::int64_t position_rows = 0;    ///< rows of a learned position table (GPT-2, OPT); 0: none
  std::int64_t embedding_width = 0;  ///< where it differs from h (OPT-350M); 0: h
  bool embedding_norm = false;       ///< a norm behind the embedding (BLOOM)
  std::int64_t per_layer_vocab = 0;  ///< Gemma 3n/4: rows of the table of per-layer embeddings
  NormKind final_norm = NormKind::rms;
  std::vector<LayerRun> runs;
  Mtp mtp;
  DraftHead draft;
  Tower tower;
  DType dtype = DType::bf16;  ///< of the checkpoint
  Quantization quantization;  ///< how the checkpoint stores its matrices; method "": not quantised
  double attention_dropout = 0, hidden_dropout = 0, embedding_dropout = 0;
  bool operator==(const Architecture&) const = default;

  std::int64_t layers() const;  ///< of all runs
};

template <>
inline constexpr std::array<std::pair<MixerKind, std::string_view>, 10> kNames<MixerKind>{
    {{MixerKind::none, "none"},
     {MixerKind::attention, "attention"},
     {MixerKind::mla, "mla"},
     {MixerKind::gated_delta, "gated_delta"},
     {MixerKind::kimi_delta, "kimi_delta"},
     {MixerKind::mamba1, "mamba1"},
     {MixerKind::mamba2, "mamba2"},
     {MixerKind::lightning, "lightning"},
     {MixerKind::short_conv, "short_conv"},
     {MixerKind::linear, "linear"}}};

}  // namespace oomplan
