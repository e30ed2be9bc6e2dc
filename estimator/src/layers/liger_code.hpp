// What differs between the releases of linkedin/Liger-Kernel, as far as memory sees it: one row a change.
//
// Read in src/liger_kernel/ops of the releases 0.3.0 to 0.8.2.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace oomplan {

/// How the fused head adds a chunk's part to the gradient of its weight.
enum class HeadSum : std::uint8_t {
  in_place,  ///< addmm into the gradient
  product,   ///< a product of its own and its fp32 copy, each as large as the weight
};

struct LigerCode {
  bool norm_gradient_by_row = false;  ///< RMSNorm: a weight gradient of every row is summed; later of every multiprocessor
  bool head_upcasts = false;          ///< fused head: the logits of a chunk are cast to fp32 and back
  bool head_scales = false;           ///< ... and multiplied by the chunk's share of the tokens
  HeadSum head_sum = HeadSum::product;
  bool operator==(const LigerCode&) const = default;
};

/// The newest release that was read.
inline constexpr std::string_view kNewestLiger = "0.8.2";
/// Nothing for releases before 0.2.1 and for what is no version. Later ones than the newest are taken as that one.
std::optional<LigerCode> liger_code(std::string_view version);

/// The fused operators of one model, as transformers' use_liger_kernel and Liger's apply_liger_kernel_to_* put them in.
struct LigerOptions {
  bool rope = false, rms_norm = false, glu = false;
  LigerCode code;
  std::int64_t multiprocessors = 132;  ///< of the GPU: the norm's weight gradient has a row for each
  bool any() const { return rope || rms_norm || glu; }
  bool operator==(const LigerOptions&) const = default;
};

}  // namespace oomplan
