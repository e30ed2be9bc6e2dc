#include "layers/vision_ops.hpp"

#include <utility>

#include "layers/kernels.hpp"
#include "layers/ops.hpp"

namespace oomplan::vision_ops {
namespace {

using namespace ops;

/// x * cos + rotate_half(x) * sin.
Tensor turn_row(Eager& g, const Tensor& x, const Tensor& cos, const Tensor& sin, const std::string& name) {
  Tensor straight = mul(g, x, cos, name + ".cos");
  Tensor rotated;
  {
    const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
    Tensor first = slice(g, x, half), second = slice(g, x, half);
    std::vector<Tensor> parts;
    parts.push_back(neg(g, std::move(second), name + ".negated"));
    parts.push_back(std::move(first));
    rotated = cat(g, std::move(parts), x.shape, name + ".rotated");
  }
  Tensor turned = mul(g, std::move(rotated), sin, name + ".sin");
  return add(g, std::move(straight), std::move(turned), name);
}

}  // namespace

Tensor patch_convolution(Eager& g, const Tensor& pixels, int weight, int bias, Shape out_shape) {
  Tensor w = g.leaf(weight), b = bias >= 0 ? g.leaf(bias) : Tensor();
  std::vector<const Tensor*> inputs{&w};
  if (b) inputs.push_back(&b);
  const bool recorded = g.will_record(inputs);
  Saved saved = recorded ? g.save(pixels) : Saved();
  Tensor out = g.make("patch_embed", std::move(out_shape), w.dtype);
  if (recorded) {
    const Shape of_weight = w.shape, of_bias = b ? b.shape : Shape();
    const bool has_bias = bool(b);
    g.record(out, "ConvolutionBackward0", inputs, [=, &g](Gradients in) {
      (void)saved.get();
      Gradients grads{g.make("patch_embed.weight_gradient", of_weight, in[0].dtype, Category::gradients)};
      if (has_bias) grads.push_back(g.make("patch_embed.bias_gradient", of_bias, in[0].dtype, Category::gradients));
      return grads;
    });
  }
  g.leave(weight);
  return out;
}

Tensor index_by_host(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const Shape from = x.shape;
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  g.record(out, "IndexBackward0", {&x},
           [&g, from](Gradients in) { return Gradients{gradient(g, "index_backward", from, in[0].dtype)}; });
  return out;
}

std::vector<Tensor> unbind(Eager& g, const Tensor& x, const Shape& part, std::size_t times) {
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < times; ++i) out.push_back(x.alias(part));
  const Shape whole = x.shape;
  Tensor flat = x.alias(whole);  // a view whose gradient lies by part: reshape copies it
  g.record(flat, "ViewBackward0", {&x},
           [&g, whole](Gradients in) { return Gradients{gradient(g, "unbind_backward.in_order", whole, in[0].dtype)}; });
  Tensor all = flat.alias(whole);
  const auto backward = [&g, whole, part](Gradients in) {
    DType dtype = DType::bf16;
    for (const Tensor& one : in)
      if (one) dtype = one.dtype;
    for (Tensor& one : in)
      if (!one) one = gradient(g, "unbind_backward.zeros", part, dtype);
    return Gradients{gradient(g, "unbind_backward", whole, dtype)};
  };
  if (!g.record(all, "UnbindBackward0", {&flat}, backward, times)) return out;
  for (std::size_t i = 0; i < times; ++i) {
    out[i].grad_fn = all.grad_fn;
    out[i].output = i;
  }
  return out;
}

Pair rotate(Eager& g, const Tensor& query, const Tensor& key, const Tensor& cos, const Tensor& sin) {
  const Tensor q = to(g, query, DType::fp32, "q_fp32"), k = to(g, key, DType::fp32, "k_fp32");
  const Tensor wide_cos = to(g, cos, DType::fp32, "rotary.cos_fp32"), wide_sin = to(g, sin, DType::fp32, "rotary.sin_fp32");
  Pair out;
  out.query = turn_row(g, q, wide_cos, wide_sin, "q_rotary");
  out.key = turn_row(g, k, wide_cos, wide_sin, "k_rotary");
  Tensor cast = to(g, out.query, query.dtype, "q_rotary.cast");
  out.query = std::move(cast);
  cast = to(g, out.key, key.dtype, "k_rotary.cast");
  out.key = std::move(cast);
  return out;
}

Tensor attend_by_parts(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::vector<std::int64_t>& lengths, const KernelOptions& options) {
  const Dim heads = query.shape[1], rows = query.shape[2], width = query.shape[3];
  const auto one = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    const Attention in{.query = q, .key = k, .value = v, .out_shape = {Dim(1), q.shape[2], heads, width}};
    return attend(g, in, options).output;
  };
  if (options.kernels == Kernels::hf_flash) return one(query, key, value);
  std::vector<Shape> shapes;
  for (const std::int64_t length : lengths) shapes.push_back({Dim(1), heads, Dim(length), width});
  const std::vector<Tensor> q = split(g, query, shapes), k = split(g, key, shapes), v = split(g, value, shapes);
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) outputs.push_back(one(q[i], k[i], v[i]));
  return cat(g, outputs, {Dim(1), rows, heads, width}, "attn.joined");
}

Tensor embedding(Eager& g, const Tensor& indices, int table, Shape out_shape, const std::string& name, bool internals) {
  Tensor w = g.leaf(table);
  const bool recorded = g.will_record({&w});
  Saved saved = recorded ? g.save(indices) : Saved();
  Tensor out = g.make(name, std::move(out_shape), w.dtype);
  const Shape shape = w.shape, rows = indices.shape;  // numbers, all of them
  const auto tokens = elements(rows).coefficient, words = shape.front().coefficient;
  const EmbeddingSort sort = internals ? embedding_sort(tokens, words) : EmbeddingSort::none;
  g.record(out, "EmbeddingBackward0", {&w}, [&g, shape, saved, rows, sort](Gradients in) {
    (void)saved.get();
    return Gradients{embedding_gradient(g, "embedding_backward", shape, in[0].dtype, rows, sort)};
  });
  g.leave(table);
  return out;
}

namespace {

/// x[mask]. pytorch aten/src/ATen/native/IndexingUtils.h, 2.13 (expandTensors): the kernels take the mask's nonzero(), two
/// numbers for each row; with accumulation they sort the rows' numbers (native/cuda/Indexing.cu, index_put_with_sort_kernel).
Tensor take_rows(Eager& g, const Tensor& x, const Tensor& mask, const Shape& rows, bool internals) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(mask) : Saved();
  const auto places = [&g, rows, internals](std::int64_t numbers) {
    return internals ? g.make("index.places", {rows[0], Dim(numbers)}, DType::int64, Category::workspace) : Tensor();
  };
  Tensor out;
  {
    const Tensor inside = places(2);
    out = g.make("features.rows", rows, x.dtype);
  }
  const Shape whole = x.shape;
  g.record(out, "IndexBackward0", {&x}, [&g, saved, whole, places](Gradients in) {
    (void)saved.get();
    Tensor zeros = gradient(g, "index_backward", whole, in[0].dtype);
    const Tensor inside = places(5);
    return Gradients{zeros};
  });
  return out;
}

/// x[mask] = rows, in place.
Tensor put_rows(Eager& g, const Tensor& x, const Tensor& mask, const Tensor& rows, bool internals) {
  const bool recorded = g.will_record({&x, &rows});
  Saved saved = recorded ? g.save(mask) : Saved();
  const Shape part = rows.shape;
  const bool for_x = recorded && x.needs_grad(), for_rows = recorded && rows.needs_grad();
  const auto places = [&g, part, internals] {
    return internals ? g.make("index.places", {part[0], Dim(2)}, DType::int64, Category::workspace) : Tensor();
  };
  (void)places();
  Tensor out = x.alias(x.shape);
  g.record(out, "IndexPutBackward0", {&x, &rows}, [=, &g](Gradients in) {
    (void)saved.get();
    Gradients grads(2);
    if (for_x) {
      Tensor zeros = gradient(g, "index_put_backward.zeros", part, in[0].dtype);
      grads[0] = gradient(g, "index_put_backward", in[0].shape, in[0].dtype);
      const Tensor inside = places();
    }
    if (for_rows) {
      const Tensor inside = places();
      grads[1] = gradient(g, "index_put_backward.rows", part, in[0].dtype);
    }
    return grads;
  });
  return out;
}

}  // namespace

Tensor add_at(Eager& g, const Tensor& x, const Tensor& mask, const Tensor& rows, bool internals) {
  Tensor whole = copy(g, x, x.shape, "hidden");
  Tensor sum;
  {
    Tensor taken = take_rows(g, whole, mask, rows.shape, internals);
    sum = add(g, std::move(taken), rows, "features.sum");
  }
  return put_rows(g, whole, mask, sum, internals);
}

Tensor expanded(Eager& g, int parameter, Shape as) {
  Tensor w = g.leaf(parameter);
  Tensor out = w;
  out.shape = std::move(as);
  const Shape from = w.shape;
  if (g.record(out, "ExpandBackward0", {&w},
               [&g, from](Gradients in) { return Gradients{g.make("expand_backward", from, in[0].dtype, Category::gradients)}; }))
    out.leaf = -1;
  g.leave(parameter);
  return out;
}

Tensor average_pool(Eager& g, const Tensor& x, Shape out_shape) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make("pooled", std::move(out_shape), x.dtype);
  g.record(out, "AvgPool2DBackward0", {&x},
           [&g, saved](Gradients in) { return Gradients{gradient(g, "pool_backward", saved.get().shape, in[0].dtype)}; });
  return out;
}

Tensor quick_gelu(Eager& g, Tensor x) {
  Tensor open;
  {
    Tensor scaled = scale(g, x, "act.scaled");
    open = sigmoid(g, std::move(scaled), "act.sigmoid");
  }
  return mul(g, std::move(x), std::move(open), "act");
}

Tensor add_nothing_of(Eager& g, const Tensor& x, const Tensor& rows) {
  Tensor out = g.make("embeds_with_nothing", x.shape, x.dtype);
  const bool for_x = x.needs_grad(), for_rows = rows.needs_grad();
  const Shape of_rows = rows.shape;
  g.record(out, "AddBackward0", {&x, &rows}, [=, &g](Gradients in) {
    Gradients grads(2);
    if (for_rows) grads[1] = gradient(g, "mean_backward", of_rows, in[0].dtype);
    if (for_x) grads[0] = std::move(in[0]);
    return grads;
  });
  return out;
}

Tensor masked_scatter(Eager& g, const Tensor& x, const Tensor& mask, const Tensor& source, bool internals) {
  const bool recorded = g.will_record({&x, &source});
  const bool for_x = recorded && x.needs_grad(), for_source = recorded && source.needs_grad();
  Saved saved = recorded ? g.save(mask) : Saved();
  Tensor out = g.make("embeds_with_images", x.shape, x.dtype);
  if (internals) {
    // pytorch aten/src/ATen/native/cuda/IndexKernel.{cpp,cu}, 2.13: a prefix sum over the mask, which is made contiguous
    Tensor sums = g.make("masked_scatter.prefix_sum", x.shape, DType::int64, Category::workspace);
    Tensor whole = g.make("masked_scatter.mask", x.shape, DType::boolean, Category::workspace);
  }
  if (!recorded) return out;
  const Shape of_source = source.shape;
  g.record(out, "MaskedScatterBackward0", {&x, &source}, [=, &g](Gradients in) {
    (void)saved.get();
    Gradients grads(2);
    if (for_x) grads[0] = gradient(g, "masked_scatter_backward.rest", in[0].shape, in[0].dtype);
    if (for_source) {
      if (internals) {
        // masked_select: the mask made contiguous, then an index of three numbers for each element that is taken
        Tensor whole = g.make("masked_select.mask", in[0].shape, DType::boolean, Category::workspace);
        Shape indices = of_source;
        indices.insert(indices.begin(), Dim(3));
        Tensor picked = g.make("masked_select.indices", indices, DType::int64, Category::workspace);
      }
      grads[1] = gradient(g, "masked_scatter_backward", of_source, in[0].dtype);
    }
    return grads;
  });
  return out;
}

}  // namespace oomplan::vision_ops
