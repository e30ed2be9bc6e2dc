// Operators that work on matrices or pick elements: products with weights, batched products, top-k, indexing.
#include "layers/blockwise_linear.hpp"
#include "layers/dora.hpp"
#include "layers/ops.hpp"
#include "layers/packed_linear.hpp"
#include "layers/vectors.hpp"

namespace oomplan::ops {
namespace {

/// x times the transposed weight; w and b may be parameters, their 16-bit copies, or other casts.
Tensor product_with(Eager& g, Tensor x, Tensor w, Tensor b, Dim rows, Shape out_shape, const std::string& name, Category category,
                    bool transposed = true) {
  std::vector<const Tensor*> inputs{&x, &w};
  if (b) inputs.push_back(&b);
  const bool recorded = g.will_record(inputs);
  const bool for_x = recorded && x.needs_grad(), for_w = recorded && w.needs_grad();
  // deepspeed/runtime/zero/linear.py LinearFunctionForZeroStage3 (0.19.8), which takes the place of F.linear: a Python function,
  // so its result is there before anything is saved
  const bool in_python = g.frozen_keeps_input && transposed;
  const bool keeps_x = for_w || (recorded && in_python);
  const Dim width = out_shape.back();
  const auto run = [&] { return Eager::Results{g.make(name, {rows, width}, x.dtype, category)}; };
  Tensor out = in_python ? std::move(run()[0]) : Tensor();
  Tensor used = w;
  used.transposed = transposed;
  // in the order of derivatives.yaml's names: mat1, mat2 with a bias; mat2, self without one
  Saved saved_x = keeps_x && b ? g.save(x) : Saved();
  Saved saved_w = for_x ? g.save(used) : Saved();
  used.reset();
  if (keeps_x && !b) saved_x = g.save(x);
  if (!out) out = std::move((b ? run() : g.kept(true, run))[0]);  // addmm is not among what a selective checkpoint keeps
  out.shape = std::move(out_shape);
  if (!recorded) return out;
  const Shape x_shape = x.shape, w_shape = w.shape;
  const bool for_b = b && b.needs_grad(), biased = static_cast<bool>(b);
  g.record(out, "MmBackward0", inputs, [=, &g](Gradients in) {
    Gradients grads(3);
    for (const Saved* s : {biased ? &saved_x : &saved_w, biased ? &saved_w : &saved_x}) (void)s->get();
    if (for_w) {
      grads[1] = g.make(name + ".weight_gradient", w_shape, in[0].dtype, Category::gradients);
      grads[1].transposed = transposed;
    }
    if (for_x) {
      grads[0] = gradient(g, "mm_backward", {rows, x_shape.back()}, in[0].dtype);
      grads[0].shape = x_shape;
      grads[0].transposed = x_shape.size() > 2;  // a view, which holds its base: nothing is added into it
    }
    if (for_b) grads[2] = in[0];  // summed over the rows when the node has run
    return grads;
  });
  return out;
}

/// A parameter, or its 16-bit copy under autocast. Autocast casts the last argument first, as GCC evaluates them
/// (aten/src/ATen/autocast_mode.h, 2.13; read off the sequence numbers of the graph): backward casts the first one's gradient
/// first.
Tensor matrix(Eager& g, int number) {
  if (number < 0) return {};
  Tensor leaf = g.leaf(number);
  return g.autocast && leaf.dtype == DType::fp32 ? g.autocast_weight(leaf) : leaf;
}

Tensor bare_linear(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name,
                   Category category = Category::activations) {
  if (g.leaves[static_cast<std::size_t>(weight)].packed == PackedLeaf::weight)
    return packed_linear(g, std::move(x), weight, bias, rows, std::move(out_shape), name);
  Tensor b = matrix(g, bias), w = matrix(g, weight);
  if (g.blockwise && takes_blocks(g.leaves[static_cast<std::size_t>(weight)], static_cast<bool>(b))) {
    Tensor out = blockwise_linear(g, x, w, rows, std::move(out_shape), name);
    g.leave(weight);
    return out;
  }
  const Tensor input = g.autocast ? x : Tensor();  // nn.Linear's name for what autocast casts
  if (g.autocast && x.dtype == DType::fp32) x = g.autocast_input(x, [&] { return to(g, x, DType::bf16, name + ".input_bf16"); });
  Tensor out = product_with(g, std::move(x), std::move(w), std::move(b), rows, std::move(out_shape), name, category);
  g.leave(weight);
  return out;
}

Tensor bare_conv1d(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name) {
  x.shape = {rows, x.shape.back()};
  Tensor w = matrix(g, weight);
  if (g.autocast && x.dtype == DType::fp32) x = to(g, std::move(x), DType::bf16, name + ".input_bf16");
  Tensor b = matrix(g, bias);  // addmm(bias, x, weight)
  return product_with(g, std::move(x), std::move(w), std::move(b), rows, std::move(out_shape), name, Category::activations,
                      false);
}

/// lora_B(lora_A(rows.to(dtype))) * scaling: AgileRL's _lora_delta, whose caller adds it to the rows of the base layer's output
/// (AgileRL/AgileRL, agilerl/algorithms/core/llm_ops/fused_lora.py, 2.8).
Tensor low_rank_delta(Eager& g, const Tensor& given, const Shape& out_shape, const Leaf& base, Dim rows,
                      const std::string& name) {
  const Leaf& first = g.leaves[static_cast<std::size_t>(base.low_rank_in)];
  const Dim rank = first.shape[0];
  Tensor x = to(g, given, first.dtype, name + ".lora_input");
  Tensor low = bare_linear(g, x, base.low_rank_in, -1, rows, with_last(x.shape, rank), name + ".lora_A");
  Tensor high = bare_linear(g, std::move(low), base.low_rank_out, -1, rows, out_shape, name + ".lora_B");
  return scale(g, std::move(high), name + ".lora_scaled");
}

/// result + lora_B(lora_A(dropout(x))) * scaling in the format of the pair, cast back (huggingface/peft,
/// src/peft/tuners/lora/layer.py, 0.21.2). `x` is rebound to its cast; `result` to the sum, and to the sum's cast.
Tensor with_low_rank(Eager& g, Tensor result, const Tensor& given, const Leaf& base, Dim rows, const std::string& name) {
  if (base.packed == PackedLeaf::weight) return packed_low_rank(g, std::move(result), given, base, rows, name);
  const int in = base.low_rank_in, out = base.low_rank_out;
  const DType back = result.dtype;
  const Dim rank = g.leaves[static_cast<std::size_t>(in)].shape[0];
  Tensor x = to(g, given, g.leaves[static_cast<std::size_t>(in)].dtype, name + ".lora_input");
  Tensor low;
  {
    Tensor dropped = g.low_rank_dropout ? dropout(g, x, name + ".lora_dropout") : x;
    low = bare_linear(g, std::move(dropped), in, -1, rows, with_last(x.shape, rank), name + ".lora_A");
  }
  Tensor high = bare_linear(g, std::move(low), out, -1, rows, result.shape, name + ".lora_B");
  Tensor scaled = scale(g, std::move(high), name + ".lora_scaled");
  Tensor sum = add(g, result, std::move(scaled), name + ".lora_sum");
  result = std::move(sum);
  return to(g, result, back, name + ".adapted");
}

Tensor adapted_linear(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name,
                      Category category) {
  const Leaf& base = g.leaves[static_cast<std::size_t>(weight)];
  Tensor result = bare_linear(g, x, weight, bias, rows, std::move(out_shape), name, category);
  if (base.magnitude >= 0) return with_dora(g, std::move(result), x, weight, bias, rows, name);
  if (!g.low_rank_apart) return with_low_rank(g, std::move(result), x, base, rows, name);
  Tensor delta = low_rank_delta(g, x, result.shape, base, rows, name);
  Tensor cast = to(g, std::move(delta), result.dtype, name + ".lora_cast");
  return add(g, result, std::move(cast), name + ".lora_sum");
}

/// peft's layer, which has the base layer and the pair inside, asks for lora_A.weight.dtype itself (huggingface/peft,
/// src/peft/tuners/lora/layer.py, 0.21.2).
Tensor around_pair(Eager& g, int pair, const std::function<Tensor()>& layer) {
  g.open_around(pair);
  Tensor out = layer();
  g.close_around(pair);
  return out;
}

}  // namespace

Tensor linear(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name, Category category) {
  const Leaf& base = g.leaves[static_cast<std::size_t>(weight)];
  if (has_peft_vectors(base))
    return linear_with_vectors(g, std::move(x), weight, bias, rows, std::move(out_shape), name, category);
  if (base.low_rank_in < 0) return bare_linear(g, std::move(x), weight, bias, rows, std::move(out_shape), name, category);
  return around_pair(g, base.low_rank_in,
                     [&] { return adapted_linear(g, std::move(x), weight, bias, rows, std::move(out_shape), name, category); });
}

Tensor linear_alone(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name,
                    Category category) {
  return bare_linear(g, std::move(x), weight, bias, rows, std::move(out_shape), name, category);
}

Tensor conv1d(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name) {
  const Leaf& base = g.leaves[static_cast<std::size_t>(weight)];
  if (base.low_rank_in < 0) return bare_conv1d(g, std::move(x), weight, bias, rows, std::move(out_shape), name);
  return around_pair(g, base.low_rank_in, [&] {
    Tensor result = bare_conv1d(g, x, weight, bias, rows, std::move(out_shape), name);
    return with_low_rank(g, std::move(result), x, base, rows, name);
  });
}

Tensor linear_by(Eager& g, Tensor x, Tensor w, Dim rows, Shape out_shape, const std::string& name) {
  if (g.autocast && w.dtype == DType::fp32)
    w = w.leaf >= 0 ? g.autocast_weight(w) : to(g, std::move(w), DType::bf16, name + ".weight_bf16");
  if (g.autocast && x.dtype == DType::fp32) x = to(g, std::move(x), DType::bf16, name + ".input_bf16");
  return product_with(g, std::move(x), std::move(w), Tensor(), rows, std::move(out_shape), name, Category::activations);
}

TopK topk(Eager& g, const Tensor& x, const Shape& top, const std::string& name) {
  TopK out;
  out.indices = g.make(name + ".indices", top, DType::int64);
  const bool recorded = g.will_record({&x});
  out.values = g.make(name + ".values", top, x.dtype);
  if (!recorded) return out;
  Saved indices = g.save(out.indices);
  const Shape whole = x.shape;
  const DType dtype = x.dtype;
  g.record(out.values, "TopkBackward0", {&x}, [&g, indices, whole, dtype](Gradients) {
    (void)indices.get();
    return Gradients{gradient(g, "topk_backward", whole, dtype)};  // zeros, then scatter
  });
  return out;
}

Tensor matmul(Eager& g, Tensor a, Tensor b, Shape out_shape, const std::string& name) {
  const bool recorded = g.will_record({&a, &b});
  const bool for_a = recorded && a.needs_grad(), for_b = recorded && b.needs_grad();
  Saved saved_b = for_a ? g.save(b) : Saved();  // in the order of derivatives.yaml's names: mat2, self
  Saved saved_a = for_b ? g.save(a) : Saved();
  Tensor out = g.make(name, std::move(out_shape), a.dtype);
  if (recorded) {
    const Shape a_shape = a.shape, b_shape = b.shape;
    g.record(out, "BmmBackward0", {&a, &b}, [=, &g](Gradients in) {
      Gradients grads(2);
      for (const Saved* s : {&saved_b, &saved_a}) (void)s->get();
      if (for_b) grads[1] = gradient(g, "bmm_backward", b_shape, in[0].dtype);
      if (for_a) grads[0] = gradient(g, "bmm_backward", a_shape, in[0].dtype);
      return grads;
    });
  }
  return out;
}

Tensor repeat_kv(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  if (elements(out_shape) == elements(x.shape)) return x;
  const Shape from = x.shape;
  if (from[1] == Dim(1)) {  // one head: the reshape of the expanded tensor is a view
    Tensor view = x.alias(std::move(out_shape));
    g.record(view, "ExpandBackward0", {&x},
             [&g, from](Gradients in) { return Gradients{gradient(g, "repeat_kv_backward", from, in[0].dtype)}; });
    return view;
  }
  const Dim group = out_shape[1].coefficient / from[1].coefficient;
  Tensor out = g.make(name, {from[0], from[1], group, from[2], from[3]}, x.dtype);
  out.shape = std::move(out_shape);
  g.record(out, "ExpandBackward0", {&x},
           [&g, from](Gradients in) { return Gradients{gradient(g, "repeat_kv_backward", from, in[0].dtype)}; });
  return out;
}

Tensor index_rows(Eager& g, Tensor x, const Tensor& index, Shape out_shape, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(index) : Saved();
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  if (recorded) {
    const Shape from = x.shape;
    g.record(out, "IndexBackward0", {&x}, [&g, saved, from](Gradients in) {
      (void)saved.get();
      return Gradients{gradient(g, "index_backward", from, in[0].dtype)};
    });
  }
  return out;
}

Tensor gather(Eager& g, Tensor x, const Tensor& index, Shape out_shape, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(index) : Saved();
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  if (recorded) {
    const Shape from = x.shape;
    const DType dtype = x.dtype;
    g.record(out, "GatherBackward0", {&x}, [&g, saved, from, dtype](Gradients) {
      (void)saved.get();
      return Gradients{g.make("gather_backward", from, dtype, Category::logits)};  // zeros, then scatter_add_
    });
  }
  return out;
}

}  // namespace oomplan::ops
