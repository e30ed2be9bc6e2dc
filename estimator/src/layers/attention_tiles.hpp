// Tiles of attention's kernels, and what PyTorch's memory-efficient one makes inside of itself for them.
#pragma once
#include <string_view>

#include "catalog/architecture.hpp"
#include "layers/eager.hpp"

namespace oomplan {

struct KernelOptions;

/// The GPU as the memory-efficient kernel sees it: its shared memory says which tiles it takes.
enum class SharedMemory : std::uint8_t {
  large,             ///< sm80, sm90, sm100, sm103: tiles of 128 x 128
  small,             ///< sm120, sm121
  small_ampere_ada,  ///< sm86, sm89: a kernel of their own for heads of up to 96 columns
  volta,             ///< sm70, sm75
};
SharedMemory shared_memory(std::string_view sm);

/// Counts of a pass whose rows fill no whole tiles, or in which sums of wide heads are cut into parts; zeros: rows do fill them,
/// and tapes are shared among all such counts.
struct AttentionTiles {
  SharedMemory memory = SharedMemory::large;
  std::int64_t sequences = 0, tokens = 0;
  bool by_length = false;  ///< flash-attention takes padded sequences by their lengths
  bool operator==(const AttentionTiles&) const = default;

  /// Rows of the axis in whole tiles.
  Dim rows(const Dim& axis, std::int64_t tile) const;
};
AttentionTiles attention_tiles(const KernelOptions&, const Architecture&, const TokenCounts&, SharedMemory);

/// What flash-attention's backward pass sums the queries' gradients in: rows of 128, or 128 more a sequence where it takes them
/// by their lengths, and heads of 32 columns, from 128 on of 64. How many sequences are packed is data: none is counted for them.
Shape flash_sums(const Shape& queries, const AttentionTiles&);

/// Inside of the memory-efficient kernel's forward pass, beside its result: sums in fp32 of heads wider than 128
/// (pytorch/pytorch aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_forward.h kNeedsOutputAccumulatorBuffer,
/// attention.cu, 2.0 to 2.13).
void make_efficient_forward(Eager&, const Tensor& q, const Tensor& v);

/// Inside of its backward pass, beside the gradients and `delta`, one fp32 number a row: sums of the queries' gradient in fp32,
/// in whole tiles, and of the keys' and values' where a tile does not hold a head (mem_eff_attention/kernel_backward.h
/// workspace_size, kernels/cutlassB.h, attention_backward.cu, 2.1 to 2.13). In fp32 delta comes from the product of gradient and
/// result.
void make_efficient_backward(Eager&, const Tensor& q, const Tensor& k, const Tensor& v, DType, const AttentionTiles&);

}  // namespace oomplan
