// Linear attention as slime's specifications put it in the place of a layer's self-attention: every rank gathers all tokens and
// has the whole module.
//
// slime_plugins/models/{hf_attention,qwen3_5,qwen3_next}.py, 0.2.0 to 624b824a; flash-linear-attention 0.4.0 to 0.4.2.
#include <utility>
#include <vector>

#include "layers/delta.hpp"
#include "layers/families.hpp"
#include "layers/megatron.hpp"
#include "layers/norms.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

/// A parameter of PyTorch's own modules, whose gradient goes once it has been added up.
int parameter_of(Eager& g, const char* name, Shape shape) {
  const int leaf = g.parameter(name, std::move(shape), DType::bf16);
  g.leaves[static_cast<std::size_t>(leaf)].accumulate = te_weight(g).grad_fn;
  return leaf;
}

/// Of the module: in_proj_qkv, in_proj_z, in_proj_b and in_proj_a of Qwen3.5, in_proj_qkvz and in_proj_ba of Qwen3-Next.
LayerLeaves leaves_of(Eager& g, const Architecture& a, const Mixer& m) {
  const std::int64_t keys = m.linear_key_heads * m.linear_key_dim, values = m.linear_value_heads * m.linear_value_dim;
  const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return parameter_of(g, name, {Dim(rows), Dim(columns)});
  };
  LayerLeaves w;
  StateLeaves& s = w.state;
  s.dt_bias = parameter_of(g, "dt_bias", {Dim(m.linear_value_heads)});
  s.a_log = parameter_of(g, "A_log", {Dim(m.linear_value_heads)});
  s.conv = parameter_of(g, "conv1d.weight", {Dim(2 * keys + values), Dim(1), Dim(m.conv_kernel)});
  const FamilyCode* code = find_family_code(a.family);
  if (code != nullptr && code->delta_apart) {
    s.in = matrix("in_proj_qkv.weight", 2 * keys + values, a.hidden);
    s.in_z = matrix("in_proj_z.weight", values, a.hidden);
    s.in_b = matrix("in_proj_b.weight", m.linear_value_heads, a.hidden);
    s.in_a = matrix("in_proj_a.weight", m.linear_value_heads, a.hidden);
  } else {
    s.in = matrix("in_proj_qkvz.weight", 2 * keys + 2 * values, a.hidden);
    s.in_ba = matrix("in_proj_ba.weight", 2 * m.linear_value_heads, a.hidden);
  }
  s.norm = parameter_of(g, "norm.weight", {Dim(m.linear_value_dim)});
  s.out = matrix("out_proj.weight", a.hidden, values);
  return w;
}

/// gather_from_sequence_parallel_region: backward takes a part of the gradient, as a view.
Tensor over_tensors(Eager& g, const ChunkOptions& o, const Tensor& x) {
  if (!o.te.sequence_parallel) return x;
  Tensor all = g.make("input.gathered", {o.te.whole(), B, x.shape.back()}, x.dtype);
  g.record(all, "GatherFromSequenceParallelRegion", {&x},
           [part = x.shape](Gradients in) { return Gradients{in[0].alias(part)}; });
  return all;
}

/// What is a name until the layer's function returns.
struct Names {
  std::vector<Tensor> parts, slices;
};

/// The parts of all ranks of a context, cut in two for each sequence and put in order. Every slice has a gradient of its part.
Tensor over_context(Eager& g, const ChunkOptions& o, const Tensor& x, Names& names) {
  const auto ranks = static_cast<std::size_t>(o.te.context);
  for (std::size_t i = 0; i < ranks; ++i) names.parts.push_back(g.make("input.of_rank", x.shape, x.dtype));
  Tensor joint = x.alias(x.shape);
  const auto own = [](Gradients in) { return Gradients{in[0]}; };
  if (g.record(joint, "_AllGatherForDuplicatedComputation", {&x}, own, ranks))
    for (std::size_t i = 0; i < ranks; ++i) {
      names.parts[i].grad_fn = joint.grad_fn;
      names.parts[i].output = i;
    }
  for (int half = 0; half < 2; ++half)
    for (const Tensor& part : names.parts) names.slices.push_back(slice(g, part, part.shape));
  return cat(g, names.slices, {Dim(o.te.context) * x.shape[0], B, x.shape.back()}, "input.ordered");
}

/// This rank's chunks of all tokens.
Tensor of_context(Eager& g, const ChunkOptions& o, const Tensor& all, Names& names) {
  const Shape part{o.te.whole(), B, all.shape.back()};
  const Tensor sequence = slice(g, all, all.shape);
  names.parts = split(g, sequence, std::vector<Shape>(static_cast<std::size_t>(o.te.context), part));
  return cat(g, {names.parts.front()}, part, "output.of_rank");
}

/// scatter_to_sequence_parallel_region: a view of this rank's rows.
Tensor of_tensors(Eager& g, const ChunkOptions& o, const Tensor& x) {
  if (!o.te.sequence_parallel) return x;
  Tensor part = x.alias({S, B, x.shape.back()});
  g.record(part, "ScatterToSequenceParallelRegion", {&x}, [&g, whole = x.shape](Gradients in) {
    return Gradients{gradient(g, "output_backward.gathered", whole, in[0].dtype)};
  });
  return part;
}

/// gather_from_tensor_model_parallel_region of the last axis; backward takes a part of the columns.
Tensor gathered_columns(Eager& g, const Tensor& x, const Shape& whole, const std::string& name) {
  const Tensor stacked = g.make(name + ".stacked", whole, x.dtype, Category::communication);
  Tensor out = g.make(name, whole, x.dtype);
  g.record(out, "GatherFromModelParallelRegion", {&x}, [&g, part = x.shape, name](Gradients in) {
    return Gradients{gradient(g, (name + "_backward").c_str(), part, in[0].dtype)};
  });
  return out;
}
/// scatter_to_tensor_model_parallel_region: the way back.
Tensor scattered_columns(Eager& g, const Tensor& x, const Shape& part, const std::string& name) {
  Tensor out = g.make(name, part, x.dtype);
  g.record(out, "ScatterToModelParallelRegion", {&x}, [&g, whole = x.shape, name](Gradients in) {
    const Tensor stacked = gradient(g, (name + "_backward.stacked").c_str(), whole, in[0].dtype);
    return Gradients{gradient(g, (name + "_backward").c_str(), whole, in[0].dtype)};
  });
  return out;
}

}  // namespace

// slime_plugins/models/minimax_m2.py: MiniMaxM2SelfAttention.get_query_key_value_tensors, 0.3.0 to 624b824a.
Tensor norm_of_all_heads(Eager& g, const ChunkOptions& o, NormKind kind, const Tensor& x, bool copies, const std::string& name) {
  const Shape part{x.shape[0], B, x.shape[2] * x.shape[3]}, whole{part[0], B, Dim(o.te.tensor) * part[2]};
  Tensor rows = copies ? te_contiguous(g, x, name + ".rows") : x;
  const auto as = [](const Tensor& y, const Shape& shape) {
    Tensor seen = y.alias(shape);
    seen.grad_fn = y.grad_fn;
    return seen;
  };
  rows = as(rows, part);
  if (o.te.tensor == 1) return as(te_norm(g, rows, kind, name), x.shape);
  Tensor all = gathered_columns(g, rows, whole, name + ".gathered");
  rows.reset();
  const Tensor normed = te_norm(g, all, kind, name);
  all.reset();
  return as(scattered_columns(g, normed, part, name + ".scattered"), x.shape);
}

Tensor run_slime_delta(Eager& g, const Architecture& a, const Layer& layer, const ChunkOptions& o, const Tensor& x) {
  constexpr std::int64_t kMultiprocessors = 132;  // of Hopper: as many rows of a head's width
  const Dim tokens = Dim(o.te.context) * o.te.whole();
  const LayerLeaves w = leaves_of(g, a, layer.mixer);
  const NormLeaf norm{parameter_of(g, "input_layernorm.weight", {Dim(a.hidden)})};
  Names before, behind;
  Tensor hidden = over_tensors(g, o, x);
  if (o.te.context > 1) {
    Tensor ordered = over_context(g, o, hidden, before);
    hidden = std::move(ordered);
  }
  Tensor out;
  {
    const Tensor normed = run_norm(g, NormCode::rms_plus_one, hidden, norm, "input_layernorm");
    out = run_gated_delta_by_fla(g, layer.mixer, a.hidden, w, {tokens, o.delta_chunks, kMultiprocessors}, normed);
  }
  if (o.te.context > 1) {
    Tensor own = of_context(g, o, out, behind);
    out = std::move(own);
  }
  return of_tensors(g, o, out);
}

}  // namespace oomplan
