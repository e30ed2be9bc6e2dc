#include "layers/heads_verl.hpp"

#include "layers/ops.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::TK;

Tensor labels_index(Eager& g) { return g.make("labels.index", {B, K, 1}, DType::int64); }

Tensor entropy(Eager& g, const Tensor& x) {
  const Shape one = with_last(x.shape, 1);
  Tensor probabilities;
  {
    Tensor source = g.autocast ? to(g, x, DType::fp32, "entropy.softmax_input") : x;
    const DType dtype = source.dtype;
    probabilities = softmax(g, std::move(source), dtype, "entropy.probabilities", Category::logits);
  }
  Tensor total;
  {
    Tensor source = g.autocast ? to(g, x, DType::fp32, "entropy.logsumexp_input") : x;
    total = logsumexp(g, std::move(source), one, "entropy.logsumexp");
  }
  Tensor weighted;
  {
    Tensor product = mul(g, probabilities, x, "entropy.product", Category::logits);
    if (g.autocast) product = to(g, std::move(product), DType::fp32, "entropy.product_fp32");
    weighted = sum(g, std::move(product), one, "entropy.weighted");
  }
  Tensor negative = neg(g, std::move(weighted), "entropy.negative");
  return add(g, std::move(total), std::move(negative), "entropy");
}

namespace {

/// flash-attention's cross-entropy (ops/triton/cross_entropy.py): saves the logits and one fp32 a row; the gradient is written
/// into the logits when `in_place`.
Tensor flash_cross_entropy(Eager& g, const Tensor& x, bool in_place) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor index = labels_index(g);
  Saved target = recorded ? g.save(index) : Saved();
  Tensor losses = g.make("losses", {B, K, 1}, DType::fp32);
  Tensor z_losses = g.make("z_losses", {B, K, 1}, DType::fp32);
  Tensor lse = g.make("cross_entropy.lse", {B, K, 1}, DType::fp32);
  if (recorded) {
    Saved rows = g.save(lse);
    g.record(losses, "CrossEntropyLossBackward", {&x}, [&g, saved, rows, target, in_place](Gradients) {
      (void)rows.get();
      (void)target.get();
      const Tensor& self = saved.get();
      if (in_place) return Gradients{self.alias(self.shape)};
      return Gradients{g.make("cross_entropy_backward", self.shape, self.dtype, Category::logits)};
    });
  }
  return losses;
}

/// verl's compiled entropy: what torch.compile's partitioner keeps is the 16-bit logits and row statistics.
Tensor compiled_entropy(Eager& g, const Tensor& x) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor rows = g.make("entropy.rows", {B, K, 2}, DType::fp32);
  Tensor out = g.make("entropy", {B, K, 1}, DType::fp32);
  if (recorded) {
    Saved saved_rows = g.save(rows);
    g.record(out, "CompiledFunctionBackward", {&x}, [&g, saved, saved_rows](Gradients) {
      (void)saved_rows.get();
      return Gradients{g.make("entropy_backward", saved.get().shape, saved.get().dtype, Category::logits)};
    });
  }
  return out;
}

/// entropy_from_logits_with_chunking. Names of a loop outlive their turn: a chunk's copy and probabilities go when the next
/// one's are there.
Tensor chunked_entropy(Eager& g, const Tensor& x, const HeadChunks& chunks) {
  std::vector<Tensor> parts;
  Tensor full, probabilities;
  for (int i = 0; i < chunks.simulated; ++i) {
    chunks.scope(i);
    const Dim rows = axis::rows_of_chunk(i, chunks.simulated);
    Tensor part = slice(g, x, {rows, Dim(chunks.vocab)});
    Tensor next = to(g, std::move(part), DType::fp32, "entropy.chunk");
    full = std::move(next);
    next = softmax(g, full, DType::fp32, "entropy.probabilities", Category::logits);
    probabilities = std::move(next);
    Tensor total = logsumexp(g, full, {rows, 1}, "entropy.logsumexp");
    Tensor product = mul(g, probabilities, full, "entropy.product", Category::logits);
    Tensor weighted = sum(g, std::move(product), {rows, 1}, "entropy.weighted");
    Tensor negative = neg(g, std::move(weighted), "entropy.negative");
    parts.push_back(add(g, std::move(total), std::move(negative), "entropy.part"));
  }
  chunks.scope(-1);
  return cat(g, std::move(parts), {TK, 1}, "entropy");
}

/// logprobs_from_logits_v2 in 16 bits: the loop unbinds the logits, so their gradient is a stack of the rows' gradients. Autocast
/// makes each row fp32.
Tensor log_probs_by_rows(Eager& g, const Tensor& x, const HeadChunks& chunks) {
  Tensor index = labels_index(g);
  const std::vector<Shape> shapes(static_cast<std::size_t>(chunks.simulated), Shape{C, Dim(chunks.vocab)});
  const std::vector<Tensor> rows = split(g, x, shapes);
  std::vector<Tensor> tokens;
  Tensor log_probs;
  for (int i = 0; i < chunks.simulated; ++i) {
    chunks.scope(i);
    Tensor row = rows[static_cast<std::size_t>(i)];
    if (g.autocast) row = to(g, std::move(row), DType::fp32, "row.fp32");
    Tensor next = log_softmax(g, std::move(row), "row.log_probs");
    log_probs = std::move(next);
    tokens.push_back(gather(g, log_probs, index, {C, 1}, "row.token"));
  }
  chunks.scope(-1);
  return cat(g, std::move(tokens), {TK, 1}, "token_log_probs");
}

/// logits.squeeze(0).div_(temperature): a view is written to, so autograd rebuilds the base's gradient around the view's
/// (torch/csrc/autograd/functions/tensor.cpp CopySlices): a buffer of the base's size, a clone of the view's part, its quotient.
Tensor divide_in_place(Eager& g, const Tensor& x) {
  Tensor out = x.alias(x.shape);
  g.record(out, "CopySlices", {&x}, [&g](Gradients in) {
    Tensor base = g.make("copy_slices", in[0].shape, in[0].dtype, Category::logits);
    Tensor part = g.make("copy_slices.clone", in[0].shape, in[0].dtype, Category::logits);
    Tensor quotient = g.make("copy_slices.div", in[0].shape, in[0].dtype, Category::logits);
    return Gradients{base};
  });
  return out;
}

Tensor verl_entropy(Eager& g, const Tensor& x, const VerlSteps& steps, const HeadChunks& chunks) {
  if (steps.entropy == VerlEntropy::compiled) return compiled_entropy(g, x);
  const auto body = [&g, chunked = steps.entropy == VerlEntropy::chunked, chunks](const Tensor& logits) {
    return chunked ? chunked_entropy(g, logits, chunks) : entropy(g, logits);
  };
  return steps.checkpoint ? g.checkpoint_reentrant(x, body) : body(x);
}

}  // namespace

std::optional<VerlSteps> verl_steps(LossHead head) {
  using enum VerlEntropy;
  switch (head) {
    case LossHead::verl_flash_ce:
      return VerlSteps{};
    case LossHead::verl_entropy_compiled:
      return VerlSteps{.entropy = compiled};
    case LossHead::verl_entropy_eager:
      return VerlSteps{.entropy = eager};
    case LossHead::verl_entropy_checkpoint:
      return VerlSteps{.entropy = eager, .checkpoint = true};
    case LossHead::verl_entropy_chunked:
      return VerlSteps{.entropy = chunked};
    case LossHead::verl_entropy_chunked_checkpoint:
      return VerlSteps{.entropy = chunked, .checkpoint = true};
    case LossHead::verl_flash_ce_div_in_place:
      return VerlSteps{.in_place = true};
    case LossHead::verl_entropy_eager_div_in_place:
      return VerlSteps{.entropy = eager, .in_place = true};
    case LossHead::verl_fp32_flash_ce:
      return VerlSteps{.fp32 = true};
    case LossHead::verl_fp32_entropy_eager:
      return VerlSteps{.entropy = eager, .fp32 = true};
    case LossHead::verl_rows:
      return VerlSteps{.rows = true};
    default:
      return std::nullopt;
  }
}

Tensor verl_objective(Eager& g, Tensor logits, const VerlSteps& steps, const HeadChunks& chunks) {
  if (steps.fp32) logits = to(g, std::move(logits), DType::fp32, "logits_fp32");
  Tensor scaled = steps.in_place ? divide_in_place(g, logits) : scale(g, logits, "logits_scaled", Category::logits);
  logits.reset();  // the name is bound to the quotient
  if (steps.rows) return log_probs_by_rows(g, scaled, chunks);
  if (steps.entropy == VerlEntropy::none) return flash_cross_entropy(g, scaled, true);
  Tensor extra = verl_entropy(g, scaled, steps, chunks);
  Tensor log_probs = flash_cross_entropy(g, scaled, false);
  return add(g, std::move(log_probs), std::move(extra), "objective");
}

}  // namespace oomplan
