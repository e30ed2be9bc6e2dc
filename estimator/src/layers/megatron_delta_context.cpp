#include "layers/megatron_delta_context.hpp"

#include <utility>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// _AllToAll of a block. Its gradient is made a block first where it is a part of a wider row.
Tensor exchanged(Eager& g, const Tensor& block, bool wider_row, const std::string& name) {
  Tensor out = g.make(name, block.shape, block.dtype, Category::communication);
  g.record(out, "AllToAll", {&block}, [&g, wider_row, name](Gradients in) {
    const Tensor sent = wider_row ? gradient(g, (name + "_backward.block").c_str(), in[0].shape, in[0].dtype) : in[0];
    return Gradients{gradient(g, (name + "_backward").c_str(), in[0].shape, in[0].dtype)};
  });
  return out;
}

/// Stretches of a sequence in another order: load balancing of attention gives every rank an early and a late one.
Tensor reordered(Eager& g, const Tensor& x, const ChunkOptions& o, const std::string& name) {
  const std::vector<Shape> stretches(static_cast<std::size_t>(o.te.context), Shape{o.te.whole(), B, x.shape.back()});
  return cat(g, split(g, x, stretches), x.shape, name);
}

/// _all_to_all_cp2hp of one section: columns of every rank one behind another, which go to it.
Tensor exchanged_section(Eager& g, const Tensor& section, std::int64_t width, const ChunkOptions& o) {
  const Dim tokens = o.te.whole();
  const std::vector<Shape> columns(static_cast<std::size_t>(o.te.context), Shape{tokens, B, Dim(width)});
  const Tensor block = cat(g, split(g, section, columns), {Dim(o.te.context) * tokens, B, Dim(width)}, "in_proj.to_send");
  return exchanged(g, block, true, "in_proj.exchanged");
}

}  // namespace

Tensor tokens_for_heads(Eager& g, const Tensor& x, const std::vector<std::int64_t>& widths, const ChunkOptions& o) {
  std::vector<Shape> sections;
  std::int64_t all = 0;
  for (const std::int64_t width : widths) {
    sections.push_back({o.te.whole(), B, Dim(o.te.context * width)});
    all += width;
  }
  const std::vector<Tensor> parts = split(g, x, sections);
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < widths.size(); ++i) outputs.push_back(exchanged_section(g, parts[i], widths[i], o));
  const Tensor joined = cat(g, outputs, {Dim(o.te.context) * o.te.whole(), B, Dim(all)}, "in_proj.of_heads");
  return reordered(g, joined, o, "in_proj.in_order");
}

Tensor heads_for_tokens(Eager& g, const Tensor& x, const ChunkOptions& o) {
  const Tensor dealt = reordered(g, x, o, "gated_norm.dealt");
  const Tensor back = exchanged(g, dealt, false, "gated_norm.exchanged");
  const Dim tokens = o.te.whole(), width = x.shape.back();
  const std::vector<Shape> ranks(static_cast<std::size_t>(o.te.context), Shape{tokens, B, width});
  return cat(g, split(g, back, ranks), {tokens, B, Dim(o.te.context) * width}, "gated_norm.of_tokens");
}

Tensor heads_of_weight(Eager& g, std::int64_t channels, std::int64_t kernel, const ChunkOptions& o) {
  const Tensor whole = o.adapters ? g.scalar(DType::bf16) : te_weight(g);
  Tensor out = g.make("conv1d.weight", {Dim(channels), Dim(kernel)}, DType::bf16);
  g.record(out, "CatBackward0", {&whole}, [&g, all = Shape{Dim(o.te.context * channels), Dim(kernel)}](const Gradients&) {
    const Tensor sections = gradient(g, "conv1d_backward.weight_sections", all, DType::bf16);
    return Gradients{gradient(g, "conv1d_backward.weight_whole", all, DType::bf16)};
  });
  return out;
}

}  // namespace oomplan
