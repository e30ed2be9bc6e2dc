#include "layers/router.hpp"

#include "layers/folded.hpp"
#include "layers/ops.hpp"
#include "layers/sparse_mixer.hpp"

namespace oomplan {

using namespace ops;
using axis::T;

/// `values /= total`: the old values stay, as a clone, for the divisor's gradient.
Tensor divide_in_place(Eager& g, const Tensor& values, const Tensor& total) {
  const bool recorded = g.will_record({&values, &total});
  Saved saved_values = recorded ? g.save(g.make("router.values", values.shape, values.dtype)) : Saved();
  Saved saved_total = recorded ? g.save(total) : Saved();
  Tensor divided = values.alias(values.shape);
  if (!recorded) return divided;
  g.record(divided, "DivBackward0", {&values, &total}, [=, &g](Gradients in) {
    (void)saved_values.get();
    (void)saved_total.get();
    return Gradients{g.make("div_backward", in[0].shape, in[0].dtype, Category::temporaries),
                     g.make("div_backward", in[0].shape, in[0].dtype, Category::temporaries)};
  });
  return divided;
}

namespace {

/// Qwen2-MoE, Qwen3-MoE, OLMoE and Mixtral: softmax in fp32, top-k, normalised in place, cast back (not in Mixtral).
Routing softmax_first(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim experts = ff.experts, top = ff.experts_per_token;
  Tensor logits = linear_by(g, x, folded_matrix(g, weight), T, {T, experts}, "router.logits");
  Tensor source = ff.weights_in_fp32 ? to(g, logits, DType::fp32, "router.logits_fp32") : logits;
  Tensor probabilities = softmax(g, std::move(source), DType::fp32, "router.probabilities");
  TopK chosen = topk(g, probabilities, {T, top}, "router.top");
  Routing out;
  out.indices = std::move(chosen.indices);
  Tensor values = std::move(chosen.values);
  if (ff.normalise_top_k) {
    Tensor total = sum(g, values, {T, 1}, "router.total");
    Tensor divided = divide_in_place(g, values, total);
    values = std::move(divided);
  }
  out.weights = ff.weights_in_fp32 ? std::move(values) : to(g, std::move(values), logits.dtype, "router.weights");
  out.logits = std::move(logits);
  return out;
}

/// zeros.scatter_(1, index, values): saves the index.
Tensor scatter(Eager& g, const Tensor& values, const Tensor& index, Shape out_shape, const std::string& name) {
  Tensor out = g.make(name, std::move(out_shape), values.dtype);
  if (!g.will_record({&values})) return out;
  Saved saved = g.save(index);
  g.record(out, "ScatterBackward0", {&values}, [&g, saved, shape = values.shape](const Gradients& in) {
    (void)saved.get();
    return Gradients{g.make("scatter_backward", shape, in[0].dtype, Category::temporaries)};
  });
  return out;
}

/// gpt-oss: top-k of the logits, then a softmax over those in the compute dtype.
Routing top_k_first(Eager& g, const FeedForward& ff, const Tensor& x, int weight, int bias, bool of_4) {
  Routing out;
  out.logits = linear(g, x, weight, bias, T, {T, Dim(ff.experts)}, "router.logits");
  TopK chosen = topk(g, out.logits, {T, Dim(ff.experts_per_token)}, "router.top");
  out.indices = std::move(chosen.indices);
  out.weights = softmax(g, chosen.values, chosen.values.dtype, "router.weights");
  if (of_4) {  // release 4: zeros_like(logits).scatter_(1, indices, weights)
    Tensor scores = scatter(g, out.weights, out.indices, {T, Dim(ff.experts)}, "router.scores");
    out.weights = std::move(scores);
  }
  return out;
}

/// F.linear(x.type(fp32), weight.type(fp32)): both copies are saved.
Tensor logits_in_fp32(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  Tensor wide = to(g, x, DType::fp32, "router.input_fp32");
  Tensor matrix = to(g, folded_matrix(g, weight), DType::fp32, "router.weight_fp32");
  return linear_by(g, std::move(wide), std::move(matrix), T, {T, Dim(ff.experts)}, "router.logits");
}

/// x.masked_fill(~mask.bool(), value): the negated mask is saved.
Tensor fill_where_not(Eager& g, const Tensor& x, const std::string& name) {
  Tensor refused;
  {
    Tensor wanted = g.make(name + ".wanted", x.shape, DType::boolean);
    refused = g.make(name + ".mask", x.shape, DType::boolean);
  }
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(refused) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (recorded) {
    g.record(out, "MaskedFillBackward0", {&x}, [&g, saved](Gradients in) {
      (void)saved.get();
      return Gradients{g.make("masked_fill_backward", in[0].shape, in[0].dtype, Category::temporaries)};
    });
  }
  return out;
}

/// The groups of experts that may be chosen, as a mask over all experts; `best`: experts of a group that give its score.
/// `scores` is rebound. Names made here live as long as the router does: they are returned.
struct Groups {
  Tensor scores, indices, mask, wide;
};
Groups choose_groups(Eager& g, const FeedForward& ff, Tensor& scores, Tensor group_scores) {
  Groups out;
  const Dim groups = ff.router_groups;
  out.scores = std::move(group_scores);
  {
    TopK chosen = topk(g, out.scores, {T, Dim(ff.router_top_groups)}, "router.groups");
    out.indices = std::move(chosen.indices);
  }
  out.mask = g.make("router.group_mask", {T, groups}, out.scores.dtype);
  // expand and reshape to all experts: a view for one group
  out.wide = groups == Dim(1) ? out.mask : g.make("router.expert_mask", {T, Dim(ff.experts)}, out.scores.dtype);
  Tensor filled = fill_where_not(g, scores, "router.in_groups");
  scores = std::move(filled);
  return out;
}

/// DeepSeek V2: softmax in fp32, the best groups where there are several, top-k, times a number.
Routing deepseek_v2(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  Routing out;
  out.logits = logits_in_fp32(g, ff, x, weight);
  Tensor scores = softmax(g, out.logits, DType::fp32, "router.probabilities");
  Groups groups;
  if (ff.router_groups > 0) {
    Tensor best;
    {
      TopK highest = topk(g, scores, {T, Dim(ff.router_groups)}, "router.group_scores");  // max: values and saved indices
      best = std::move(highest.values);
    }
    groups = choose_groups(g, ff, scores, std::move(best));
  }
  TopK chosen = topk(g, scores, {T, Dim(ff.experts_per_token)}, "router.top");
  out.indices = std::move(chosen.indices);
  Tensor values = std::move(chosen.values);
  out.weights = scale(g, values, "router.weights");
  return out;
}

/// The scores of the chosen experts, normalised where the model says so, times a number.
Tensor chosen_weights(Eager& g, const FeedForward& ff, const Tensor& scores, const Tensor& indices) {
  Tensor values = gather(g, scores, indices, {T, Dim(ff.experts_per_token)}, "router.values"), total;
  if (ff.normalise_top_k) {
    {
      Tensor bare = sum(g, values, {T, 1}, "router.total");
      total = add_scalar(g, std::move(bare), "router.denominator");
    }
    Tensor divided = divide_in_place(g, values, total);
    values = std::move(divided);
  }
  return scale(g, values, "router.weights");
}

/// DeepSeek V3, GLM-4.5, dots: sigmoid, a correction that only chooses, the best groups, top-k, normalised, times a number.
Routing deepseek_v3(Eager& g, const FeedForward& ff, const Tensor& x, int weight, bool of_4) {
  const Dim groups = ff.router_groups, top = ff.experts_per_token;
  Routing out;
  out.logits = logits_in_fp32(g, ff, x, weight);
  Tensor scores = sigmoid(g, out.logits, "router.scores");
  const bool grad = std::exchange(g.grad_enabled, g.grad_enabled && !of_4);  // get_topk_indices of release 4: no_grad
  Tensor corrected = add_scalar(g, scores, "router.corrected");
  Tensor group_scores;
  {
    TopK best = topk(g, corrected, {T, groups, Dim(2)}, "router.best_of_group");
    group_scores = sum(g, best.values, {T, groups}, "router.group_scores");
  }
  Groups chosen_groups = choose_groups(g, ff, corrected, std::move(group_scores));
  {
    TopK chosen = topk(g, corrected, {T, top}, "router.top");
    out.indices = std::move(chosen.indices);
  }
  g.grad_enabled = grad;
  if (of_4) {
    corrected.reset();
    chosen_groups = {};
  }
  out.weights = chosen_weights(g, ff, scores, out.indices);
  return out;
}

/// MiniMax-M2: sigmoid in fp32, a correction that only chooses, top-k, normalised.
Routing sigmoid_first(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim top = ff.experts_per_token;
  Routing out;
  out.logits = linear(g, x, weight, -1, T, {T, Dim(ff.experts)}, "router.logits");
  Tensor scores;
  {
    Tensor wide = to(g, out.logits, DType::fp32, "router.logits_fp32");
    scores = sigmoid(g, std::move(wide), "router.scores");
  }
  Tensor corrected = add_scalar(g, scores, "router.corrected");
  TopK chosen = topk(g, corrected, {T, top}, "router.top");  // `_, top_k_index`: the values stay to the end
  out.indices = chosen.indices;
  out.weights = gather(g, scores, out.indices, {T, top}, "router.values");
  Tensor total = sum(g, out.weights, {T, 1}, "router.total");
  Tensor divided = divide_in_place(g, out.weights, total);
  out.weights = std::move(divided);
  return out;
}

/// GraniteMoeTopKRouter
Routing widened_logits(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  Routing out;
  Tensor narrow = linear_by(g, x, folded_matrix(g, weight), T, {T, Dim(ff.experts)}, "router.product");
  out.logits = to(g, std::move(narrow), DType::fp32, "router.logits");
  TopK chosen = topk(g, out.logits, {T, Dim(ff.experts_per_token)}, "router.top");
  out.indices = std::move(chosen.indices);
  Tensor weights = softmax(g, chosen.values, DType::fp32, "router.top_weights");
  out.weights = to(g, std::move(weights), x.dtype, "router.weights");
  return out;
}

/// Ernie4_5_MoeTopKRouter: autocast is off, the divisor is clamped.
Routing ernie(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim top = ff.experts_per_token;
  const bool autocast = std::exchange(g.autocast, false);
  Routing out;
  out.logits = logits_in_fp32(g, ff, x, weight);
  Tensor weights = softmax(g, out.logits, DType::fp32, "router.probabilities");
  TopK chosen;  // `_, selected_experts`: the values stay to the end
  {
    Tensor corrected = add_scalar(g, weights, "router.corrected");
    chosen = topk(g, corrected, {T, top}, "router.top");
  }
  out.indices = chosen.indices;
  Tensor next = gather(g, weights, out.indices, {T, top}, "router.values");
  weights = std::move(next);
  {
    Tensor divisor;
    {
      Tensor total = sum(g, weights, {T, 1}, "router.total");
      divisor = clamp(g, total, 1, "router.divisor");
    }
    next = div(g, weights, std::move(divisor), "router.normalised");
  }
  weights = std::move(next);
  g.autocast = autocast;
  out.weights = to(g, std::move(weights), x.dtype, "router.weights");
  return out;
}

/// Mistral4TopkRouter
Routing mistral4(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim groups = std::max<std::int64_t>(1, ff.router_groups), top = ff.experts_per_token;
  FeedForward grouped = ff;
  grouped.router_groups = groups.coefficient;
  grouped.router_top_groups = std::max<std::int64_t>(1, ff.router_top_groups);
  Routing out;
  out.logits = linear_by(g, x, folded_matrix(g, weight), T, {T, Dim(ff.experts)}, "router.logits");
  const Tensor scores = softmax(g, out.logits, g.autocast ? DType::fp32 : out.logits.dtype, "router.probabilities");
  Tensor group_scores;
  {
    TopK best = topk(g, scores, {T, groups, Dim(2)}, "router.best_of_group");
    group_scores = sum(g, best.values, {T, groups}, "router.group_scores");
  }
  Tensor chosen_of = scores;
  const Groups names = choose_groups(g, grouped, chosen_of, std::move(group_scores));
  {
    TopK chosen = topk(g, chosen_of, {T, top}, "router.top");
    out.indices = std::move(chosen.indices);
  }
  out.weights = chosen_weights(g, ff, scores, out.indices);
  return out;
}

/// HunYuanMoEV1Gate
Routing hunyuan(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim top = ff.experts_per_token;
  Routing out;
  const Tensor wide = to(g, x, g.leaves[static_cast<std::size_t>(weight)].dtype, "router.input");
  out.logits = linear(g, wide, weight, -1, T, {T, Dim(ff.experts)}, "router.logits");
  Tensor weights = softmax(g, out.logits, DType::fp32, "router.probabilities");
  {
    TopK chosen = topk(g, weights, {T, top}, "router.top");
    weights = std::move(chosen.values);
    out.indices = std::move(chosen.indices);
  }
  {
    Tensor total = sum(g, weights, {T, 1}, "router.total");
    Tensor divided = divide_in_place(g, weights, total);
    weights = std::move(divided);
  }
  out.weights = to(g, std::move(weights), out.logits.dtype, "router.weights");
  return out;
}

/// LFM2, Trinity and Hunyuan 3: sigmoid, an fp32 correction that only chooses, divided by the sum and scaled, out of place.
Routing corrected(Eager& g, RouterCode code, const FeedForward& ff, const Tensor& x, int weight) {
  const Dim top = ff.experts_per_token;
  const Shape rows{T, Dim(ff.experts)};
  Routing out;
  if (code == RouterCode::corrected_wide) {
    out.logits = logits_in_fp32(g, ff, x, weight);
  } else {
    out.logits = code == RouterCode::corrected_cast ? linear(g, x, weight, -1, T, rows, "router.product")
                                                    : linear_by(g, x, folded_matrix(g, weight), T, rows, "router.logits");
    if (code == RouterCode::corrected_cast) out.logits = to(g, Tensor(out.logits), DType::fp32, "router.logits");
  }
  Tensor scores = sigmoid(g, out.logits, "router.scores");
  TopK chosen;  // `_, selected_experts`: the values stay to the end
  Tensor kept;
  if (ff.correction_bias) {
    Tensor sum = g.make("router.corrected", rows, DType::fp32);
    g.record(sum, "AddBackward0", {&scores}, [](Gradients in) { return in; });
    chosen = topk(g, sum, {T, top}, "router.top");
    if (code == RouterCode::corrected) kept = std::move(sum);
    out.indices = chosen.indices;
    out.weights = gather(g, scores, out.indices, {T, top}, "router.values");
    if (code != RouterCode::corrected_cast && code != RouterCode::corrected_wide) scores = out.weights;
  } else {
    chosen = topk(g, scores, {T, top}, "router.top");
    out.indices = std::move(chosen.indices);
    out.weights = std::move(chosen.values);
  }
  if (ff.normalise_top_k) {
    Tensor total;
    {
      Tensor bare = sum(g, out.weights, {T, 1}, "router.total");
      total = add_scalar(g, std::move(bare), "router.denominator");
    }
    Tensor divided = div(g, out.weights, std::move(total), "router.normalised");
    out.weights = std::move(divided);
  }
  Tensor scaled = scale(g, out.weights, "router.weights");
  out.weights = std::move(scaled);
  return out;
}

}  // namespace

Routing route(Eager& g, RouterCode code, const FeedForward& ff, const Tensor& x, int weight, int bias, bool of_4) {
  switch (code) {
    case RouterCode::widened_logits:
      return widened_logits(g, ff, x, weight);
    case RouterCode::ernie:
      return ernie(g, ff, x, weight);
    case RouterCode::mistral4:
      return mistral4(g, ff, x, weight);
    case RouterCode::hunyuan:
      return hunyuan(g, ff, x, weight);
    case RouterCode::corrected:
    case RouterCode::corrected_cast:
    case RouterCode::corrected_wide:
      return corrected(g, code, ff, x, weight);
    case RouterCode::sparse_mixer:
      return sparse_mixer(g, ff, x, weight);
    case RouterCode::by_score:
      break;
  }
  if (ff.score == RouterScore::softmax_of_top_k) return top_k_first(g, ff, x, weight, bias, of_4);
  if (ff.score == RouterScore::sigmoid)
    return ff.router_groups > 0 ? deepseek_v3(g, ff, x, weight, of_4) : sigmoid_first(g, ff, x, weight);
  return ff.router_in_fp32 ? deepseek_v2(g, ff, x, weight) : softmax_first(g, ff, x, weight);
}

}  // namespace oomplan
