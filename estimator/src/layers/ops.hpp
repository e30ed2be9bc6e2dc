// Operators of PyTorch as the simulator runs them: what each allocates, saves, and holds in backward.
//
// Each function is one operator (or one fused kernel) with its derivative from tools/autograd/derivatives.yaml (PyTorch 2.13).
// Inputs are saved before the output exists, outputs after, as generated code does; a recomputation that stops early depends
// on it. Tensors are taken by value: write one operator a statement, and move a temporary into the operator that uses it last;
// when the compiler destroys arguments of one statement then makes no difference.
#pragma once
#include <string>
#include <vector>

#include "layers/eager.hpp"

namespace oomplan::ops {

/// A gradient that an operator's derivative makes.
Tensor gradient(Eager& g, const char* name, const Shape& shape, DType dtype);

/// x.to(dtype): the same tensor when the dtype is right already.
Tensor to(Eager& g, Tensor x, DType dtype, const std::string& name);
Tensor pow2(Eager& g, Tensor x);
/// x ** number: saves x.
Tensor power(Eager& g, Tensor x, const std::string& name);
/// out *= number of a buffer with one axis, in place; `wide`: the buffer is fp32.
Tensor scale_in_place(Eager& g, const Tensor& out, bool wide);
/// mean over the last axis, kept.
Tensor mean_last(Eager& g, Tensor x);
/// Adding a number: saves nothing. `into`: shape and dtype of x.
Tensor add_scalar(Eager& g, Tensor x, const std::string& name);
Tensor rsqrt(Eager& g, Tensor x, const std::string& name);
/// a * b, broadcast to the larger one's shape and the higher dtype.
Tensor mul(Eager& g, Tensor a, Tensor b, const std::string& name, Category category = Category::activations);
/// out.add_(x): the same storage; x is broadcast or of the same shape.
Tensor add_in_place(Eager& g, const Tensor& out, const Tensor& x);
/// x.clamp(...): saves x. `bounds`: one or two of them.
Tensor clamp(Eager& g, const Tensor& x, int bounds, const std::string& name);
/// a - b of one shape.
Tensor sub(Eager& g, Tensor a, Tensor b, const std::string& name);
/// x * number or x / number.
Tensor scale(Eager& g, Tensor x, const std::string& name, Category category = Category::activations);
Tensor add(Eager& g, Tensor a, Tensor b, const std::string& name);
Tensor neg(Eager& g, Tensor x, const std::string& name);
/// A slice along an axis; its gradient is a full tensor of zeros with the slice filled in. `whole`: shape of x.
Tensor slice(Eager& g, const Tensor& x, Shape part);
/// x.split / x.chunk: views, whose gradients one cat puts together.
std::vector<Tensor> split(Eager& g, const Tensor& x, const std::vector<Shape>& parts);
/// Several operands, some unnamed, joined along an axis.
Tensor cat(Eager& g, std::vector<Tensor> parts, Shape whole, const std::string& name);
/// Unary functions that save their input (silu, gelu, exp's cousins) or their result.
Tensor activation(Eager& g, Tensor x, const std::string& name);
Tensor relu(Eager& g, Tensor x, const std::string& name);
Tensor sigmoid(Eager& g, Tensor x, const std::string& name);
Tensor tanh(Eager& g, Tensor x, const std::string& name);
/// dropout in training mode with a rate above 0: saves a mask of one byte an element.
Tensor dropout(Eager& g, Tensor x, const std::string& name);
/// F.linear on a tensor of at least two axes; `rows`: x's leading axes multiplied. bias < 0: none.
Tensor linear(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out, const std::string& name,
              Category category = Category::activations);
/// F.linear with the matrix alone, whatever adapters stand beside it.
Tensor linear_alone(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out, const std::string& name, Category category);
/// torch.addmm(bias, x, weight) with a weight that lies as [in, out] (Conv1D).
Tensor conv1d(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out, const std::string& name);
/// ... with a weight that is no parameter itself, but a cast one; no bias.
Tensor linear_by(Eager& g, Tensor x, Tensor weight, Dim rows, Shape out, const std::string& name);
/// torch.topk over the last axis: `top` has its shape. The indices are saved.
struct TopK {
  Tensor values, indices;
};
TopK topk(Eager& g, const Tensor& x, const Shape& top, const std::string& name);
/// softmax over the last axis with result in `dtype`. Of fp16 with a result in fp32 it is one kernel on CUDA; bf16 is copied to
/// fp32 in front of it (aten/src/ATen/native/SoftMax.cpp softmax, 2.0 to 2.13), where Eager::casts_softmax says so.
Tensor softmax(Eager& g, Tensor x, DType dtype, const std::string& name, Category category = Category::activations);
/// log_softmax over the last axis in x's dtype.
Tensor log_softmax(Eager& g, Tensor x, const std::string& name);
/// torch.log_softmax as it is called, whose argument autocast widens (aten/src/ATen/autocast_mode.h, 2.13: log_softmax.int of an
/// fp32 result).
Tensor widened_log_softmax(Eager& g, const Tensor& x, const std::string& name);
/// Batched matrix product.
Tensor matmul(Eager& g, Tensor a, Tensor b, Shape out, const std::string& name);
/// expand + reshape of k or v to all query heads: a copy, unless the group is 1.
Tensor repeat_kv(Eager& g, Tensor x, Shape out, const std::string& name);
/// reshape/contiguous that has to copy.
Tensor copy(Eager& g, Tensor x, Shape out, const std::string& name);
/// Rows of x by an index vector; `index` is saved. Backward: zeros of x's shape, accumulated into.
Tensor index_rows(Eager& g, Tensor x, const Tensor& index, Shape out, const std::string& name);
/// Sum over one axis: out has fewer elements.
Tensor sum(Eager& g, Tensor x, Shape out, const std::string& name);
Tensor div(Eager& g, Tensor a, Tensor b, const std::string& name);
/// gather of one element a row: [.., V] -> [.., 1].
Tensor gather(Eager& g, Tensor x, const Tensor& index, Shape out, const std::string& name);
Tensor exp(Eager& g, Tensor x, const std::string& name);
/// logsumexp over the last axis; the kernel makes one hidden temporary of x's size.
Tensor logsumexp(Eager& g, Tensor x, Shape out, const std::string& name);

}  // namespace oomplan::ops
