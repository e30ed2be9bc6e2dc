#include "layers/heads_verl_fused.hpp"

#include <algorithm>
#include <utility>

#include "layers/ops.hpp"
#include "units/sizes.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::R, axis::TK;

namespace {

using TokenRows = VerlFusedRows;

/// What both passes of the head know, and what its backward pass reads.
struct FusedHead {
  VerlFused how;
  HeadChunks chunks;
  Dim width;
  DType format = DType::bf16;
  bool for_hidden = false, for_weight = false;  ///< which of them wants a gradient
  Dim tokens = TK;
  bool across_ranks = false;  ///< Triton's: the vocabulary is split, or at least a process group is given
  Saved hidden = {}, labels = {};

  Shape matrix() const { return {Dim(chunks.vocab), width}; }
  Shape wide(Dim rows) const { return {rows, Dim(chunks.vocab)}; }
};

Tensor logits_like(Eager& g, const char* name, Shape shape, DType dtype) {
  return g.make(name, std::move(shape), dtype, Category::logits);
}

// ---- torch's backend: FusedLinearForPPOFunction. Its functions' names last until they return.

/// (hidden @ weight.t()) / temperature, in fp32, and its softmax.
struct ChunkLogits {
  Tensor full, probabilities;
};
ChunkLogits logits_of_chunk(Eager& g, const FusedHead& h, Dim rows) {
  Tensor product = logits_like(g, "chunk.logits", h.wide(rows), h.format);
  Tensor scaled = scale(g, std::move(product), "chunk.logits_scaled", Category::logits);
  ChunkLogits out;
  out.full = to(g, std::move(scaled), DType::fp32, "chunk.logits_fp32");
  out.probabilities = softmax(g, out.full, DType::fp32, "chunk.probabilities", Category::logits);
  return out;
}

Tensor entropy_of_chunk(Eager& g, const ChunkLogits& c, const Shape& one) {
  Tensor total = logsumexp(g, c.full, one, "chunk.logsumexp");
  Tensor product = mul(g, c.probabilities, c.full, "chunk.product", Category::logits);
  Tensor weighted = sum(g, std::move(product), one, "chunk.weighted");
  return sub(g, std::move(total), std::move(weighted), "chunk.entropy");
}

/// flash-attention's cross-entropy, negated.
Tensor flash_log_probs(Eager& g, const Shape& one) {
  Tensor losses = g.make("chunk.losses", one, DType::fp32);
  {
    Tensor lse = g.make("chunk.lse", one, DType::fp32);
    Tensor z_losses = g.make("chunk.z_losses", one, DType::fp32);
  }
  return neg(g, std::move(losses), "chunk.token");
}

/// _fused_linear_for_ppo_fwd: up to 0.7 the log-probs come before the entropy.
TokenRows forward_chunk(Eager& g, const FusedHead& h, Dim rows, const Tensor& labels) {
  const Shape one{rows, 1};
  const ChunkLogits c = logits_of_chunk(g, h, rows);
  Tensor log_probs, token;
  if (h.how.log_softmax) {
    log_probs = log_softmax(g, c.full, "chunk.log_probs");
    token = gather(g, log_probs, labels, one, "chunk.token");
  }
  Tensor spread = entropy_of_chunk(g, c, one);
  if (!h.how.log_softmax) token = flash_log_probs(g, one);
  TokenRows out;
  out.log_probs = to(g, std::move(token), h.how.log_softmax ? h.format : DType::fp32, "chunk.token_cast");
  out.entropy = to(g, std::move(spread), h.format, "chunk.entropy_cast");
  return out;
}

TokenRows torch_forward(Eager& g, const FusedHead& h, const Tensor& labels) {
  TokenRows out;
  out.log_probs = g.make("log_probs", {TK}, h.how.log_softmax ? h.format : DType::fp32);
  out.entropy = g.make("entropy", {TK}, h.format);
  TokenRows chunk;  // names of the loop: the last chunk's rows go when the next one's are there
  for (int i = 0; i < h.chunks.simulated; ++i) {
    h.chunks.scope(i);
    TokenRows next = forward_chunk(g, h, axis::rows_of_chunk(i, h.chunks.simulated), labels);
    chunk = std::move(next);
  }
  h.chunks.scope(-1);
  return out;
}

/// The part of the logits' gradient that the log-probs' makes: `dlogits = 0` and `+=` make one tensor more than the product.
Tensor from_log_probs(Eager& g, const Tensor& given, const ChunkLogits& c, const Tensor& one_hot, Dim rows) {
  Tensor wide = to(g, given.alias({rows}), DType::fp32, "chunk.given_fp32");
  Tensor difference = logits_like(g, "chunk.difference", c.full.shape, DType::fp32);
  Tensor product = logits_like(g, "chunk.gradient_product", one_hot.shape, DType::fp32);
  wide.reset();
  difference.reset();
  return logits_like(g, "chunk.gradient_fp32", c.full.shape, DType::fp32);
}

/// ... and the entropy's, which is added in place.
void from_entropy(Eager& g, const ChunkLogits& c, Tensor& log_probs, Tensor& spread, DType format, Dim rows) {
  const Shape one{rows, 1};
  log_probs = log_softmax(g, c.full, "chunk.log_probs");
  spread = entropy_of_chunk(g, c, one);
  Tensor shifted = logits_like(g, "chunk.shifted", c.full.shape, DType::fp32);
  Tensor product = logits_like(g, "chunk.entropy_product", c.full.shape, DType::fp32);
  shifted.reset();
  Tensor negative = g.make("chunk.negative", one, format);
  Tensor gradient = logits_like(g, "chunk.entropy_gradient", c.full.shape, DType::fp32);
}

struct ChunkGradients {
  Tensor hidden, weight;
};

/// _fused_linear_for_ppo_bwd: both products, whatever wants a gradient.
ChunkGradients backward_chunk(Eager& g, const FusedHead& h, Dim rows, const Gradients& given) {
  const ChunkLogits c = logits_of_chunk(g, h, rows);
  const Tensor one_hot = logits_like(g, "chunk.one_hot", c.full.shape, DType::fp32);
  Tensor gradient = from_log_probs(g, given[0], c, one_hot, rows);
  Tensor log_probs, spread;
  if (h.how.entropy) from_entropy(g, c, log_probs, spread, h.format, rows);
  {
    Tensor cast = to(g, gradient, h.format, "chunk.gradient_cast");
    Tensor divided = scale(g, std::move(cast), "chunk.gradient", Category::logits);
    gradient = std::move(divided);
  }
  ChunkGradients out;
  out.hidden = g.make("chunk.hidden_gradient", {rows, h.width}, h.format, Category::temporaries);
  out.weight = g.make("chunk.weight_gradient", h.matrix(), h.format, Category::temporaries);
  return out;
}

Gradients torch_backward(Eager& g, const FusedHead& h, int begun, const Gradients& given) {
  (void)h.labels.get();
  Gradients out(2);
  const Shape shape = h.hidden.get().shape;
  if (h.for_hidden) out[0] = g.make("hidden_gradient", shape, h.format, Category::temporaries);
  if (h.for_weight) out[1] = g.make("weight_gradient", h.matrix(), h.format, Category::gradients);
  const int n = h.chunks.simulated;
  ChunkGradients chunk;        // names of the loop, as in the forward pass
  for (int i = n; i-- > 0;) {  // in the order of the forward pass; the tape plays what it calls the last one first
    h.chunks.scope(i);
    ChunkGradients next = backward_chunk(g, h, i == 0 && n > 1 ? R : C, given);
    chunk = std::move(next);
  }
  g.scope = begun;
  return out;
}

// ---- Triton's backend: verl/utils/kernel/kernels.py, efficient_entropy_forward and _backward (BackwardEnum._Split_Dlogits_N)

constexpr std::int64_t kForwardSplit = 1024, kBackwardSplit = 9504;

struct TritonRows {
  TokenRows rows;
  Tensor maximum, sums;  ///< both are saved; accumulate and entropy_b are halves of one tensor
};

TritonRows triton_forward(Eager& g, const FusedHead& h) {
  TritonRows out;
  out.rows.log_probs = g.make("log_probs", {h.tokens}, DType::fp32);
  out.rows.entropy = g.make("entropy", {h.tokens}, DType::fp32);
  out.maximum = g.make("maximum", {h.tokens}, DType::fp32);
  out.sums = g.make("accumulate_and_entropy_b", {Dim(2) * h.tokens}, DType::fp32);
  const Shape splits{h.tokens, Dim(ceil_div(h.chunks.vocab, kForwardSplit))};
  Tensor maximum = g.make("splits.maximum", splits, DType::fp32, Category::logits);
  Tensor sums = g.make("splits.accumulate", splits, DType::fp32, Category::logits);
  Tensor entropies = g.make("splits.entropy_b", splits, DType::fp32, Category::logits);
  const Tensor own = h.across_ranks ? g.make("splits.own_maximum", splits, DType::fp32, Category::logits) : Tensor();
  return out;
}

/// One part of the vocabulary after another. The first product goes into the gradient, later ones are added; the last part is
/// copied where it is smaller than the others. All between are like the second one.
Gradients triton_backward(Eager& g, const FusedHead& h) {
  const Shape shape = h.hidden.get().shape;
  (void)h.labels.get();
  Tensor zeros;
  if (!h.how.entropy) zeros = g.make("entropy_gradient", {h.tokens}, DType::fp32);  // materialize_grads
  Gradients out(2);
  out[0] = g.make("hidden_gradient", shape, h.format, Category::temporaries);
  out[1] = g.make("weight_gradient", h.matrix(), h.format, Category::gradients);
  const std::int64_t splits = ceil_div(h.chunks.vocab, kBackwardSplit);
  const std::int64_t rest = h.chunks.vocab - (splits - 1) * kBackwardSplit;
  Tensor part = logits_like(g, "split.gradient", {h.tokens, Dim(kBackwardSplit)}, h.format);
  const auto product = [&] { Tensor added = g.make("split.hidden_gradient", shape, h.format, Category::temporaries); };
  if (splits > 2) product();
  if (rest < kBackwardSplit) {
    Tensor last = logits_like(g, "split.last_gradient", {h.tokens, Dim(rest)}, h.format);
    part = std::move(last);
  }
  if (splits > 1) product();
  return out;
}

// ---- both

/// The function's two outputs as the graph has them.
void record_rows(Eager& g, TokenRows& rows, const Tensor& hidden, const Tensor& weight, const char* name,
                 std::function<Gradients(Gradients)> backward) {
  if (!g.record(rows.log_probs, name, {&hidden, &weight}, std::move(backward), 2)) return;
  rows.entropy.grad_fn = rows.log_probs.grad_fn;
  rows.entropy.output = 1;
}

TokenRows by_torch(Eager& g, const Tensor& hidden, const Tensor& labels, const Tensor& weight, FusedHead h) {
  const bool recorded = g.will_record({&hidden, &weight});
  const int begun = g.scope;
  const bool grad = std::exchange(g.grad_enabled, false);
  TokenRows rows = torch_forward(g, h, labels);
  g.grad_enabled = grad;
  if (recorded) {
    h.hidden = g.save(hidden);
    h.labels = g.save(labels);
  }
  record_rows(g, rows, hidden, weight, "FusedLinearForPPOFunctionBackward",
              [&g, h, begun](const Gradients& given) { return torch_backward(g, h, begun, given); });
  return rows;
}

TokenRows by_triton(Eager& g, const Tensor& hidden, const Tensor& labels, const Tensor& weight, FusedHead h) {
  const bool recorded = g.will_record({&hidden, &weight});
  TritonRows made = triton_forward(g, h);
  Saved maximum, sums;
  if (recorded) {
    h.hidden = g.save(hidden);
    h.labels = g.save(labels);
    maximum = g.save(made.maximum);
    sums = g.save(made.sums);
  }
  record_rows(g, made.rows, hidden, weight, "LinearCrossEntropyBackward", [&g, h, maximum, sums](const Gradients&) {
    (void)maximum.get();
    (void)sums.get();
    return triton_backward(g, h);
  });
  return std::move(made.rows);
}

}  // namespace

std::optional<VerlFused> verl_fused(LossHead head) {
  switch (head) {
    case LossHead::verl_fused:
      return VerlFused{};
    case LossHead::verl_fused_entropy:
      return VerlFused{.entropy = true};
    case LossHead::verl_fused_log_softmax:
      return VerlFused{.log_softmax = true};
    case LossHead::verl_fused_log_softmax_entropy:
      return VerlFused{.log_softmax = true, .entropy = true};
    case LossHead::verl_fused_triton:
      return VerlFused{.triton = true};
    case LossHead::verl_fused_triton_entropy:
      return VerlFused{.triton = true, .entropy = true};
    default:
      return std::nullopt;
  }
}

VerlFusedRows verl_fused_over_ranks(Eager& g, const Tensor& hidden, const Tensor& labels, const Tensor& weight,
                                    std::int64_t columns, Dim tokens, bool entropy) {
  HeadChunks chunks;
  chunks.vocab = columns;
  const FusedHead h{.how = {.triton = true, .entropy = entropy},
                    .chunks = chunks,
                    .width = hidden.shape.back(),
                    .format = hidden.dtype,
                    .for_hidden = hidden.needs_grad(),
                    .for_weight = weight.needs_grad(),
                    .tokens = tokens,
                    .across_ranks = true};
  return by_triton(g, hidden, labels, weight, h);
}

Tensor verl_fused_objective(Eager& g, const Tensor& hidden, const Tensor& labels, int weight, const VerlFused& how,
                            const HeadChunks& chunks) {
  // up to 0.7 the model rolls the ids once more (shift_labels is of 0.8)
  const Tensor rolled = how.log_softmax ? g.make("labels.rolled", {B, K}, DType::int64) : labels;
  const Tensor matrix = g.leaf(weight);
  const FusedHead h{.how = how,
                    .chunks = chunks,
                    .width = hidden.shape.back(),
                    .format = hidden.dtype,
                    .for_hidden = hidden.needs_grad(),
                    .for_weight = matrix.needs_grad()};
  TokenRows rows = how.triton ? by_triton(g, hidden, rolled, matrix, h) : by_torch(g, hidden, rolled, matrix, h);
  g.leave(weight);
  if (!how.entropy) return std::move(rows.log_probs);
  return add(g, std::move(rows.log_probs), std::move(rows.entropy), "objective");
}

}  // namespace oomplan
