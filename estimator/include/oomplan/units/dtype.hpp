// Number formats of tensors, with their size in bits. One table owns names and sizes.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include <oomplan/units/bytes.hpp>

namespace oomplan OOMPLAN_PUBLIC {

enum class DType : std::uint8_t { fp32, fp16, bf16, fp8, int8, int64, int32, boolean, nf4, int4, mxfp4, nvfp4, fp64 };

struct DTypeRow {
  DType value;
  std::string_view name;   ///< our spelling
  std::string_view torch;  ///< PyTorch's spelling
  int bits;                ///< of one element, scales not counted
};

inline constexpr std::array<DTypeRow, 13> kDTypes{{
    {DType::fp32, "fp32", "float32", 32},
    {DType::fp16, "fp16", "float16", 16},
    {DType::bf16, "bf16", "bfloat16", 16},
    {DType::fp8, "fp8", "float8_e4m3fn", 8},
    {DType::int8, "int8", "int8", 8},
    {DType::int64, "int64", "int64", 64},
    {DType::int32, "int32", "int32", 32},
    {DType::boolean, "bool", "bool", 8},
    {DType::nf4, "nf4", "uint8", 4},
    {DType::int4, "int4", "int4", 4},
    {DType::mxfp4, "mxfp4", "uint8", 4},
    {DType::nvfp4, "nvfp4", "uint8", 4},
    {DType::fp64, "fp64", "float64", 64},
}};

constexpr const DTypeRow& row(DType d) { return kDTypes[static_cast<std::size_t>(d)]; }
constexpr std::string_view name(DType d) { return row(d).name; }
/// Bytes of n elements, rounded up to whole bytes.
constexpr Bytes bytes_of(std::int64_t n, DType d) { return ceil_div(n * row(d).bits, 8); }

}  // namespace oomplan
