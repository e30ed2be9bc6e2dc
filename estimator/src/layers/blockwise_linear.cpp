#include "layers/blockwise_linear.hpp"

namespace oomplan {
namespace {

Dim blocks_of(const Dim& side) { return Dim(side.coefficient / kFp8Block); }

/// A tensor in 8 bits and its fp32 scales.
struct Quantized {
  Tensor numbers, scales;
  Quantized(Eager& g, const std::string& name, const Shape& shape, const Shape& of_scales)
      : numbers(g.make(name, shape, DType::fp8, Category::temporaries)),
        scales(g.make(name + ".scales", of_scales, DType::fp32, Category::temporaries)) {}
};

}  // namespace

bool takes_blocks(const Leaf& weight, bool biased) {
  return !biased && weight.shape.size() == 2 && weight.shape[0].coefficient % kFp8Block == 0 &&
         weight.shape[1].coefficient % kFp8Block == 0;
}

Tensor blockwise_linear(Eager& g, const Tensor& x, const Tensor& w, const Dim& rows, Shape out_shape, const std::string& name) {
  const Dim out_width = w.shape[0], in_width = w.shape[1];
  const Shape inputs{rows, in_width}, outputs{rows, out_width}, matrix{out_width, in_width};
  // one for 128 numbers of a row or column, for 128 x 128 of the matrix
  const Shape of_inputs{rows, blocks_of(in_width)}, of_outputs{rows, blocks_of(out_width)};
  const Shape of_matrix{blocks_of(out_width), blocks_of(in_width)};
  Tensor out;
  {
    const Quantized input(g, name + ".input_fp8", inputs, of_inputs);
    const Quantized weight(g, name + ".weight_fp8", matrix, of_matrix);
    out = g.make(name, outputs, x.dtype);
  }
  out.shape = std::move(out_shape);
  if (!g.will_record({&x, &w})) return out;
  const Saved saved_x = g.save(x), saved_w = g.save(w);
  const Shape x_shape = x.shape;
  g.record(out, "fp8_blockwise_mmBackward", {&x, &w}, [=, &g](Gradients in) {
    for (const Saved* s : {&saved_x, &saved_w}) (void)s->get();
    const DType dtype = in[0].dtype;
    const Quantized gradient(g, name + ".gradient_fp8", outputs, of_outputs);
    const Quantized weight(g, name + ".weight_fp8", matrix, of_matrix);
    Gradients grads(2);
    grads[0] = g.make("mm_backward", inputs, dtype, Category::temporaries);
    grads[0].shape = x_shape;
    const Quantized turned(g, name + ".gradient_turned_fp8", outputs, of_outputs);
    const Quantized input(g, name + ".input_fp8", inputs, of_inputs);
    grads[1] = g.make(name + ".weight_gradient", matrix, dtype, Category::gradients);
    return grads;
  });
  return out;
}

}  // namespace oomplan
