// How the routed rows of a mixture-of-experts block go through the experts, but for grouped_mm (moe.cpp).
//
// huggingface/transformers 5.23.0: the eager loop of models/*/modeling_*.py (MixtralExperts and its copies, GptOssExperts) and
// integrations/moe.py batched_mm_experts_forward; 4.57.1: the loops over modules (MixtralSparseMoeBlock and its copies,
// DeepseekV3MoE.moe) and GptOssExperts. Which expert a token goes to is data: the loops are described with R = T * k rows spread
// evenly, R / E for each of E experts and one more for the first R % E. The sum over the experts is R rows however they lie.
#pragma once
#include <string>

#include <oomplan/job.hpp>

#include "layers/decoder.hpp"
#include "layers/families.hpp"
#include "layers/router.hpp"

namespace oomplan {

/// Sets what the release and the job choose, if the model has experts. `tokens`: of a micro-batch on this rank.
void choose_experts(KernelOptions&, Experts, const Architecture&, std::int64_t tokens);
/// The experts of the family are modules, three leaves each.
bool expert_modules(const KernelOptions&, const FamilyCode&);
/// Why the layer's experts cannot be run this way; "" when they can.
std::string unsupported_experts(const FamilyCode&, const Layer&, const KernelOptions&);

/// x of shape [T, H], held by the caller. All of them but grouped_mm.
Tensor run_experts(Eager&, const FeedForward&, Dim hidden, const Tensor& x, const Routing&, const LayerLeaves&,
                   const KernelOptions&);
Tensor batched_experts(Eager&, const FeedForward&, Dim hidden, const Tensor& x, const Routing&, const LayerLeaves&);
Tensor loop_over_experts(Eager&, const FeedForward&, Dim hidden, const Tensor& x, const Routing&, const LayerLeaves&,
                         const KernelOptions&);
Tensor loop_over_modules(Eager&, const FeedForward&, Dim hidden, const Tensor& x, const Routing&, const LayerLeaves&,
                         std::int64_t tokens);

/// act(gate) * up of both halves in one tensor, or gpt-oss's clamped form of it. `half`: shape of a half; `names`: where a caller
/// that writes these lines itself keeps what they name.
Tensor expert_gate(Eager&, const FeedForward&, const Tensor& projected, const Shape& half, std::vector<Tensor>* names = nullptr);
/// rows.view(tokens, k, hidden).sum(1): the view's backward pass copies the sum's expanded gradient, above one expert a token.
Tensor sum_of_chosen(Eager&, const FeedForward&, Dim hidden, const Tensor& rows);
/// sum.index_add_(0, index, source.to(dtype of sum)): keeps the index and, for its shape, what is added.
Tensor index_add(Eager&, const Tensor& sum, const Tensor& index, const Tensor& source);
/// Rows of the expert numbered `expert` of those that are hit.
struct Spread {
  std::int64_t hit = 0, rows = 0;
  Spread(const FeedForward& ff, std::int64_t tokens);
  std::int64_t of(std::int64_t expert) const { return rows / hit + (expert < rows % hit ? 1 : 0); }
};

}  // namespace oomplan
