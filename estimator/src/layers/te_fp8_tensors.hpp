// Tensors of Transformer Engine in 8 bits, with the scales that belong to them.
//
// Read in NVIDIA/TransformerEngine 2.17.1, transformer_engine/pytorch: csrc/quantizer.cpp (create_tensor and get_scale_shape of
// every quantizer), csrc/extensions/{cast,gemm,swizzle}.cpp, tensor/storage/*.py (update_usage).
//
// delayed, tensorwise: a scale for each tensor. A GPU before Blackwell multiplies 8 bits only where both factors lie along the
// sum: what is needed along its other side, too, has a transposed copy. Later ones need none.
// blockwise: an fp32 scale for 128 numbers (matrices: for 128 x 128), mxfp8: a scale of 8 bits for 32; along its other side a
// tensor has other scales, and is rounded a second time.
#pragma once
#include <string>

#include "layers/te.hpp"

namespace oomplan {

bool scaled_in_blocks(const TeOptions&);

/// A tensor in 8 bits: as its rows lie, and along the other side.
struct Quantised {
  Tensor rows, row_scales, columns, column_scales;
};
enum class Needs : std::uint8_t { rows, columns, both };

/// What a product needs of it.
Quantised quantised(Eager&, const Shape&, Needs, const TeOptions&, const std::string& name,
                    Category category = Category::activations);
/// The same of several matrices that are rounded at once, each with scales of its own: a block of everything that lies along one
/// side where they are scaled in blocks.
Quantised quantised_together(Eager&, const Shape&, std::int64_t count, Needs, const TeOptions&, const std::string& name,
                             Category category = Category::activations);

/// Bytes of the scales of a matrix [out, in] in 8 bits along one side, with what pads them.
std::int64_t scales_of_matrix(std::int64_t out, std::int64_t in, bool columns, Fp8Recipe);

/// A quantised tensor that a node keeps.
struct KeptQuantised {
  Saved rows, row_scales, columns, column_scales;
  /// What is there of the data.
  const Tensor& data() const { return columns_kept ? columns.get() : rows.get(); }
  bool columns_kept = false;
};
KeptQuantised keep_rows(Eager&, const Quantised&);
/// What the gradient of a weight wants.
KeptQuantised keep_columns(Eager&, const Quantised&);
/// What was kept is freed although its node still runs.
void clear(Eager&, const KeptQuantised&);

/// Scales in the order in which the product of this moment wants them, of a factor of so many rows of so many numbers; empty
/// where they are in that order. `fresh`: the factor was rounded for this product, which mxfp8 does in that order.
Tensor ordered_scales(Eager&, const Shape&, bool fresh, const TeOptions&, const std::string& name);

}  // namespace oomplan
