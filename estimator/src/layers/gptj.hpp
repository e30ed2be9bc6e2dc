// GPT-J's attention, which is its own (transformers, models/gptj/modeling_gptj.py, 5.23.0): tables of positions in every layer,
// neighbours rotated, scores in fp32.
#pragma once
#include "layers/attention.hpp"

namespace oomplan {

/// GPTJAttention.forward (hf_eager) and GPTJFlashAttention2.forward (hf_flash). `positions`: rows of the model's table.
Attended run_gptj_attention(Eager& g, const Mixer&, std::int64_t positions, std::int64_t hidden, const LayerLeaves&,
                            const KernelOptions&, const LayerContext&, const Tensor& x);

/// Tables of positions that every layer has as a buffer, whole on every rank; 0 in other families.
Bytes gptj_buffers(const Architecture&);

}  // namespace oomplan
