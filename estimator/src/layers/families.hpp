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
  rms_plus_one,   ///< times 1 + weight, in fp32, then cast back (Gemma)
  layer,          ///< the fused LayerNorm, in the format of its input
  layer_in_fp32,  ///< the fused LayerNorm of an fp32 copy, without parameters (OLMo)
  layer_by_hand,  ///< written out in fp32, weight only (Cohere)
};

/// apply_rotary_pos_emb.
struct RotaryCode {
  bool repeats_cos = false;    ///< half of cos and sin, each value twice: new tensors in every layer
  bool splits_head = false;    ///< the rotated part of a head is cut off and joined again, even where it is the whole head
  bool joins_at_once = false;  ///< ... with the sum as an unnamed operand
  bool table_in_fp32 = false;  ///< cos and sin are not cast to the compute dtype
  bool casts_first = false;    ///< q and k are fp32 from the start
  bool before_norm = false;    ///< the q/k norms stand behind the rotation
  bool scales_query = false;   ///< a factor for each position multiplies the rotated query
};

struct FamilyCode {
  std::string_view family;
  NormCode norm = NormCode::rms;
  RotaryCode rotary = {};
  bool scales_embedding = false, scales_residual = false, scales_logits = false;
  bool tables_by_span = false;  ///< windowed and full layers have cos, sin of their own
  bool masks_by_span = false;   ///< both masks are made, whichever layers there are
};

/// nullptr: no kernel set describes the family.
const FamilyCode* find_family_code(std::string_view family);
/// REQUIRES: the family is known.
const FamilyCode& family_code(std::string_view family);

}  // namespace oomplan
