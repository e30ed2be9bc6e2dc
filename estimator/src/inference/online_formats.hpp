// Weights that an engine converts itself, while it loads a checkpoint in 16 bits (--quantization NAME).
#pragma once
#include <string_view>

#include <oomplan/job.hpp>

#include "catalog/parameters.hpp"
#include "catalog/quantization.hpp"

namespace oomplan {

/// What the engine makes of every matrix; null where the server's settings ask for nothing of the kind. Lives for ever.
/// Formats: vllm/model_executor/layers/quantization, 0.9 to 0.24; sglang/srt/layers/quantization, 0.5.10.
const Quantization* online_quantization(EngineKind, const Server&);

/// Is the tower's matrix one of those that are converted? vLLM's classes hand the format on to their towers, but for Gemma 4's,
/// which is transformers' own, and Pixtral's merging layer; SigLIP's feed-forwards stay where 64 does not divide their sides, but
/// with bitsandbytes (vllm/model_executor/models/{qwen2_5_vl,qwen3_vl,gemma4_mm,siglip}.py, 0.19.1;
/// tests/data/executed_server_options.jsonl).
bool tower_is_converted(EngineKind, std::string_view tower, const Parameter& matrix, DType to);

/// Is the router? vllm/model_executor/models/qwen3_moe.py hands the format on to it, 0.19.1.
bool router_is_converted(EngineKind, std::string_view model_type);

}  // namespace oomplan
