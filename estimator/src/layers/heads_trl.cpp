#include "layers/heads_trl.hpp"

#include <algorithm>

#include "layers/heads.hpp"
#include "layers/ops.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::M;

namespace {

/// The loop unbinds its tensor, whose gradient is then a stack of the rows' gradients.
std::vector<Tensor> unbound(Eager& g, const Tensor& x, const HeadChunks& chunks) {
  return split(g, x, std::vector<Shape>(static_cast<std::size_t>(chunks.simulated), Shape{C, Dim(chunks.vocab)}));
}

/// gather of the logits themselves: it saves its input for the shape of the gradient (tools/autograd/derivatives.yaml, 2.13), so
/// that they stay until it has run, behind all rows.
Tensor chosen_logits(Eager& g, const Tensor& x) {
  const bool recorded = g.will_record({&x});
  const Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make("token_logits", {B, C}, x.dtype);
  if (!recorded) return out;
  g.record(out, "GatherBackward0", {&x}, [&g, saved](const Gradients&) {
    const Tensor& self = saved.get();
    return Gradients{g.make("gather_backward", self.shape, self.dtype, Category::logits)};
  });
  return out;
}

/// fp32: what is chosen minus logsumexp of each sequence.
Tensor by_row_logsumexp(Eager& g, const Tensor& x, const HeadChunks& chunks) {
  Tensor chosen = chosen_logits(g, x);
  const std::vector<Tensor> rows = unbound(g, x, chunks);
  std::vector<Tensor> parts;
  for (int i = 0; i < chunks.simulated; ++i) {
    chunks.scope(i);
    parts.push_back(logsumexp(g, rows[static_cast<std::size_t>(i)], {C, 1}, "row.logsumexp"));
  }
  chunks.scope(-1);
  Tensor totals = cat(g, std::move(parts), {B, C}, "logsumexp");
  Tensor negative = neg(g, std::move(totals), "negative");
  return add(g, std::move(chosen), std::move(negative), "token_log_probs");
}

Tensor selective_log_softmax(Eager& g, const Tensor& x, const HeadChunks& chunks) {
  return x.dtype == DType::fp32 ? by_row_logsumexp(g, x, chunks) : log_probs_by_sequence(g, x, chunks);
}

/// entropy_from_logits of logits that need no gradient: reshape copies the shifted ones of several sequences, then 128 rows at a
/// time log-probs, probabilities and their product.
void entropy_metric(Eager& g, const Tensor& x, bool copies, Dim rows, std::int64_t vocab) {
  const Tensor flat = copies ? g.make("entropy.logits", x.shape, x.dtype, Category::logits) : Tensor();
  const auto part = [&](const char* name) { return g.make(name, {rows, Dim(vocab)}, x.dtype, Category::logits); };
  const Tensor log_probs = part("entropy.log_probs"), probabilities = part("entropy.probabilities");
  const Tensor product = part("entropy.product");
}

}  // namespace

void sft_metrics(Eager& g, const Tensor& logits, bool several, bool twice, std::int64_t vocab) {
  const Tensor shifted =
      several && twice ? g.make("entropy.logits", {B, C, Dim(vocab)}, logits.dtype, Category::logits) : Tensor();
  entropy_metric(g, logits, false, M, vocab);
  if (several) g.make("accuracy.logits", {B, C, Dim(vocab)}, logits.dtype, Category::logits);
}

namespace {

/// cross_entropy_loss of the chosen half in the format of the logits: a copy without each sequence's last token.
Tensor chosen_likelihood(Eager& g, const Tensor& logits, std::int64_t vocab) {
  const Shape half{M, C, Dim(vocab)};
  Tensor chosen = slice(g, logits, {M, K, Dim(vocab)});
  Tensor shifted = slice(g, chosen, half);
  Tensor dense = copy(g, std::move(shifted), half, "chosen.logits");
  Tensor labels = g.make("chosen.labels", {M, C}, DType::int64);
  return cross_entropy(g, dense, labels);
}

/// Of so many rows an entropy is made at a time.
constexpr std::int64_t kEntropyRows = 128;

}  // namespace

std::int64_t rows_together(LossHead head, std::int64_t sequences, std::int64_t rows) {
  if (head == LossHead::trl_orpo || head == LossHead::trl_kto) return std::max<std::int64_t>(1, sequences / 2);
  return std::min(kEntropyRows, sequences * rows);
}

/// Names of the loop outlive their turn.
Tensor log_probs_by_sequence(Eager& g, const Tensor& x, const HeadChunks& chunks) {
  const Tensor index;  // a view of the input's tokens
  const std::vector<Tensor> rows = unbound(g, x, chunks);
  std::vector<Tensor> tokens;
  Tensor log_probs;
  for (int i = 0; i < chunks.simulated; ++i) {
    chunks.scope(i);
    Tensor next = widened_log_softmax(g, rows[static_cast<std::size_t>(i)], "row.log_probs");
    log_probs = std::move(next);
    tokens.push_back(gather(g, log_probs, index, {C, 1}, "row.token"));
  }
  chunks.scope(-1);
  return cat(g, std::move(tokens), {B, C}, "token_log_probs");
}

Tensor trl_objective(Eager& g, const Tensor& logits, LossHead head, const TrlStep& step, const HeadChunks& chunks) {
  const Shape shape{B, C, Dim(chunks.vocab)};
  Tensor likelihood = head == LossHead::trl_orpo ? chosen_likelihood(g, logits, chunks.vocab) : Tensor();
  Tensor shifted = slice(g, logits, shape);
  const bool tempered = head == LossHead::trl_grpo;  // `logits = logits / temperature`
  if (tempered) shifted = scale(g, std::move(shifted), "logits_scaled", Category::logits);
  Tensor tokens = selective_log_softmax(g, shifted, chunks);
  const Dim entropy_rows = head == LossHead::trl_kto ? Dim(kEntropyRows) : M;
  if (step.metrics) entropy_metric(g, shifted, step.several_sequences && !tempered, entropy_rows, chunks.vocab);
  return likelihood ? add(g, std::move(tokens), std::move(likelihood), "objective") : std::move(tokens);
}

std::vector<Tensor> kto_copies(Eager& g, const Tensor& logits, std::int64_t vocab) {
  const Shape half{M, C, Dim(vocab)};
  std::vector<Tensor> out;
  for (const char* name : {"desirable.logits", "undesirable.logits"})
    out.push_back(g.make(name, half, logits.dtype, Category::logits));
  for (int i = 0; i < 2; ++i) g.make("completion.logits", half, logits.dtype, Category::logits);
  return out;
}

Tensor last_tokens(Eager& g, const Tensor& scores) {
  const Tensor index = g.make("last_non_pad_token", {B}, DType::int64);
  return index_rows(g, scores, index, {B, 1}, "rewards");
}

}  // namespace oomplan
