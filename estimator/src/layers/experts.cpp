#include "layers/experts.hpp"

#include <algorithm>
#include <array>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::T;

/// Families whose loop of release 4 was executed.
constexpr std::array<std::string_view, 7> kOfRelease4{"mixtral",     "qwen2_moe", "qwen3_moe", "olmoe",
                                                      "deepseek_v3", "glm4_moe",  "gpt_oss"};

/// act_fn(gate) * up
Tensor plain_gate(Eager& g, const Tensor& projected, const Shape& half) {
  std::vector<Tensor> halves = split(g, projected, {half, half});
  Tensor gate = std::move(halves[0]), up = std::move(halves[1]);
  Tensor active = activation(g, gate, "experts.act");
  return mul(g, std::move(active), up, "experts.product");
}

/// gpt-oss: every other column, clamped; gate * sigmoid(gate * alpha) * (up + 1).
Tensor clamped_gate(Eager& g, const Tensor& projected, const Shape& half, std::vector<Tensor>* names) {
  Tensor gate = slice(g, projected, half), up = slice(g, projected, half);
  Tensor clamped = clamp(g, gate, 1, "experts.gate");
  gate = std::move(clamped);
  clamped = clamp(g, up, 2, "experts.up");
  up = std::move(clamped);
  Tensor glu;
  {
    Tensor scaled = scale(g, gate, "experts.gate_scaled");
    Tensor open = sigmoid(g, std::move(scaled), "experts.sigmoid");
    glu = mul(g, gate, std::move(open), "experts.glu");
  }
  Tensor shifted = add_scalar(g, up, "experts.up_plus_one");
  Tensor product = mul(g, std::move(shifted), glu, "experts.product");
  if (names != nullptr) *names = {gate, up, glu};
  return product;
}

bool adapts_a_module(const AdapterOptions& adapters) {
  if (adapters.rank == 0 || adapters.by_module) return false;  // peft's rule has refused experts' modules
  return adapters.targets.empty() || std::any_of(adapters.targets.begin(), adapters.targets.end(), [](const std::string& target) {
           return target == "gate_proj" || target == "up_proj" || target == "down_proj";
         });
}

}  // namespace

Spread::Spread(const FeedForward& ff, std::int64_t tokens)
    : hit(std::max<std::int64_t>(1, std::min(ff.experts, tokens * ff.experts_per_token))), rows(tokens * ff.experts_per_token) {}

void choose_experts(KernelOptions& k, Experts wanted, const Architecture& a, std::int64_t tokens) {
  const auto routed = [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; };
  if (std::none_of(a.runs.begin(), a.runs.end(), routed)) return;
  if (k.kernels == Kernels::archon) {
    k.routed_tokens = tokens;
    return;
  }
  if (a.family == "dbrx")  // transformers gives it no choice
    k.experts = ExpertsCode::loop;
  else if (k.release.expert_modules)
    k.experts = ExpertsCode::loop_of_4;
  else if (wanted == Experts::eager)
    k.experts = ExpertsCode::loop;
  else if (wanted == Experts::batched_mm)
    k.experts = ExpertsCode::batched_mm;
  if (k.experts == ExpertsCode::loop || k.experts == ExpertsCode::loop_of_4) k.routed_tokens = tokens;
}

bool expert_modules(const KernelOptions& k, const FamilyCode& code) {
  return k.experts == ExpertsCode::loop_of_4 && code.family != "gpt_oss";
}

std::string unsupported_experts(const FamilyCode& code, const Layer& layer, const KernelOptions& k) {
  if (layer.feed_forward.kind != FeedForwardKind::moe || k.experts == ExpertsCode::grouped_mm) return {};
  if (!layer.feed_forward.experts_gated) return "this experts_implementation";
  if (k.experts == ExpertsCode::loop_of_4 && std::find(kOfRelease4.begin(), kOfRelease4.end(), code.family) == kOfRelease4.end())
    return "the loop over experts of transformers 4";
  const bool folds = k.adapters.folds() && code.adapts_experts;
  if (folds || (expert_modules(k, code) && adapts_a_module(k.adapters)))
    return "LoRA of experts with this experts_implementation";
  return {};
}

Tensor expert_gate(Eager& g, const FeedForward& ff, const Tensor& projected, const Shape& half, std::vector<Tensor>* names) {
  return ff.expert_bias ? clamped_gate(g, projected, half, names) : plain_gate(g, projected, half);
}

Tensor index_add(Eager& g, const Tensor& sum, const Tensor& index, const Tensor& added) {
  const Tensor source = to(g, added, sum.dtype, "expert.cast");
  Tensor out = sum.alias(sum.shape);
  out.grad_fn = sum.grad_fn;
  if (!g.will_record({&sum, &source})) return out;
  Saved saved_index = g.save(index), saved_source = g.save(source);
  g.record(out, "IndexAddBackward0", {&sum, &source}, [&g, saved_index, saved_source, shape = source.shape](const Gradients& in) {
    (void)saved_index.get();
    (void)saved_source.get();
    return Gradients{in[0], gradient(g, "index_add_backward", shape, in[0].dtype)};
  });
  return out;
}

namespace {

/// Under autocast a sum of 16 bits has an fp32 result; the gradient comes back as a whole tensor of 16 bits.
Tensor wide_sum_of_chosen(Eager& g, Dim hidden, const Tensor& rows, Tensor viewed) {
  g.record(viewed, "ViewBackward0", {&rows}, [shape = rows.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  Tensor out = g.make("experts.sum_fp32", {T, hidden}, DType::fp32);
  g.record(out, "SumBackward1", {&viewed}, [&g, shape = viewed.shape, dtype = viewed.dtype](const Gradients&) {
    return Gradients{gradient(g, "experts.sum_backward", shape, dtype)};
  });
  return out;
}

}  // namespace

Tensor sum_of_chosen(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& rows) {
  Tensor viewed = rows.alias({T, Dim(ff.experts_per_token), hidden});
  if (g.autocast && rows.dtype != DType::fp32) return wide_sum_of_chosen(g, hidden, rows, std::move(viewed));
  g.record(viewed, "ViewBackward0", {&rows}, [&g, shape = rows.shape, copies = ff.experts_per_token > 1](const Gradients& in) {
    return Gradients{copies ? gradient(g, "experts.sum_backward", shape, in[0].dtype) : in[0].alias(shape)};
  });
  return sum(g, viewed, {T, hidden}, "experts.sum");
}

Tensor run_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const Routing& routing, const LayerLeaves& w,
                   const KernelOptions& k) {
  if (k.experts == ExpertsCode::batched_mm) return batched_experts(g, ff, hidden, x, routing, w);
  if (!w.expert_modules.empty()) return loop_over_modules(g, ff, hidden, x, routing, w, k.routed_tokens);
  return loop_over_experts(g, ff, hidden, x, routing, w, k);
}

}  // namespace oomplan
