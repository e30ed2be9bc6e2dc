// Attention kernels: eager_attention_forward of the modeling files, and what transformers calls for SDPA and flash-attention 2.
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// Of a head, in numbers: check_head_dim_size_flash (aten sdp_utils.cpp, 2.13), flash_api.cpp of flash-attention 2.8.
inline constexpr std::int64_t kWidestFlash = 256;

struct Attention {
  Tensor query = {}, key = {}, value = {};  ///< [B, heads, S, d]; names of the caller
  Tensor mask = {};
  int sinks = -1;        ///< the leaf with one logit a head; -1: none
  bool by_head = false;  ///< query and key are contiguous with heads in front of tokens: a cat made them so
  bool softmax_in_dtype = false;
  bool shifts_scores = false;    ///< FamilyCode::shifts_scores
  bool expands_late = false;     ///< the one value head is expanded inside the product, not in front of all (Falcon)
  bool asks_for_groups = false;  ///< enable_gqa of PyTorch's function, whatever the width: keys and values come as they are
  bool flash_repeats = false;    ///< flash-attention gets keys and values of all heads (FamilyCode)
  Shape out_shape = {};          ///< [B, S, heads, d of values]
};

struct Attended {
  Tensor output;   ///< of the kernel, [B, S, heads, d]; the attention block puts o_proj's result here
  Tensor weights;  ///< eager only: the probabilities that the module returns
  Tensor chosen;   ///< GLM-5: what the indexer chose, which the layer returns
};
Attended attend(Eager& g, const Attention&, const KernelOptions&);

}  // namespace oomplan
