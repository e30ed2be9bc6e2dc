// TopKRouter of Megatron-core: topk_routing_with_score_function, apply_router_token_dropping, and the auxiliary loss.
#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

Tensor gating(Eager& g, const Tensor& x, const Shape& all, DType dtype) {
  Tensor logits = g.make("router.logits", all, dtype);
  if (!g.will_record({&x})) return logits;
  Saved saved = g.save(x);
  g.record(logits, "RouterGatingLinear", {&x}, [&g, saved, dtype](Gradients) {
    const Tensor& input = saved.get();
    Tensor wide = dtype == DType::bf16 ? Tensor() : gradient(g, "router_backward.fp32", input.shape, dtype);
    return Gradients{gradient(g, "router_backward", input.shape, DType::bf16)};
  });
  return logits;
}

/// Before 0.13: a product of copies in the router's format, which are kept (router.py, core_v0.12.1).
Tensor gating_of_copies(Eager& g, const Tensor& x, const Shape& all, DType dtype) {
  Tensor wide = to(g, x, dtype, "router.input");
  const Shape matrix{all.back(), x.shape.back()};
  const Tensor weight = g.make("router.weight", matrix, dtype);
  Tensor logits = g.make("router.logits", all, dtype);
  if (!g.will_record({&wide})) return logits;
  Saved input = g.save(wide), factor = g.save(weight);
  g.record(logits, "MmBackward0", {&wide}, [&g, input, factor, matrix, dtype](Gradients) {
    (void)factor.get();
    Tensor out = gradient(g, "router.input_backward", input.get().shape, dtype);
    const Tensor of_matrix = gradient(g, "router.weight_backward", matrix, dtype);
    const Tensor narrow = gradient(g, "router.weight_backward", matrix, DType::bf16);
    return Gradients{std::move(out)};
  });
  return logits;
}

/// One whose gradient is of its input's shape, made while `kept` is there.
Tensor keeping(Eager& g, const Tensor& x, const Tensor& kept, Shape shape, DType dtype, const std::string& name) {
  Tensor y = g.make(name, std::move(shape), dtype);
  if (!g.will_record({&x})) return y;
  Saved saved = kept ? g.save(kept) : Saved();
  const Shape before = x.shape;
  const DType format = x.dtype;
  g.record(y, "Backward", {&x}, [&g, saved, name, before, format](Gradients) {
    (void)saved.get();
    return Gradients{gradient(g, (name + "_backward").c_str(), before, format)};
  });
  return y;
}

/// group_limited_topk: the names of the function live until it returns.
TopK top_of_groups(Eager& g, const FeedForward& f, const RoutedSizes& s, const Tensor& scores, const Shape& top) {
  const Shape by_group{s.tokens, Dim(f.router_groups)};
  const std::int64_t of_group = std::max<std::int64_t>(1, s.top / f.router_top_groups);
  Tensor sums;
  {
    const TopK best = topk(g, scores, {s.tokens, Dim(f.router_groups), Dim(of_group)}, "router.group_top");
    sums = sum(g, best.values, by_group, "router.group_scores");
  }
  const TopK groups = topk(g, sums, {s.tokens, Dim(f.router_top_groups)}, "router.groups");
  const Tensor group_mask = g.make("router.group_mask", by_group, scores.dtype);
  const Tensor wide = g.make("router.score_mask", scores.shape, scores.dtype);
  Tensor without;
  {
    Tensor mask = g.make("router.mask", scores.shape, DType::boolean);
    without = g.make("router.without", scores.shape, DType::boolean);
  }
  const Tensor masked = keeping(g, scores, without, scores.shape, scores.dtype, "router.masked");
  without.reset();
  return topk(g, masked, top, "router.top");
}

TopK choose(Eager& g, const FeedForward& f, const RoutedSizes& s, const Tensor& scores, const Shape& top) {
  return f.router_groups > 1 ? top_of_groups(g, f, s, scores, top) : topk(g, scores, top, "router.top");
}

/// scores / (scores.sum(-1) + 1e-20)
Tensor normalised(Eager& g, Tensor scores, const std::string& name) {
  Tensor total = sum(g, scores, {scores.shape[0], Dim(1)}, name + ".sum");
  Tensor shifted = add_scalar(g, std::move(total), name + ".shifted");
  return div(g, std::move(scores), std::move(shifted), name);
}

Tensor sigmoid_probabilities(Eager& g, const FeedForward& f, const RoutedSizes& s, const Tensor& logits, const Shape& top) {
  const DType dtype = logits.dtype;
  Tensor scores = sigmoid(g, to(g, logits, DType::fp32, "router.logits_fp32"), "router.scores");
  scores = to(g, std::move(scores), dtype, "router.scores_cast");
  Tensor chosen;
  if (f.correction_bias) {
    Tensor indices;
    {
      const Tensor biased = keeping(g, scores, {}, scores.shape, DType::fp32, "router.biased");
      indices = choose(g, f, s, biased, top).indices;
    }
    chosen = gather(g, scores, indices, top, "router.chosen");
  } else {
    chosen = choose(g, f, s, scores, top).values;
  }
  return s.top > 1 ? normalised(g, std::move(chosen), "router.normalised") : chosen;
}

/// Of every token's best experts, in the router's format. A division of them by their sum is Megatron's softmax behind the
/// choice.
Tensor probabilities_of_top(Eager& g, const FeedForward& f, const RoutedSizes& s, const Tensor& logits, const Shape& top) {
  const DType dtype = logits.dtype;
  if (f.score == RouterScore::sigmoid) return sigmoid_probabilities(g, f, s, logits, top);
  if (f.score == RouterScore::softmax && !f.normalise_top_k) {
    Tensor scores = softmax(g, logits, DType::fp32, "router.scores");
    scores = to(g, std::move(scores), dtype, "router.scores_cast");
    return choose(g, f, s, scores, top).values;
  }
  Tensor best = choose(g, f, s, logits, top).values;
  Tensor probabilities = softmax(g, std::move(best), DType::fp32, "router.top_probabilities");
  return to(g, std::move(probabilities), dtype, "router.top_cast");
}

/// apply_router_token_dropping: of every expert as many tokens as its capacity; padded those that did not choose it too.
Tensor dropped(Eager& g, const RoutedSizes& s, const Tensor& probabilities) {
  Tensor mask;
  {
    const TopK best = topk(g, probabilities, {s.routed}, "router.capacity");
    const Tensor ones = g.make("router.capacity_mask", probabilities.shape, probabilities.dtype);
    mask = g.make("router.final_map", probabilities.shape, DType::boolean);
  }
  const Tensor capacity = mask;  // a name of the function
  if (!s.padded) mask = g.make("router.kept_map", probabilities.shape, DType::boolean);
  return keeping(g, probabilities, mask, probabilities.shape, probabilities.dtype, "router.final_probabilities");
}

/// compute_routing_scores_for_aux_loss and the loss itself, carried by the probabilities.
Tensor with_auxiliary_loss(Eager& g, const FeedForward& f, const Tensor& logits, const Shape& top, const Tensor& probabilities) {
  Tensor scores;
  if (f.score == RouterScore::sigmoid) {
    Tensor plain = sigmoid(g, logits, "router.aux_sigmoid");
    scores = normalised(g, std::move(plain), "router.aux_scores");
  } else {
    scores = softmax(g, logits, DType::fp32, "router.aux_scores");
  }
  const TopK best = topk(g, scores, top, "router.aux_top");
  Tensor loss = g.scalar(DType::fp32);
  g.record(loss, "SumBackward", {&scores}, [&g, all = logits.shape, dtype = scores.dtype](Gradients) {
    return Gradients{gradient(g, "aux_loss_backward", all, dtype)};
  });
  Tensor carried = probabilities.alias(probabilities.shape);
  g.record(carried, "MoEAuxLossAutoScaler", {&probabilities, &loss},
           [&g](Gradients in) { return Gradients{in[0], g.scalar(DType::fp32)}; });
  return carried;
}

/// sinkhorn_load_balancing: the choice is made without a graph, the scores are cut by its map.
Tensor sinkhorn_probabilities(Eager& g, const RoutedSizes& s, const Tensor& logits) {
  Tensor map;
  {
    const Tensor wide = g.make("router.cost", logits.shape, DType::fp32);
    const Tensor cost = g.make("router.sinkhorn", logits.shape, DType::fp32);
    const Tensor weighted = g.make("router.sinkhorn.weighted", logits.shape, DType::fp32);
  }
  Tensor scores;
  if (s.top == 1) {
    scores = sigmoid(g, logits, "router.scores");
  } else {
    scores = softmax(g, logits, DType::fp32, "router.scores_fp32");
    scores = to(g, std::move(scores), logits.dtype, "router.scores");
  }
  {
    const Tensor numbers = g.make("router.map_int32", logits.shape, DType::int32);
    map = g.make("router.map", logits.shape, DType::boolean);
  }
  return keeping(g, scores, map, logits.shape, logits.dtype, "router.probabilities");
}

}  // namespace

Tensor route_megatron(Eager& g, const FeedForward& f, const ChunkOptions& o, const RoutedSizes& s, const Tensor& x) {
  const Shape all{s.tokens, Dim(s.experts)}, top{s.tokens, Dim(s.top)};
  const bool copies = o.settings.core_release == CoreRelease::v0_12 && o.settings.router != DType::bf16;
  const Tensor logits = copies ? gating_of_copies(g, x, all, o.settings.router) : gating(g, x, all, o.settings.router);
  if (o.settings.sinkhorn) return sinkhorn_probabilities(g, s, logits);
  const Tensor chosen = probabilities_of_top(g, f, s, logits, top);
  Tensor probabilities = keeping(g, chosen, {}, all, logits.dtype, "router.probabilities");
  if (s.dropped) probabilities = dropped(g, s, probabilities);
  if (o.settings.router_aux_loss) probabilities = with_auxiliary_loss(g, f, logits, top, probabilities);
  return probabilities;
}

}  // namespace oomplan
