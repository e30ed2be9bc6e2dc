// What differs between the releases of huggingface/transformers, as far as memory sees it: one row a change.
//
// The kernel sets hf_* are written after 5.23. Read besides: models/llama/modeling_llama.py of 4.37.2 and 4.45.2,
// loss/loss_utils.py of 4.46.3 to 4.50.3, integrations/sdpa_attention.py of 4.48.3 to 4.53.3, GradientCheckpointingLayer of 4.52
// (pull request 37223).
#pragma once
#include <optional>
#include <string_view>

namespace oomplan {

struct TransformersCode {
  bool widens_logits = false;   ///< forward makes the logits fp32, and those are what the caller gets (up to 4.45)
  bool copies_shifted = false;  ///< the loss takes a contiguous copy of the logits without the last token (up to 4.48)
  bool expands_keys = false;    ///< SDPA gets keys and values of all heads (up to 4.47 without further copies)
  bool checkpoints_units =
      false;  ///< a model checkpoints the call of a layer, which is FSDP's unit; later a layer its own (up to 4.51)
  bool expands_single = false;  ///< ... where a mask is given also beside one token's queries (before 5.24)
  bool expert_modules = false;  ///< experts are modules of their own, one after another (up to 4, gpt-oss aside)
  bool operator==(const TransformersCode&) const = default;
};
/// Nothing for releases before 4.37 and for what is no version. Empty: the newest.
std::optional<TransformersCode> transformers_code(std::string_view version);

/// Every layer has tables of cos and sin of its own, as long as the model's positions go: buffers, in the format in which the
/// model was made (Llama's to 4.40, of which 4.38 to 4.40 read nothing; Mistral's to 4.41, Mixtral's to 4.47, of others to 4.44).
bool registers_rotary_tables(std::string_view version, std::string_view family);

}  // namespace oomplan
