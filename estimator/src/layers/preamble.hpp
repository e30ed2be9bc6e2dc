// What a model makes once for all its layers: masks, cos and sin.
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// For layers that see everything, and for those that see a window.
struct Preamble {
  LayerContext full, windowed;
};
/// `dtype`: of the embedded tokens. Made without gradients.
Preamble make_preamble(Eager& g, const Architecture&, const KernelOptions&, DType dtype);
/// Columns of the tables of cos and sin; 0: there are none.
std::int64_t rotary_width(const Architecture&);

}  // namespace oomplan
