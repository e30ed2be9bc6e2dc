// How the modeling file of each family writes what its Architecture states: one row a family.
//
// An Architecture says which parts a layer has. Two families with the same parts still hold different tensors: one casts behind
// the norm's weight and another in front of it, one keeps cos and sin in fp32, one multiplies the embedding by a number. These
// differences are columns here, read in transformers 5.23.0, models/<family>/modeling_<family>.py. A family has a row only when
// every executed step of it that we have is reproduced (docs/training.md); the others are refused by name.
#pragma once
#include <cstdint>
#include <string_view>

namespace oomplan {

/// What a norm computes, and in which format.
enum class NormCode : std::uint8_t {
  rms,            ///< in fp32, cast back, then times the weight (Llama)
  rms_cast_last,  ///< times the weight in fp32, then cast back (OLMo 2)
  rms_wide_cast,  ///< the same, of an fp32 copy of the weight (Nemotron-H)
  rms_by_power,   ///< Gemma 3n, 4: the same, with a power in place of an inverse root; also without a weight
  rms_plus_one,   ///< times 1 + weight, in fp32, then cast back (Gemma)
  layer,          ///< the fused LayerNorm, in the format of its input
  layer_in_fp32,  ///< the fused LayerNorm of an fp32 copy, without parameters (OLMo)
  layer_by_hand,  ///< written out in fp32, weight only (Cohere)
};

enum class RotaryForm : std::uint8_t {
  half,     ///< x * cos + rotate_half(x) * sin (Llama)
  halves,   ///< both halves of x by themselves, with tables of half the width (gpt-oss)
  pairs,    ///< neighbours of x by themselves, with the first half of each table (DeepSeek V3)
  complex,  ///< x as complex numbers times a complex table (DeepSeek V2)
};

/// apply_rotary_pos_emb.
struct RotaryCode {
  RotaryForm form = RotaryForm::half;
  bool repeats_cos = false;       ///< half of cos and sin, each value twice: new tensors in every layer
  bool splits_head = false;       ///< the rotated part of a head is cut off and joined again, even where it is the whole head
  bool joins_at_once = false;     ///< ... with the sum as an unnamed operand
  bool table_in_fp32 = false;     ///< cos and sin are not cast to the compute dtype
  bool casts_first = false;       ///< q and k are fp32 from the start
  bool casts_terms = false;       ///< q, k and their rotated halves are cast to fp32 one by one
  bool by_axis = false;           ///< positions have three rows, of which one table is put together for each sequence (Qwen3.5)
  bool before_norm = false;       ///< the q/k norms stand behind the rotation
  bool scales_unrotated = false;  ///< ... of layers that do not rotate, in fp32; the others norm without weights (Llama 4)
  bool casts_behind = false;      ///< both complex products are there before the first is cast back
  bool scales_query = false;      ///< a factor for each position multiplies the rotated query
  bool always_tables = false;     ///< cos and sin are made although no layer may rotate
  bool keeps_parts = false;       ///< both parts of a head are names of attention's own function (Phi)
};

/// Where one matrix gives queries, keys and values.
enum class FusedQkv : std::uint8_t {
  slices,       ///< three slices, each with a gradient of the whole (Phi-3)
  split,        ///< one split, whose gradients one cat puts together (GPT-2, GPT-NeoX)
  multi_query,  ///< queries a slice, keys and values by an index, which copies; one for all heads or for a group (Falcon)
};

/// How attention and feed-forward of a parallel layer join the residual.
enum class ParallelSum : std::uint8_t {
  residual_first,  ///< residual + attention + feed-forward (Cohere)
  residual_last,   ///< attention + feed-forward + residual (Phi, GPT-NeoX)
  in_place,        ///< feed-forward += attention; residual + that (Falcon)
};

/// What Liger puts in the place of the family's modules (linkedin/Liger-Kernel src/liger_kernel/transformers/monkey_patch.py,
/// 0.8.1).
enum class LigerPatch : std::uint8_t {
  undescribed,
  modules,  ///< RMSNorm, rotary positions, SwiGLU: executed, or like a family that was
  none,     ///< nothing: it does not know the family
};

/// How the router's module is written, where its scores do not say it.
enum class RouterCode : std::uint8_t {
  by_score,
  widened_logits,  ///< Granite: logits cast to fp32, top-k, softmax of those, cast back
  ernie,           ///< fp32 throughout, chosen by corrected probabilities, divided by a clamped sum, cast back
  mistral4,        ///< softmax in the format of the logits, the best groups, divided in place, times a number
  hunyuan,         ///< fp32 throughout, the weights too, divided in place
  corrected,       ///< sigmoid in the format of the logits, which an fp32 copy of chooses; divided and scaled out of place (LFM2)
  corrected_cast,  ///< ... of an fp32 copy of the logits (Trinity)
  corrected_wide,  ///< ... of logits that are made in fp32 (Hunyuan 3)
  sparse_mixer,    ///< two experts drawn one after the other, with a gradient of their own (Phi-3.5 MoE)
};

/// Where a layer registers its norms: the order of its parameters.
enum class NormOrder : std::uint8_t {
  last,    ///< behind attention and feed-forward (Llama)
  first,   ///< in front of both (GPT-NeoX)
  before,  ///< each in front of its block (GPT-2)
  after,   ///< each behind its block (OPT)
};

/// Parts of a layer that no other family has, with files of their own.
enum class OwnCode : std::uint8_t { none, gptj, mpt, minimax, dbrx };

/// Where a block computes what all tokens share.
enum class SharedPlace : std::uint8_t {
  by_gate,  ///< a gated one in front of the router, another behind the experts
  first,    ///< in front of the view as rows (Hunyuan)
  rows,     ///< behind that view, in front of the router (ERNIE)
  between,  ///< behind the router, in front of the experts (Trinity)
  behind,   ///< of the rows, behind the experts (Hunyuan 3)
  apart,    ///< a block of the layer, with one matrix for both halves, behind the whole block of experts (Granite)
};

struct FamilyCode {
  std::string_view family;
  LigerPatch liger = LigerPatch::undescribed;
  NormCode norm = NormCode::rms;
  RotaryCode rotary = {};
  FusedQkv fused_qkv = FusedQkv::slices;
  ParallelSum parallel_sum = ParallelSum::residual_first;
  NormOrder norm_order = NormOrder::last;
  bool weight_transposed = false;      ///< x @ weight.T: a view, whose copy autocast does not keep (Falcon)
  bool conv1d = false;                 ///< weights lie as [in, out] (GPT-2)
  bool softmax_in_dtype = false;       ///< eager's softmax is computed in the format of the scores
  bool scales_projection = false;      ///< the projected query is multiplied by a number (OPT)
  bool keeps_attention = false;        ///< the layer keeps a name for the attention's output to its end (GPT-2)
  bool keeps_normed = false;           ///< ... and for the normed input of the attention (StableLM)
  bool projects_first = false;         ///< queries, keys and values are projected in front of the norms of heads (GLM-4.5)
  bool norms_heads = false;            ///< norms of queries and keys run on [B, heads, S, d] (Gemma 3)
  bool positions_by_sequence = false;  ///< positions are counted for each sequence, by its mask (OPT)
  bool flat_rows = false;     ///< the layer's second half runs on [B * S, H], written out in the layer; dropout there (OPT)
  bool router_first = false;  ///< the router is registered in front of the experts
  RouterCode router = RouterCode::by_score;
  SharedPlace shared = SharedPlace::by_gate;
  bool returns_router_weights = false;  ///< the layer keeps a name for the router's weights to its end
  bool linear_adapters_alone = false;   ///< peft's "all-linear" leaves experts and router out
  bool adapts_experts = false;          ///< ... or adapts their parameters, and no gate, up or down projection at all
  bool scales_in_module = false;        ///< the embedding's own module multiplies: hooks see the product (Gemma)
  bool tensor_parallel = false;         ///< executed under tensor parallelism
  bool scales_embedding = false, scales_residual = false, scales_logits = false;
  bool delta_apart = false;         ///< the gated delta rule has a projection for each of qkv, z, b and a (Qwen3.5)
  bool logits_in_fp32 = false;      ///< the model returns a copy of the logits in fp32 (Mamba)
  bool norms_scan = false;          ///< step, input and output of a state space are normed without weights (Falcon-Mamba)
  bool alibi = false;               ///< distances are added to the scores of attention (BLOOM)
  bool tables_by_span = false;      ///< windowed and full layers have cos, sin of their own
  bool flash_repeats = false;       ///< up to transformers 4.47 flash-attention got keys and values of all heads, as SDPA did
  bool returns_attention = false;   ///< eager's probabilities, which the model keeps until the next layer's come (Falcon)
  bool forces_mask = false;         ///< SDPA gets a mask of bools whatever the batch is
  bool indexer_by_half = false;     ///< its indexer rotates as Llama does, where attention rotates pairs (DeepSeek V3.2)
  bool returns_chosen = false;      ///< the layer returns what its indexer chose, which the next one gets (GLM-5)
  bool drops_in_attention = false;  ///< dropout behind attention is part of its module, which still names queries and keys then
  bool rebinds_embedding = false;   ///< the model's name for the embedded tokens becomes what dropout makes of them (Phi)
  bool mask_by_position = false;    ///< a checkpoint gets the mask as a positional argument, a variable that it saves (GPT-2)
  bool masks_by_span = false;       ///< both masks are made, whichever layers there are
  bool zero_window = false;         ///< a config without windows says 0, which any length reaches past: SDPA's mask is made
  bool norms_values = false;        ///< norms of queries, keys and values in front of rotary positions of whole heads (Gemma 4)
  bool values_last = false;         ///< ... those of values behind the keys' (Gemma 3n)
  bool layer_scalar = false;        ///< the layer's output is multiplied in place by a buffer
  bool every_expert = false;        ///< every expert gets every token (Llama 4)
  bool scales_values = false;       ///< values are multiplied by a number (MiMo-V2)
  bool shifts_scores = false;       ///< eager's softmax in the format of the scores, of which the highest is taken off first
  bool no_flash = false;            ///< transformers or its release of flash-attention refuses the model
  OwnCode own = OwnCode::none;
  bool state_in_place =
      false;                ///< a state space stands where attention does, in front of a feed-forward block (Granite 4, Jamba)
  bool gate_apart = false;  ///< the gate of attention's output has a matrix of its own (Trinity)
  bool correction_is_parameter = false;  ///< what corrects the experts' scores is a parameter that wants no gradient
  bool own_words = false;                ///< adapters may be asked for by the names of the family's own modules
  bool no_sdpa = false;                  ///< transformers refuses SDPA and takes eager attention when nothing is asked for
};

/// nullptr: no kernel set describes the family.
const FamilyCode* find_family_code(std::string_view family);
/// REQUIRES: the family is known.
const FamilyCode& family_code(std::string_view family);

}  // namespace oomplan
