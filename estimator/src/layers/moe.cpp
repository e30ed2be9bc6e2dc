#include "layers/moe.hpp"

#include <functional>

#include "layers/experts.hpp"
#include "layers/folded.hpp"
#include "layers/mlp.hpp"
#include "layers/ops.hpp"
#include "layers/router.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// torch._grouped_mm on sorted rows; saves input, weight and offsets.
Tensor grouped_linear(Eager& g, Tensor x, const Tensor& w, const Tensor& offsets, Shape out_shape, const std::string& name) {
  const bool recorded = g.will_record({&x, &w});
  Saved saved_x = recorded && w.needs_grad() ? g.save(x) : Saved();
  Tensor used = w;
  used.transposed = true;
  Saved saved_w = recorded && x.needs_grad() ? g.save(used) : Saved();
  used.reset();
  Saved saved_offsets = recorded ? g.save(offsets) : Saved();
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  if (!recorded) return out;
  const bool for_x = x.needs_grad(), for_w = w.needs_grad();
  const Shape x_shape = x.shape, w_shape = w.shape;
  g.record(out, "GroupedMmBackward0", {&x, &w}, [=, &g](Gradients in) {
    (void)saved_offsets.get();
    Gradients grads(2);
    if (for_w) {
      (void)saved_x.get();
      grads[1] = g.make(name + ".weight_gradient", w_shape, in[0].dtype, Category::gradients);
    }
    if (for_x) (void)saved_w.get();
    if (for_x) grads[0] = g.make("grouped_mm_backward", x_shape, in[0].dtype, Category::temporaries);
    return grads;
  });
  return out;
}

/// selected_biases = bias[expert_ids]: one row a routed row; -1: no bias, no tensor.
Tensor bias_of_rows(Eager& g, int bias, const Tensor& expert_ids, Shape out, const std::string& name) {
  return bias < 0 ? Tensor() : index_rows(g, g.leaf(bias), expert_ids, std::move(out), name);
}

/// grouped_mm_experts_forward: rows sorted by expert, two grouped products, weighted, put back, summed over k.
Tensor grouped_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x_TH, const Routing& routing,
                       const LayerLeaves& w) {
  const Dim rows = T * Dim(ff.experts_per_token);
  const Shape half{rows, Dim(ff.expert_width)}, both{rows, Dim((ff.experts_gated ? 2 : 1) * ff.expert_width)};
  const LowRankFactors gate_up_factors = low_rank_factors(g, w.experts_gate_up),
                       down_factors = low_rank_factors(g, w.experts_down);
  Tensor expert_ids = g.make("experts.sorted_ids", {rows}, DType::int64);
  Tensor permutation = g.make("experts.permutation", {rows}, DType::int64);
  Tensor selected;
  {
    Tensor token = g.make("experts.token", {rows}, DType::int64);  // perm // top_k, saved by the index
    selected = index_rows(g, x_TH, token, {rows, hidden}, "experts.input");
  }
  Tensor weights = index_rows(g, routing.weights, permutation, {rows}, "experts.weights");
  Tensor narrow = g.make("experts.ids_int32", {rows}, DType::int32);
  Tensor counts = g.make("experts.counts", {Dim(ff.experts)}, DType::int32);
  Tensor offsets = g.make("experts.offsets", {Dim(ff.experts)}, DType::int32);
  Tensor biases = bias_of_rows(g, w.experts_gate_up_bias, expert_ids, both, "experts.gate_up_bias");
  const Tensor gate_up = folded_stack(g, w.experts_gate_up, gate_up_factors);
  Tensor projected = grouped_linear(g, selected, gate_up, offsets, both, "experts.gate_up");
  if (biases) projected = add_in_place(g, projected, biases);
  Tensor product = ff.experts_gated ? expert_gate(g, ff, projected, half) : activate(g, ff.activation, projected);
  projected = std::move(product);
  Tensor down_biases = bias_of_rows(g, w.experts_down_bias, expert_ids, {rows, hidden}, "experts.down_bias");
  biases = std::move(down_biases);
  const Tensor down = folded_stack(g, w.experts_down, down_factors);
  product = grouped_linear(g, projected, down, offsets, {rows, hidden}, "experts.down");
  if (biases) product = add_in_place(g, product, biases);
  projected = std::move(product);
  Tensor weighted;
  {
    Tensor column = weights.alias({rows, Dim(1)});
    column.grad_fn = weights.grad_fn;
    weighted = mul(g, projected, std::move(column), "experts.weighted");
  }
  Tensor inverse = g.make("experts.inverse", {rows}, DType::int64);
  {
    Tensor range = g.make("experts.range", {rows}, DType::int64);
  }
  weighted = index_rows(g, weighted, inverse, {rows, hidden}, "experts.restored");
  Tensor summed = sum_of_chosen(g, ff, hidden, weighted);
  return to(g, summed, x_TH.dtype, "experts.output");
}

Tensor shared_expert(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, Shape rows, const LayerLeaves& w) {
  if (!ff.experts_gated) {  // down_proj(act_fn(up_proj(x)))
    const Dim count = elements(rows);
    Tensor up = linear(g, x, w.shared_up, -1, count, {rows[0], rows[1], Dim(ff.shared_width)}, "shared.up");
    Tensor active = activate(g, ff.activation, up);
    up.reset();
    return linear(g, std::move(active), w.shared_down, -1, count, {rows[0], rows[1], hidden}, "shared.down");
  }
  return gated_mlp(g, x, std::move(rows), hidden, ff.shared_width,
                   {.gate = w.shared_gate, .up = w.shared_up, .down = w.shared_down}, "shared.");
}

/// Nemotron-H: experts that work on a projection of the rows; one name, rebound.
Tensor latent_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x_TH, const Routing& routing,
                      const LayerLeaves& w) {
  const Dim narrow = ff.latent_width;
  Tensor rows = linear(g, x_TH, w.latent_in, -1, T, {T, narrow}, "latent.in");
  Tensor out = grouped_experts(g, ff, narrow, rows, routing, w);
  rows = std::move(out);
  return linear(g, rows, w.latent_out, -1, T, {T, hidden}, "latent.out");
}

/// Qwen2-MoE: sigmoid(gate(x)) * shared(x).
Tensor gated_shared_expert(Eager& g, const Tensor& x_TH, Tensor shared, int gate_weight) {
  Tensor logit = linear(g, x_TH, gate_weight, -1, T, {T, Dim(1)}, "shared.gate_logit");
  Tensor gate = sigmoid(g, std::move(logit), "shared.gate");
  return mul(g, std::move(gate), std::move(shared), "shared.gated");
}

/// `hidden_states *= noise`, in place. `of_view`: of a view, which makes the node of what it is a view of a CopySlices, whose
/// backward copies the gradient twice (torch/csrc/autograd/functions/tensor.cpp, 2.13).
Tensor jitter(Eager& g, const Tensor& x, bool of_view) {
  const Tensor noise = g.make("moe.noise", of_view ? Shape{T, x.shape.back()} : x.shape, x.dtype);
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(noise) : Saved();
  Tensor out = x.alias(x.shape);
  if (!recorded) return out;
  g.record(out, of_view ? "CopySlices" : "MulBackward0", {&x}, [&g, saved, of_view](Gradients in) {
    const auto made = [&](const char* name) { return gradient(g, name, in[0].shape, in[0].dtype); };
    Tensor whole = of_view ? made("copy_slices_backward") : Tensor(),
           part = of_view ? made("copy_slices_backward.part") : Tensor();
    (void)saved.get();
    Tensor product = made("mul_backward");
    return Gradients{of_view ? whole : product};
  });
  return out;
}

/// Hunyuan 3: (routed.float() + shared.float()).to(dtype)
Tensor sum_in_fp32(Eager& g, const Tensor& routed, const std::function<Tensor()>& run_shared, DType dtype) {
  Tensor wide = to(g, routed, DType::fp32, "moe.routed_fp32");
  Tensor shared = run_shared();
  shared = to(g, std::move(shared), DType::fp32, "moe.shared_fp32");
  Tensor sum = add(g, std::move(wide), std::move(shared), "moe.sum_fp32");
  return to(g, std::move(sum), dtype, "moe.output");
}

Mixed run_block(Eager& g, const FamilyCode& code, const FeedForward& given, std::int64_t hidden, const Tensor& whole,
                const LayerLeaves& w, const KernelOptions& options) {
  Tensor x = whole;
  if (given.input_jitter) {  // once in the block, once more in the router
    x = jitter(g, Tensor(x), false);
    x = jitter(g, Tensor(x), true);
  }
  const bool of_4 = options.experts == ExpertsCode::loop_of_4;
  FeedForward ff = given;
  if (of_4) ff.weights_in_fp32 = false;  // release 4 casts Mixtral's too
  // a gated shared expert stands in front of the router, one without a gate behind the experts, unless the family says otherwise;
  // release 4 has both behind
  Tensor shared;
  if (code.shared == SharedPlace::first && ff.shared_width > 0) shared = shared_expert(g, ff, hidden, x, {B, S}, w);
  Tensor x_TH = x.alias({T, Dim(hidden)});
  x_TH.grad_fn = x.grad_fn;
  x_TH.output = x.output;
  // view's node adds up what the routed half gives; a shared expert without a gate takes x itself
  g.record(x_TH, "ViewBackward0", {&x}, [shape = x.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  const bool ahead = ff.shared_gate ? !of_4 : code.shared == SharedPlace::rows && ff.shared_width > 0;
  if (ahead) shared = shared_expert(g, ff, hidden, x_TH, {T}, w);
  Routing routing = route(g, code.router, ff, x_TH, w.router, w.router_bias, of_4);
  if (code.shared == SharedPlace::between && ff.shared_width > 0) shared = shared_expert(g, ff, hidden, x_TH, {T}, w);
  Tensor out = ff.latent_width > 0 ? latent_experts(g, ff, hidden, x_TH, routing, w)
                                   : routed_experts(g, ff, hidden, x_TH, routing, w, options);
  if (code.shared == SharedPlace::apart) {
    out.shape = {B, S, Dim(hidden)};
    if (ff.shared_width == 0) return {out, {}, {}};
    shared = granite_mlp(g, x, hidden, ff.shared_width, w.shared_up, w.shared_down);
    return {add(g, out, std::move(shared), "moe.output"), {}, out};
  }
  if (code.shared == SharedPlace::behind && ff.shared_width > 0) {
    const auto run_shared = [&] { return shared_expert(g, ff, hidden, x_TH, {T}, w); };
    if (ff.sums_in_fp32) {
      Tensor sum = sum_in_fp32(g, out, run_shared, x.dtype);
      sum.shape = {B, S, Dim(hidden)};
      return {std::move(sum), std::move(routing.weights), {}};
    }
    shared = run_shared();
  }
  if (ff.shared_gate && of_4) shared = shared_expert(g, ff, hidden, x_TH, {T}, w);
  if (ff.shared_gate) shared = gated_shared_expert(g, x_TH, std::move(shared), w.shared_router);
  if (!ff.shared_gate && !shared && ff.shared_width > 0) shared = shared_expert(g, ff, hidden, x, {B, S}, w);
  if (shared) out = add(g, std::move(out), shared, "moe.output");
  out.shape = {B, S, Dim(hidden)};
  return {std::move(out), w.expert_modules.empty() ? std::move(routing.weights) : std::move(routing.logits), {}};
}

}  // namespace

Tensor routed_experts(Eager& g, const FeedForward& ff, std::int64_t hidden, const Tensor& x_TH, const Routing& routing,
                      const LayerLeaves& w, const KernelOptions& options) {
  if (w.experts_gate_up >= 0) g.open_around(w.experts_gate_up);
  Tensor out = options.experts == ExpertsCode::grouped_mm ? grouped_experts(g, ff, hidden, x_TH, routing, w)
                                                          : run_experts(g, ff, hidden, x_TH, routing, w, options);
  if (w.experts_gate_up >= 0) g.close_around(w.experts_gate_up);
  return out;
}

Mixed moe_block(Eager& g, const FamilyCode& code, const FeedForward& ff, std::int64_t hidden, const Tensor& x,
                const LayerLeaves& w, const KernelOptions& options) {
  g.open_around(w.router);
  Mixed out = run_block(g, code, ff, hidden, x, w, options);
  g.close_around(w.router);
  return out;
}

}  // namespace oomplan
