#include "inference/online_formats.hpp"

namespace oomplan {
namespace {

WeightFormat by_rows(DType dtype) { return {.dtype = dtype, .per_row = true}; }
WeightFormat by_groups(DType dtype, std::int64_t group, std::int64_t scale_bits) {
  return {.dtype = dtype, .group = group, .scale_bits = scale_bits};
}

Quantization all_of(WeightFormat format) { return {"online", {{format, {"Linear"}}}, {}}; }

/// One fp32 scale for a matrix (vLLM: online/fp8.py, before 0.20 fp8.py Fp8OnlineLinearMethod); SGLang has one for every row, but
/// for experts (sglang/srt/layers/quantization/fp8.py process_weights_after_loading, 0.5.10).
const Quantization& fp8(EngineKind engine) {
  static const Quantization kVllm = all_of({.dtype = DType::fp8});
  static const Quantization kSglang{"online", {{by_rows(DType::fp8), {"Linear"}}, {{.dtype = DType::fp8}, {"experts"}}}, {}};
  return engine == EngineKind::vllm ? kVllm : kSglang;
}

/// Scales are quantised once more in groups of 256; vLLM from 0.10 on keeps them in fp32 (bitsandbytes_loader.py _dequantize_dq),
/// SGLang as they are (sglang/srt/model_loader/loader.py, 0.5.10).
const Quantization& bitsandbytes(EngineKind engine) {
  static const Quantization kPlain = all_of(by_groups(DType::nf4, 64, 32)), kTwice = all_of(by_groups(DType::nf4, 64, 8));
  return engine == EngineKind::vllm ? kPlain : kTwice;
}

}  // namespace

const Quantization* online_quantization(EngineKind engine, const Server& server) {
  static const Quantization kBlocks = all_of({.dtype = DType::fp8, .block = 128}), kRows = all_of(by_rows(DType::fp8)),
                            kMx = all_of(by_groups(DType::fp8, 32, 8));
  static const Quantization kExperts{"online", {{by_rows(DType::int8), {"experts"}}}, {}};
  switch (server.online) {
    case OnlineFormat::none:
      return server.weights == DType::fp8 ? &fp8(engine) : nullptr;
    case OnlineFormat::fp8_per_block:
      return &kBlocks;
    case OnlineFormat::fp8_per_channel:
      return &kRows;
    case OnlineFormat::mxfp8:
      return &kMx;
    case OnlineFormat::experts_int8:
      return &kExperts;
    case OnlineFormat::bitsandbytes:
      return &bitsandbytes(engine);
  }
  return nullptr;
}

bool tower_is_converted(EngineKind engine, std::string_view tower, const Parameter& matrix, DType to) {
  constexpr std::int64_t kSide = 64;
  if (engine != EngineKind::vllm || tower == "gemma4" || matrix.shape.size() != 2) return false;
  const auto named = [&](std::string_view part) { return matrix.name.find(part) != std::string::npos; };
  if (tower == "siglip" && to != DType::nf4 && (matrix.shape[0] % kSide != 0 || matrix.shape[1] % kSide != 0)) return false;
  if (tower == "pixtral" && named("patch_merger")) return false;
  return named(".blocks.") || named("merger") || (tower == "pixtral" && named("projector.linear"));
}

bool router_is_converted(EngineKind engine, std::string_view model_type) {
  return engine == EngineKind::vllm && (model_type == "qwen3_moe" || model_type == "qwen3_vl_moe");
}

}  // namespace oomplan
