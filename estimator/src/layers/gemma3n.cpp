#include "layers/gemma3n.hpp"

#include <algorithm>

#include "layers/normed_attention.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// In-place work on a view of `base`: CopySlices copies the whole gradient, and of that the part (torch/csrc/autograd/functions/
/// tensor.cpp, 2.13).
/// view += x
Tensor add_to_view(Eager& g, const Tensor& base, const Shape& part, const Tensor& x) {
  Tensor out = base.alias(base.shape);
  g.record(out, "CopySlices", {&base, &x}, [&g, part](const Gradients& in) {
    Tensor whole = gradient(g, "copy_slices", in[0].shape, in[0].dtype);
    return Gradients{std::move(whole), gradient(g, "copy_slices.part", part, in[0].dtype)};
  });
  return out;
}

/// base[...] = view of itself, which `x[1:] += y` ends with.
Tensor copy_to_view(Eager& g, const Tensor& base, const Tensor& view) {
  Tensor out = base.alias(base.shape);
  g.record(out, "CopySlices", {&base, &view}, [&g, part = view.shape](const Gradients& in) {
    Tensor whole = gradient(g, "copy_slices", in[0].shape, in[0].dtype);
    Tensor copied = gradient(g, "copy_slices.part", part, in[0].dtype);
    Tensor zeros = gradient(g, "copy_slices.zeros", part, in[0].dtype);
    return Gradients{std::move(whole), std::move(copied)};
  });
  return out;
}

/// torch.std over the last axis: saves its input and its result.
Tensor deviation(Eager& g, const Tensor& x) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make("std", with_last(x.shape, 1), x.dtype);
  if (!recorded) return out;
  Saved result = g.save(out);
  g.record(out, "StdBackward0", {&x}, [&g, saved, result](const Gradients&) {
    const Tensor& self = saved.get();
    (void)result.get();
    Tensor centred = gradient(g, "std_backward.centred", self.shape, self.dtype);
    return Gradients{gradient(g, "std_backward", self.shape, self.dtype)};
  });
  return out;
}

/// relu(gate - (mean + std * number)).
Tensor sparse(Eager& g, const Tensor& gate) {
  Tensor mean = mean_last(g, gate);
  Tensor spread = deviation(g, gate);
  Tensor cutoff;
  {
    Tensor factor = g.make("mlp.std_multiplier", {}, gate.dtype, Category::buffers);
    Tensor scaled = mul(g, spread, std::move(factor), "mlp.std_scaled");
    cutoff = add(g, mean, std::move(scaled), "mlp.cutoff");
  }
  Tensor above = sub(g, gate, cutoff, "mlp.above");
  return relu(g, std::move(above), "mlp.sparse_gate");
}

/// hidden_states * target / new magnitude
Tensor as_high(Eager& g, const Tensor& x, const Tensor& target) {
  Tensor magnitude;
  {
    Tensor squares = pow2(g, x);
    magnitude = mean_last(g, std::move(squares));
  }
  {
    Tensor bounded = clamp(g, magnitude, 1, "magnitude.clamped");
    Tensor root = power(g, std::move(bounded), "magnitude.root");
    magnitude = std::move(root);
  }
  Tensor product = mul(g, x, target, "copies.product");
  return div(g, std::move(product), magnitude, "copies.copy");
}

Tensor magnitude_of(Eager& g, const Tensor& x) {
  Tensor mean;
  {
    Tensor squares = pow2(g, x);
    mean = mean_last(g, std::move(squares));
  }
  return power(g, std::move(mean), "target_magnitude");
}

Tensor stack(Eager& g, const std::vector<Tensor>& parts) {
  Shape whole = parts.front().shape;
  whole.insert(whole.begin(), Dim(static_cast<std::int64_t>(parts.size())));
  return cat(g, parts, whole, "copies");
}

Shape without_first(const Shape& shape) { return {shape.begin() + 1, shape.end()}; }

struct LayerOf3n {
  Eager& g;
  const Architecture& a;
  const FamilyCode& code;
  const Layer& layer;
  const LayerLeaves& w;
  const KernelOptions& options;
  const LayerContext& context;

  Shape rows() const { return {B, S, Dim(a.hidden)}; }
  Tensor normed(const Tensor& x, const NormLeaf& leaf, const char* name) const { return run_norm(g, code.norm, x, leaf, name); }

  Tensor modalities(const Tensor& x) const {
    Tensor in;
    {
      Tensor norm = normed(x, w.altup.router_norm, "altup.router_norm");
      in = scale(g, std::move(norm), "altup.router_input");
    }
    const Tensor routed = linear(g, in, w.altup.router, -1, T, {B, S, Dim(layer.altup_inputs)}, "altup.routed");
    Tensor wide = to(g, routed, DType::fp32, "altup.routed_fp32");
    Tensor bounded = tanh(g, std::move(wide), "altup.tanh");
    return to(g, std::move(bounded), x.dtype, "altup.modalities");
  }

  Tensor predict(const Tensor& x) const {
    const Dim n = layer.altup_inputs;
    Tensor modal;
    {
      const Tensor first = slice(g, x, rows());
      modal = modalities(first);
    }
    Tensor coefs = linear(g, modal, w.altup.prediction, -1, T, {B, S, n * n}, "altup.prediction_coefs");
    coefs.shape = {T, n, n};
    Tensor by_token = x;
    by_token.shape = {B, S, Dim(a.hidden), n};
    if (g.autocast && x.dtype == DType::fp32) by_token = to(g, Tensor(by_token), DType::bf16, "altup.copies_bf16");
    by_token.shape = {T, Dim(a.hidden), n};
    Tensor base = matmul(g, std::move(by_token), coefs, {T, Dim(a.hidden), n}, "altup.product");
    Tensor predictions = add_to_view(g, base, base.shape, x);
    Tensor whole = copy(g, predictions, x.shape, "altup.predictions");
    return to(g, std::move(whole), x.dtype, "altup.predictions_cast");
  }

  /// all_coefs = linear(modalities, weight.clamp(...)) + 1
  Tensor correction(const Tensor& modal) const {
    const Dim n = layer.altup_inputs;
    Tensor narrow = clamp(g, g.leaf(w.altup.correction), 2, "altup.correction_clamped");
    Tensor coefs = linear_by(g, modal, narrow, T, {B, S, n}, "altup.correction_coefs");
    return add_scalar(g, std::move(coefs), "altup.coefs_plus_one");
  }

  Tensor correct(const Tensor& predictions, const Tensor& activated) const {
    const Tensor modal = modalities(activated);
    Tensor innovation;
    {
      const Tensor active = slice(g, predictions, rows());
      innovation = sub(g, activated, active, "altup.innovation");
    }
    Tensor all = g.make("altup.innovations", predictions.shape, innovation.dtype);
    g.record(all, "RepeatBackward0", {&innovation}, [&eager = g, once = rows()](const Gradients& in) {
      return Gradients{gradient(eager, "repeat_backward", once, in[0].dtype)};
    });
    innovation = std::move(all);
    Tensor coefs = correction(modal);
    coefs.shape = {Dim(layer.altup_inputs), B, S, Dim(1)};
    Tensor corrected = mul(g, innovation, coefs, "altup.corrected");
    return add_in_place(g, corrected, predictions);
  }

  Tensor laurel(const Tensor& x) const {
    Tensor hidden;
    {
      Tensor left = linear(g, x, w.altup.left, -1, T, {B, S, Dim(layer.laurel_rank)}, "laurel.left");
      hidden = linear(g, left, w.altup.right, -1, T, rows(), "laurel.right");
    }
    const Tensor norm = normed(hidden, w.altup.after_right, "laurel.norm");
    return add(g, x, norm, "laurel");
  }

  Tensor mlp(const Tensor& x) const {
    const FeedForward& ff = layer.feed_forward;
    const Shape wide{B, S, Dim(ff.width)};
    Tensor gate = linear(g, x, w.gate, -1, T, wide, "mlp.gate");
    if (ff.sparse_gate) {
      Tensor kept = sparse(g, gate);
      gate = std::move(kept);
    }
    const Tensor active = activation(g, gate, "mlp.act");
    const Tensor up = linear(g, x, w.up, -1, T, wide, "mlp.up");
    Tensor product = mul(g, active, up, "mlp.product");
    return linear(g, std::move(product), w.down, -1, T, rows(), "mlp.down");
  }

  /// corrected_predictions[1:] += what the layer's own input gives.
  Tensor add_layer_input(Tensor corrected) const {
    Tensor first;
    {
      const Tensor active = slice(g, corrected, rows());
      first = copy(g, active, rows(), "first_prediction");
    }
    {
      Tensor scaled = mul(g, first, g.leaf(w.altup.output_scale), "first_prediction.scaled");
      first = std::move(scaled);
    }
    const Shape narrow{B, S, Dim(layer.per_layer_input)};
    Tensor next = linear(g, first, w.layer_input_gate, -1, T, narrow, "layer_input.gate");
    first = std::move(next);
    next = activation(g, first, "layer_input.act");
    first = std::move(next);
    next = mul(g, first, context.layer_input, "layer_input.product");
    first = std::move(next);
    next = linear(g, first, w.layer_projection, -1, T, rows(), "layer_input.projected");
    first = std::move(next);
    next = normed(first, w.after_layer_input, "post_per_layer_input_norm");
    first = std::move(next);
    Shape others = corrected.shape;
    others.front() = Dim(layer.altup_inputs - 1);
    Tensor added = add_to_view(g, corrected, others, first);
    const Tensor view = slice(g, added, others);
    return copy_to_view(g, added, view);
  }

  Tensor run(const Tensor& x) const {
    const Tensor predictions = predict(x);
    const Tensor active = slice(g, predictions, rows());
    const Tensor active_normed = normed(active, w.before_attention, "input_layernorm");
    const Tensor laurel_output = laurel(active_normed);
    g.prefix += "self_attn.";
    Attended attended = run_normed_attention(g, code, layer.mixer, a.hidden, w, options, context, active_normed);
    g.prefix.resize(g.prefix.size() - 10);
    {
      Tensor norm = normed(attended.output, w.after_attention, "post_attention_layernorm");
      attended.output = std::move(norm);
    }
    const Tensor gated = add(g, active, attended.output, "attention_gated");
    Tensor both = add(g, gated, laurel_output, "attention_laurel.sum");
    const Tensor attn_laurel = scale(g, std::move(both), "attention_laurel");
    const Tensor attn_norm = normed(attn_laurel, w.before_feed_forward, "pre_feedforward_layernorm");
    const Tensor fed = mlp(attn_norm);
    const Tensor fed_norm = normed(fed, w.after_feed_forward, "post_feedforward_layernorm");
    const Tensor activated = add(g, attn_laurel, fed_norm, "activated");
    Tensor corrected = correct(predictions, activated);
    return add_layer_input(std::move(corrected));
  }
};

}  // namespace

CopyLeaves declare_copies(Eager& g, const Architecture& a, DType dtype, const AdapterOptions& adapters) {
  CopyLeaves out;
  const auto matrix = [&](const std::string& name, const std::string& module) {
    const int leaf = g.parameter(name, {a.hidden, a.hidden}, dtype);
    if (adapters.outside(module)) g.add_low_rank(leaf, adapters.rank, a.hidden, a.hidden, adapters.dtype);
    return leaf;
  };
  for (std::int64_t i = 1; i < a.runs.front().layer.altup_inputs; ++i) {
    const std::string end = "_projections." + std::to_string(i - 1);
    out.in.push_back(matrix("model.altup" + end + ".weight", "altup" + end));
    out.out.push_back(matrix("model.altup_unembed" + end + ".weight", "altup_unembed" + end));
  }
  return out;
}

Copies make_copies(Eager& g, const Architecture& a, const CopyLeaves& w, const Tensor& embeds) {
  const Shape rows{B, S, Dim(a.hidden)};
  const Tensor target = magnitude_of(g, embeds);
  Copies out;
  out.list.push_back(embeds);
  for (const int matrix : w.in) {
    Tensor projected = linear(g, embeds, matrix, -1, T, rows, "copies.projected");
    const Tensor current = to(g, projected, embeds.dtype, "copies.cast");
    out.list.push_back(as_high(g, current, target));
  }
  out.stacked = stack(g, out.list);
  return out;
}

Tensor join_copies(Eager& g, const Architecture& a, const CopyLeaves& w, const Tensor& copies, std::vector<Tensor>& names) {
  const Shape rows = without_first(copies.shape);
  Tensor target;
  {
    const Tensor first = slice(g, copies, rows);
    target = magnitude_of(g, first);
  }
  names.clear();
  names.push_back(slice(g, copies, rows));
  for (const int matrix : w.out) {
    const Tensor one = slice(g, copies, rows);
    Tensor projected = linear(g, one, matrix, -1, T, {B, S, Dim(a.hidden)}, "copies.unembedded");
    const Tensor current = to(g, projected, copies.dtype, "copies.unembedded_cast");
    names.push_back(as_high(g, current, target));
  }
  const Tensor stacked = stack(g, names);
  Tensor mean = g.make("copies.mean", rows, stacked.dtype);
  g.record(mean, "MeanBackward1", {&stacked}, [&g, whole = stacked.shape](const Gradients& in) {
    return Gradients{gradient(g, "mean_backward", whole, in[0].dtype)};
  });
  return mean;
}

Tensor run_gemma3n_layer(Eager& g, const Architecture& a, const FamilyCode& code, const Layer& layer, const LayerLeaves& w,
                         const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  return LayerOf3n{g, a, code, layer, w, options, context}.run(x);
}

}  // namespace oomplan
