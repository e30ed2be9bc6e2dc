#include "layers/heads_slime.hpp"

#include "layers/ops.hpp"

namespace oomplan {

using namespace ops;
using axis::C, axis::TK;

namespace {

/// selective_log_softmax under torch.compile, as inductor writes it (2.13, dynamic shapes): one pass over the rows, whose input
/// and two numbers a row are kept.
Tensor compiled_log_softmax(Eager& g, Tensor scaled) {
  const bool recorded = g.will_record({&scaled});
  Saved saved = recorded ? g.save(scaled) : Saved();
  Tensor rows = g.make("log_softmax.rows", {C, 2}, DType::fp32);
  Tensor out = g.make("token_log_probs", {C, 1}, DType::fp32);
  if (recorded) {
    Saved saved_rows = g.save(rows);
    g.record(out, "CompiledFunctionBackward", {&scaled}, [&g, saved, saved_rows](Gradients) {
      const Tensor& self = saved.get();
      (void)saved_rows.get();
      Tensor scattered = g.make("log_softmax.scattered", self.shape, DType::fp32, Category::logits);
      return Gradients{g.make("log_softmax.gradient", self.shape, DType::fp32, Category::logits)};
    });
  }
  return out;
}

Tensor token_log_probs(Eager& g, const Tensor& rows) {
  return compiled_log_softmax(g, scale(g, rows, "logits_scaled", Category::logits));
}

Tensor entropy_of_copies(Eager& g, const Tensor& rows) {
  Tensor log_probs = log_softmax(g, rows, "entropy.log_probs");
  Tensor probabilities = softmax(g, rows, DType::fp32, "entropy.probabilities", Category::logits);
  Tensor product = mul(g, probabilities, log_probs, "entropy.product", Category::logits);
  Tensor weighted = sum(g, std::move(product), {C, 1}, "entropy.weighted");
  return neg(g, std::move(weighted), "entropy");
}

}  // namespace

Tensor slime_objective(Eager& g, Tensor logits, std::int64_t vocab) {
  Tensor all = logits.alias({TK, Dim(vocab)});
  all.grad_fn = logits.grad_fn;
  all.output = logits.output;
  logits.reset();
  Tensor rows = slice(g, all, {C, Dim(vocab)});
  all.reset();
  Tensor tokens = token_log_probs(g, rows);
  Tensor spread = entropy_of_copies(g, rows);
  rows.reset();
  return add(g, std::move(tokens), std::move(spread), "objective");
}

}  // namespace oomplan
