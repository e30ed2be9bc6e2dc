// Operators that vision towers alone run. PyTorch 2.13; derivatives from tools/autograd/derivatives.yaml.
#pragma once
#include <string>
#include <vector>

#include "layers/decoder.hpp"

namespace oomplan::vision_ops {

/// A convolution whose kernel is its stride: the pixels are saved for the weight's gradient. bias < 0: none. What cuDNN takes as
/// workspace is not counted.
Tensor patch_convolution(Eager& g, const Tensor& pixels, int weight, int bias, Shape out);
/// x[index] of an index on the host, which is copied for the moment that the kernel runs: not counted.
Tensor index_by_host(Eager& g, Tensor x, Shape out, const std::string& name);
/// x.reshape(rows, times, ...).permute(1, 0, ...).unbind(0): views, whose gradients a stack puts together and a copy in order.
std::vector<Tensor> unbind(Eager& g, const Tensor& x, const Shape& part, std::size_t times);

struct Pair {
  Tensor query, key;
};
/// apply_rotary_pos_emb_vision: in fp32 and back.
Pair rotate(Eager& g, const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin);
/// One product of attention for every part of the rows, and a cat; flash-attention takes all parts at once. Queries, keys and
/// values are [1, heads, rows, d].
Tensor attend_by_parts(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::vector<std::int64_t>& lengths, const KernelOptions&);
/// Rows of a table: the gradient is as large as the table.
Tensor embedding(Eager& g, const Tensor& indices, int table, Shape out, const std::string& name, bool internals = false);
/// parameter.expand(...): a view whose gradient is summed.
Tensor expanded(Eager& g, int parameter, Shape as);
/// nn.AvgPool2d over squares of patches: saves its input.
Tensor average_pool(Eager& g, const Tensor& x, Shape out);
/// x.clone(), then x[mask] = x[mask] + rows. `internals`: what the kernels make inside.
Tensor add_at(Eager& g, const Tensor& x, const Tensor& mask, const Tensor& rows, bool internals);
/// x + 0.0 * rows.mean().
Tensor add_nothing_of(Eager& g, const Tensor& x, const Tensor& rows);
/// x * sigmoid(1.702 * x).
Tensor quick_gelu(Eager& g, Tensor x);
/// x.masked_scatter(mask, source) with a mask for each row of x. `internals`: what the kernels make inside.
Tensor masked_scatter(Eager& g, const Tensor& x, const Tensor& mask, const Tensor& source, bool internals);

}  // namespace oomplan::vision_ops
