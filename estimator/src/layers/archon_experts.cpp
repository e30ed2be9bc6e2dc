#include "layers/archon_experts.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::T;

constexpr std::int64_t kAligned = 8;  // TOKEN_GROUP_ALIGN_SIZE_M, 16 bits

/// RouterGatingLinearFunction: the product runs in fp32, what is saved keeps its format.
Tensor gate(Eager& g, const Tensor& x, int number, Dim experts) {
  Tensor weight = g.leaf(number);
  const bool recorded = g.will_record({&x, &weight});
  Saved saved_x = recorded ? g.save(x) : Saved(), saved_weight = recorded ? g.save(weight) : Saved();
  const Shape rows = x.shape, matrix = weight.shape;
  const DType dtype = x.dtype;
  Tensor out;
  {
    Tensor wide = g.make("router.input_fp32", rows, DType::fp32), wide_matrix = g.make("router.weight_fp32", matrix, DType::fp32);
    out = g.make("router.logits", {rows[0], experts}, DType::fp32);
  }
  g.record(out, "RouterGatingLinearFunctionBackward", {&x, &weight}, [=, &g](Gradients) {
    (void)saved_x.get();
    (void)saved_weight.get();
    Gradients grads(2);
    {
      Tensor wide_matrix = g.make("router.weight_fp32", matrix, DType::fp32, Category::temporaries);
      Tensor wide = g.make("router.gradient_fp32", rows, DType::fp32, Category::temporaries);
      wide_matrix.reset();
      grads[0] = g.make("router.gradient", rows, dtype, Category::temporaries);
    }
    Tensor product;
    {
      Tensor wide = g.make("router.input_fp32", rows, DType::fp32, Category::temporaries);
      product = g.make("router.weight_gradient_fp32", matrix, DType::fp32, Category::temporaries);
    }
    grads[1] = g.make("router.weight_gradient", matrix, dtype, Category::gradients);
    return grads;
  });
  g.leave(number);
  return out;
}

struct Routed {
  Tensor scores, indices;
};
/// TokenChoiceTopKRouter.forward with softmax; the values of topk are a name until it returns.
Routed route(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim experts = ff.experts;
  const Shape top{T, Dim(ff.experts_per_token)};
  Tensor scores = gate(g, x, weight, experts);
  Tensor probabilities = softmax(g, scores, DType::fp32, "router.probabilities");
  scores = std::move(probabilities);
  TopK chosen = topk(g, scores, top, "router.top");
  Routed out;
  out.indices = chosen.indices;
  out.scores = gather(g, scores, out.indices, top, "router.scores");
  Tensor denominator;
  if (ff.normalise_top_k) {
    Tensor total = sum(g, out.scores, {T, 1}, "router.total");
    denominator = add_scalar(g, std::move(total), "router.denominator");
    Tensor divided = div(g, out.scores, denominator, "router.normalised");
    out.scores = std::move(divided);
  }
  Tensor scaled = scale(g, out.scores, "router.scaled");
  out.scores = std::move(scaled);
  return out;
}

/// torch._grouped_mm: saves its rows, its matrices and where experts begin.
Tensor grouped(Eager& g, const Tensor& x, int number, const Tensor& offsets, Shape out_shape, const std::string& name) {
  Tensor w = g.leaf(number);
  const bool recorded = g.will_record({&x, &w});
  Saved saved_x = recorded ? g.save(x) : Saved(), saved_w = recorded ? g.save(w) : Saved();
  Saved saved_offsets = recorded ? g.save(offsets) : Saved();
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  const Shape rows = x.shape, matrices = w.shape;
  g.record(out, "GroupedMmBackward0", {&x, &w}, [=, &g](Gradients in) {
    for (const Saved* s : {&saved_x, &saved_w, &saved_offsets}) (void)s->get();
    Gradients grads(2);
    grads[1] = g.make(name + ".weight_gradient", matrices, in[0].dtype, Category::gradients);
    grads[0] = g.make("grouped_mm_backward", rows, in[0].dtype, Category::temporaries);
    return grads;
  });
  g.leave(number);
  return out;
}

/// out[index] = values on a tensor of `shape` that wants no gradient itself.
Tensor put_rows(Eager& g, const Tensor& values, const Tensor& index, Shape shape, const std::string& name) {
  Tensor out = g.make(name, std::move(shape), values.dtype);
  if (!g.will_record({&values})) return out;
  Saved saved = g.save(index);
  g.record(out, "IndexPutBackward0", {&values}, [&g, saved, rows = values.shape](const Gradients& in) {
    (void)saved.get();
    return Gradients{gradient(g, "index_put_backward", rows, in[0].dtype)};
  });
  return out;
}

struct Rows {
  Dim routed, one_more, padded;
};

/// GroupedExperts.forward in its wrapper: a row of zeros behind the routed ones stands for every padded one.
Tensor run(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& routed, const Rows& n, const LayerLeaves& w) {
  Tensor permuted = g.make("experts.permuted_indices", {n.padded}, DType::int32);
  Tensor x;
  {
    Tensor with_zeros = g.make("experts.with_zeros", {n.one_more, hidden}, routed.dtype);
    g.record(with_zeros, "CatBackward0", {&routed},
             [shape = routed.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
    x = index_rows(g, with_zeros, permuted, {n.padded, hidden}, "experts.input");
  }
  Tensor out;
  {
    Tensor offsets = g.make("experts.offsets", {Dim(ff.experts)}, DType::int32);
    const Shape inner{n.padded, Dim(ff.expert_width)};
    Tensor h;
    {
      Tensor first = grouped(g, x, w.gate, offsets, inner, "experts.gate");
      h = activation(g, std::move(first), "experts.act");
    }
    Tensor up = grouped(g, x, w.up, offsets, inner, "experts.up");
    Tensor product = mul(g, h, std::move(up), "experts.product");
    h = std::move(product);
    out = grouped(g, h, w.down, offsets, {n.padded, hidden}, "experts.down");
  }
  x.reset();
  Tensor whole = put_rows(g, out, permuted, {n.one_more, hidden}, "experts.restored");
  return slice(g, whole, {n.routed, hidden});
}

/// torch.bmm(scores [T, 1, k], rows [T, k, H] in fp32): both are saved.
Tensor weighted(Eager& g, const Tensor& scores, const Tensor& rows, Dim hidden, DType dtype) {
  Tensor sums;
  {
    Tensor wide = to(g, rows, DType::fp32, "experts.rows_fp32");
    const bool recorded = g.will_record({&scores, &wide});
    Saved saved_scores = recorded ? g.save(scores) : Saved(), saved_rows = recorded ? g.save(wide) : Saved();
    sums = g.make("experts.sum_fp32", {T, hidden}, DType::fp32);
    g.record(sums, "BmmBackward0", {&scores, &wide},
             [&g, saved_scores, saved_rows, few = scores.shape, many = wide.shape](const Gradients&) {
               (void)saved_scores.get();
               (void)saved_rows.get();
               Gradients grads(2);
               grads[0] = gradient(g, "bmm_backward", few, DType::fp32);
               grads[1] = gradient(g, "bmm_backward", many, DType::fp32);
               return grads;
             });
  }
  return to(g, std::move(sums), dtype, "experts.output");
}

}  // namespace

LayerLeaves declare_archon_layer(Eager& g, const Architecture& a, const Layer& layer, DType dtype) {
  const FeedForward& ff = layer.feed_forward;
  if (ff.kind != FeedForwardKind::moe) return declare_layer(g, a, layer, dtype, {}, false);
  Layer rest = layer;
  rest.feed_forward.kind = FeedForwardKind::none;
  LayerLeaves w = declare_layer(g, a, rest, dtype, {}, false);
  w.router = g.parameter("moe.router.gate.weight", {ff.experts, a.hidden}, dtype);
  w.gate = g.parameter("moe.experts.w1", {ff.experts, ff.expert_width, a.hidden}, dtype);
  w.down = g.parameter("moe.experts.w2", {ff.experts, a.hidden, ff.expert_width}, dtype);
  w.up = g.parameter("moe.experts.w3", {ff.experts, ff.expert_width, a.hidden}, dtype);
  return w;
}

Tensor archon_experts(Eager& g, const FeedForward& ff, std::int64_t hidden, const Tensor& x, const LayerLeaves& w,
                      const KernelOptions& options) {
  const std::int64_t rows = options.routed_tokens * ff.experts_per_token;
  const Rows n{rows, rows + 1, (rows + ff.experts * kAligned + kAligned - 1) / kAligned * kAligned};
  Tensor flat = x.alias({T, Dim(hidden)});
  flat.grad_fn = x.grad_fn;
  flat.output = x.output;
  g.record(flat, "ViewBackward0", {&x}, [shape = x.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  Routed routed = route(g, ff, flat, w.router);
  Tensor order;
  {
    Tensor sorted = g.make("experts.sorted_ids", {n.routed}, DType::int64);
    order = g.make("experts.order", {n.routed}, DType::int64);
  }
  Tensor flat_scores = routed.scores.alias({n.routed});
  flat_scores.grad_fn = routed.scores.grad_fn;
  flat_scores.output = routed.scores.output;
  const Tensor sorted_scores = index_rows(g, std::move(flat_scores), order, {n.routed}, "experts.sorted_scores");
  Tensor input;
  {
    Tensor token = g.make("experts.token", {n.routed}, DType::int64);
    input = index_rows(g, flat, token, {n.routed, Dim(hidden)}, "experts.routed");
  }
  const Tensor output = run(g, ff, hidden, input, n, w);
  const Tensor unsorted = put_rows(g, output, order, {n.routed, Dim(hidden)}, "experts.unsorted");
  Tensor by_token = unsorted;
  by_token.shape = {Dim(options.routed_tokens), Dim(ff.experts_per_token), Dim(hidden)};
  Tensor out = weighted(g, routed.scores, by_token, hidden, x.dtype);
  out.shape = x.shape;
  return out;
}

}  // namespace oomplan
