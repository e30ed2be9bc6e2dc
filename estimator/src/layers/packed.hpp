// Linear layers of a frozen base as bitsandbytes and GPTQ store them: which tensors take a matrix's place, by format and release.
//
// Source: bitsandbytes-foundation/bitsandbytes, bitsandbytes/functional.py (quantize_4bit, QuantState) and nn/modules.py
// (Params4bit, Linear4bit), read at the releases 0.42.0 to 0.50.2.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

class Eager;

/// What differs between releases, as far as memory sees it: one row a change.
struct PackedCode {
  bool keeps_input = false;          ///< MatMul4Bit's ctx has the input as an attribute (up to 0.43.2)
  bool shares_code = false;          ///< the table of the scales' own quantisation is one for all layers (up to 0.45)
  bool computes_as_given = false;    ///< the first input's format is computed in, not the configured one (up to 0.46)
  bool dequantises_by_hand = false;  ///< gemm_4bit: the scales are rebuilt out of place, the matrix in the input's format (0.50)
  bool operator==(const PackedCode&) const = default;
};
/// The newest release that was read.
inline constexpr std::string_view kNewestBitsandbytes = "0.50.2";
/// Nothing for releases before 0.42.0 and for what is no version. Later ones than the newest are taken as that one.
std::optional<PackedCode> packed_code(std::string_view version);

/// What a leaf of the model is to bitsandbytes.
enum class PackedLeaf : std::uint8_t {
  none,
  weight,      ///< a packed matrix, a parameter
  statistics,  ///< what is needed to unpack it: plain tensors beside the parameter, which nothing shards
};

struct PackedOptions {
  BaseFormat format = BaseFormat::full;
  bool nested = false;              ///< double quantisation
  DType compute = DType::bf16;      ///< of the matrix products
  DType dequantised = DType::bf16;  ///< format that the matrices had when they were packed, and have again when they are unpacked
  PackedCode code;
  std::int64_t bits = 4, group = 0;  ///< GPTQ; group 0: all inputs of a layer
  std::int64_t outliers = 0;         ///< int8: columns of every input
  bool any() const { return format != BaseFormat::full; }
  bool operator==(const PackedOptions&) const = default;
};
/// `loaded`: format of the checkpoint's matrices.
PackedOptions packed_options(const QuantisedBase&, DType loaded);

/// A tensor that stands for a matrix; int8 stands for any byte.
struct PackedTensor {
  std::string_view name;  ///< behind the matrix's own, as in a state dict; empty: the packed matrix
  std::int64_t elements = 0;
  DType dtype = DType::int8;
  PackedLeaf kind = PackedLeaf::statistics;
};
std::vector<PackedTensor> packed_tensors(const PackedOptions&, std::int64_t elements, std::int64_t rows);

/// Elements that share a scale, and scales that share one of theirs.
inline constexpr std::int64_t kPackedBlock = 64, kNestedBlock = 256;

/// Packs a matrix that has just been declared: its leaf becomes the packed one, leaves of its statistics follow.
void pack(Eager&, int matrix);

}  // namespace oomplan
