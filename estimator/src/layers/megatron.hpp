// Megatron-core's GPTModel on Transformer Engine, operator by operator: one chunk of it, as a pipeline stage holds it.
//
// Read at megatron-core 0.16.1: megatron/core/{models/gpt/gpt_model,transformer/transformer_layer,transformer/attention,
// transformer/mlp,tensor_parallel/layers,tensor_parallel/cross_entropy,fusions/*}.py. Legend as in te.hpp; f feed-forward width,
// V rows of the (padded) vocabulary.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/vision_pass.hpp"
#include "layers/megatron_actor_losses.hpp"
#include "layers/megatron_lora.hpp"
#include "layers/tape.hpp"
#include "layers/te.hpp"

namespace oomplan {

/// The loss of AReaL's Megatron engine: log-probs of the next tokens and their entropy, in place of Megatron's own loss.
struct ArealLoss {
  bool on = false;
  bool value = false;           ///< a critic: one number a token in place of the vocabulary
  std::int64_t labels = 1;      ///< with `value`: so many numbers (Relax's classification)
  std::int64_t parts = 0;       ///< sequences that are copied out of the padding, at most three of them; 0: none are
  int chunks = 1;               ///< of logprobs_chunk_size rows: as many as are simulated; 0: all rows at once
  bool entropy = true;          ///< it is computed, as a metric; without chunks: before 0.5.0 SFT asks for log-probs alone
  bool fp32 = false;            ///< the output layer's product writes fp32 (megatron.enable_chunked_logits)
  bool in_place = false;        ///< ... over which training writes the softmax and its gradient
  std::int64_t head_chunk = 0;  ///< rows of the output layer that run at once, and again in backward; 0: all
  /// Without gradients context-parallel ranks gather the logits of whole sequences, of so many at least (3: or more); 0: they do
  /// not.
  std::int64_t gathered = 0;
  bool operator==(const ArealLoss&) const = default;
};

/// One chunk: which layers, and what stands before and behind them.
struct ChunkOptions {
  std::vector<int>
      layers;         ///< of each layer its run in the Architecture; ~run: with products in 16 bits whatever the others have
  bool first = true;  ///< the embedding is there; otherwise hidden states come from another chunk
  bool last = true;   ///< final norm, output layer and loss are there; otherwise hidden states are handed on
  TeOptions te;
  Recompute recompute = Recompute::none;
  Megatron settings;
  std::int64_t padded_vocab = 0;
  std::int64_t expert = 1, expert_tensor = 1;
  bool softmax_kernel = true;  ///< transformer_impl local: the kernel of mask and softmax runs
  std::int64_t mtp = 0;        ///< blocks of multi-token prediction behind the last layer
  std::int64_t idle_mtp = 0;   ///< blocks that have parameters, and nothing calls
  MegatronAdapters adapters;
  ArealLoss areal;
  std::optional<ActorLoss> actor;     ///< in place of Megatron's own loss
  bool forward_only = false;          ///< under no_grad
  VisionPass vision;                  ///< of a model with a vision tower, which stands in front of the embedding
  std::int64_t image_ranks = 1;       ///< that share out the images, and gather what the tower gives
  std::int64_t all_images = 0;        ///< of all these ranks
  std::int64_t image_rows = 1;        ///< sequences that images lie in, where each has a row of its own
  std::int64_t rank_features = 0;     ///< features that stand in the place of tokens of one rank
  std::int64_t featured = 0;          ///< first layers that get features of the tower's inner blocks (deepstack)
  bool rotary_in_fp32 = false;        ///< of a tower: apply_rotary_pos_emb_in_fp32
  std::int64_t packed = 0;            ///< sequences of a row, at most three; 0: each has a row of its own, padded
  std::int64_t delta_chunks = 0;      ///< of 64 tokens that a gated delta rule takes in a row; 0: it is not described
  bool own_attention = false;         ///< beside a tower: queries and keys go when they have been turned (Qwen3VLSelfAttention)
  bool of_slime = false;              ///< layers of slime's specifications, on Megatron as slime patches it
  bool patched = false;               ///< Megatron as slime or Relax patches it, whoever makes the layers
  bool gemma = false;                 ///< Relax's Gemma 4 by Megatron-Bridge: layers of its own (megatron_gemma.cpp)
  std::vector<std::int64_t> lengths;  ///< tokens of packed sequences, whose attention wide heads compute one after another
  TowerTraining tower = TowerTraining::all;  ///< projector: its mergers alone are trained
  EmbeddingSort embedding_sort = EmbeddingSort::none;
  bool kernel_internals = true;  ///< of the scatter over a mask
  bool operator==(const ChunkOptions&) const = default;
};

/// mbridge's Qwen3.5 and Megatron-Bridge's Qwen2.5-VL have transformers' own tower, on every rank
/// (mbridge/models/qwen3_5/model.py, 10cb17f; megatron/bridge/models/qwen_vl/modeling_qwen25_vl.py, 0.5.2).
bool tower_of_transformers(const Architecture&, const ChunkOptions&);
/// Kimi K2.5's tower is the checkpoint's own module, whole on every rank: its parameters are described, images are not
/// (megatron/bridge/models/kimi_vl/modeling_kimi_k25_vl.py, 2faedbf6).
bool holds_tower_alone(const Architecture&);
/// The latter embeds tokens before the images go through the tower, and scatters their features over a mask.
bool embeds_before_tower(const Architecture&, const ChunkOptions&);

/// A matrix whose gradients several nodes make.
struct SharedWeight {
  Tensor weight;       ///< its node collects them
  Tensor placeholder;  ///< what a product with fused sums hands on: somebody else's
};

/// An entry of ChunkOptions::layers.
constexpr std::size_t run_of(int layer) { return static_cast<std::size_t>(layer < 0 ? ~layer : layer); }
constexpr bool stays_wide(int layer) { return layer < 0; }

/// Layers that run as one: a run of a checkpoint, or one layer.
struct LayerGroup {
  std::vector<int> layers;
  bool checkpoint = false;
  std::int64_t featured = -1;  ///< number of the first of these layers in the chunk, where one of them gets features
  bool operator==(const LayerGroup&) const = default;
};
/// A chunk's layers as they run. Equal groups in a row are the units of one station of its tape.
std::vector<LayerGroup> layer_groups(const ChunkOptions&);

/// Layers of the chunk with those of its blocks of multi-token prediction, which are like the model's last one.
std::vector<int> all_layers(const Architecture&, const ChunkOptions&);

/// Layers of Megatron-core's own modules.
bool is_local(const ChunkOptions&);
/// Megatron-core's own attention runs, in its own modules or between Transformer Engine's.
bool scores_itself(const ChunkOptions&);

/// Blocks of multi-token prediction beside an actor's loss, which hand no gradient on.
inline bool predicts_apart(const ChunkOptions& o) { return o.actor.has_value() && o.settings.mtp_detached; }

/// Is the module named among those whose inside is computed again?
bool recomputes(const ChunkOptions&, std::string_view module);

/// Why the model cannot be run so; "" when it can.
std::string unsupported_chunk(const Architecture&, const ChunkOptions&);

/// A forward and a backward pass of the chunk. The hidden states that come in, and their gradient once it has been sent, are not
/// in the tape: they live as long as the schedule says. Throws InputError for what is not described.
std::shared_ptr<const Tape> make_chunk_tape(const Architecture&, const ChunkOptions&);

/// Storages that one layer of the chunk saves for backward, without recomputation: bytes as sites.
std::vector<TapeSite> saved_of_chunk_layer(const Architecture&, const ChunkOptions&, std::size_t layer);

/// TransformerLayer.forward: x is held by the caller, and so is the mask of the batch, if there is one.
Tensor run_megatron_layer(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x,
                          const Tensor& mask = {});
/// The norm in front of latent attention and MLASelfAttention.forward.
Tensor run_megatron_mla(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x);
/// The norm in front of linear attention and GatedDeltaNet.forward.
Tensor run_megatron_delta(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x);
/// The norm and linear attention of slime's own layers, whole on every rank.
Tensor run_slime_delta(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x);
/// MiniMax-M2's norm of all heads of queries or keys together, x [S, B, heads, k] of this rank: they are gathered for it.
Tensor norm_of_all_heads(Eager&, const ChunkOptions&, NormKind, const Tensor& x, bool copies, const std::string& name);
/// Gemma4DenseTransformerLayer.forward with Relax's attention.
Tensor run_megatron_gemma_layer(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x);
/// Its dense feed-forward is a shared expert there.
FeedForward bridged_experts(const FeedForward&);
/// What of Gemma 4 by Megatron-Bridge is not described; "": nothing.
std::string unsupported_gemma(const Architecture&, const ChunkOptions&);
/// all_gather_last_dim_from_tensor_parallel_region: parts one behind another, put side by side.
Tensor gathered_projection(Eager&, const Tensor& part, Dim columns, const std::string& name);
/// The norm in front of the experts and MoELayer.forward.
Tensor run_megatron_moe(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x);
/// The attention itself, under a checkpoint where that is asked for.
Tensor run_megatron_core(Eager&, const Tensor& query, const Tensor& key, const Tensor& value, AttentionViews, const ChunkOptions&,
                         const Tensor& mask = {});
/// Rotary positions of the last `width` columns without a kernel of their own: cosines and sines are made and kept for every
/// call. `interleaved`: the columns are put apart first, as latent attention has them.
/// `by_sequence`: every sequence has positions of its own.
Tensor megatron_rotary(Eager&, const Tensor& x, Dim width, bool interleaved, const std::string& name, bool by_sequence = false);
/// The same of packed sequences as slime's Megatron has it: their angles are put together first, and `pairs` of neighbours turn
/// where --rotary-interleaved says so.
Tensor packed_rotary(Eager&, const Tensor& x, Dim width, bool pairs, const std::string& name);
/// The same of queries or keys that are cast to fp32 and back.
Tensor megatron_rotary_in_fp32(Eager&, const Tensor& x, Dim width, const std::string& name, bool by_sequence = false);

/// Latent attention before 0.13: down-projections are split over the ranks by their columns
/// (megatron/core/models/gpt/gpt_layer_specs.py, core_v0.12.1).
bool splits_latents(const Megatron&, const TeOptions&);

/// glu() of MLP and TEGroupedMLP without its kernel: silu(x_glu) * (x_linear + offset) over both halves of x, each of `width`.
/// Shared experts beside the exchange have no offset (adds_offset: glu_linear_offset came with 0.15).
bool adds_offset(const Megatron&);
Tensor unfused_glu(Eager&, const Tensor& x, std::int64_t width, bool offset, const std::string& name);

/// Without a kernel of bias and activation: x + bias of its own, whose gradient is the sum's.
Tensor megatron_with_bias(Eager&, const Tensor& x, const std::string& name);
/// bias_activation_fusion: the kernel adds the bias. There is none for squared ReLU.
inline bool fuses_activation(const FeedForward& f, const ChunkOptions& o) {
  return o.settings.activation_fusion && f.activation != Activation::relu_squared;
}

/// Output layer and loss, from the normed hidden states. `weight`: where several products or the embedding share the matrix, so
/// that its gradients meet; empty otherwise.
Tensor run_megatron_head(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden, const SharedWeight& weight);

/// AReaL's: the output layer and its log-probs, or a critic's value head. `scope` as in run_head.
Tensor run_areal_megatron_head(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden, const SharedWeight& weight,
                               const std::function<void(int)>& scope);
/// verl's use_fused_kernels (verl/models/mcore/model_forward_fused.py, 0.5 to 0.10): the actor's loss without logits of all
/// tokens.
Tensor run_verl_fused_megatron_head(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden, const Tensor& labels,
                                    const SharedWeight& weight);
/// Relax's --sft-chunked-logits (_bypass_output_layer, relax/backends/megatron/model.py): the loss runs the output layer.
/// The embedding has another matrix: Relax refuses a shared one.
Tensor run_megatron_head_in_loss(Eager&, const Architecture&, const ChunkOptions&, Tensor hidden, const SharedWeight& weight);
/// The output layer alone: logits of this rank's part of the vocabulary, in 16 bits or fp32.
Tensor megatron_output_layer(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden, const SharedWeight& weight,
                             DType format = DType::bf16);

/// Multi-token prediction (megatron/core/transformer/multi_token_prediction.py): the blocks, from the normed hidden states on.
/// The result holds the hidden states of the decoder and of every block. `embed`: of the tokens that are one further each time.
/// `leaf`: the same states without what made them, whose gradient is kept; of verl's actors, which train the blocks alone.
/// `beside`: what a checkpoint is given, too.
Tensor run_megatron_mtp(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden,
                        const std::function<Tensor()>& embed, const std::function<Tensor(const Tensor&)>& leaf,
                        const Tensor& beside = {});
/// The losses of the blocks from what run_megatron_mtp gave; the decoder's hidden states, which carry them.
Tensor run_megatron_mtp_losses(Eager&, const Architecture&, const ChunkOptions&, const Tensor& all, const SharedWeight& weight);
/// What run_megatron_mtp gave, its losses and the decoder's own.
Tensor run_megatron_heads(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden, const SharedWeight& weight);

}  // namespace oomplan
