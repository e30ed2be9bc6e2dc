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

/// logits[:, :-1].div_(temperature): as verl's division of a view (heads_verl.cpp), of all tokens but the last.
Tensor divided_in_place(Eager& g, const Tensor& logits, const Shape& part) {
  Tensor base = logits.alias(logits.shape);
  g.record(base, "CopySlices", {&logits}, [&g, part](Gradients in) {
    Tensor whole = g.make("copy_slices", in[0].shape, in[0].dtype, Category::logits);
    const Tensor clone = g.make("copy_slices.clone", part, in[0].dtype, Category::logits);
    const Tensor quotient = g.make("copy_slices.div", part, in[0].dtype, Category::logits);
    return Gradients{whole};
  });
  return slice(g, base, part);
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
  if (head == LossHead::trl_orpo || is_kto(head) || head == LossHead::trl_dpo_0_18 || head == LossHead::trl_dpo_0_29)
    return std::max<std::int64_t>(1, sequences / 2);
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
  if (head == LossHead::trl_dpo_0_18) return selective_log_softmax(g, logits, chunks);
  Tensor likelihood = head == LossHead::trl_orpo ? chosen_likelihood(g, logits, chunks.vocab) : Tensor();
  Tensor shifted = slice(g, logits, shape);
  const bool tempered = head == LossHead::trl_grpo;  // `logits = logits / temperature`
  if (tempered) shifted = scale(g, std::move(shifted), "logits_scaled", Category::logits);
  if (head == LossHead::trl_grpo_1_0) shifted = divided_in_place(g, logits, shape);
  if (head == LossHead::trl_dpo_0_29) {
    shifted = copy(g, std::move(shifted), shape, "logits.shifted");
    if (step.names != nullptr) step.names->push_back(shifted);
  }
  Tensor tokens = selective_log_softmax(g, shifted, chunks);
  const Dim entropy_rows = head == LossHead::trl_kto ? Dim(kEntropyRows) : M;
  const Tensor logged = logged_as(shifted, step.logged);
  if (step.metrics && head == LossHead::trl_dpo_0_29)
    dpo_metrics(g, logged, head, chunks.vocab);
  else if (step.metrics && head != LossHead::trl_kto_0_18)
    entropy_metric(g, logged, step.several_sequences && !tempered, entropy_rows, chunks.vocab);
  return likelihood ? add(g, std::move(tokens), std::move(likelihood), "objective") : std::move(tokens);
}

Tensor logged_as(const Tensor& logits, std::optional<DType> format) {
  Tensor out = logits.alias(logits.shape);
  out.dtype = format.value_or(logits.dtype);
  return out;
}

void dpo_metrics(Eager& g, const Tensor& logits, LossHead head, std::int64_t vocab) {
  if (head == LossHead::trl_dpo_0_29) entropy_metric(g, logits, false, Dim(kEntropyRows), vocab);
  const Dim rows = head == LossHead::trl_dpo_0_18 ? K : C;
  for (const char* name : {"chosen.logits", "rejected.logits"})
    g.make(name, {M, rows, Dim(vocab)}, logits.dtype, Category::logits);
}

std::vector<Tensor> kto_halves(Eager& g, const Tensor& logits, std::int64_t vocab) {
  std::vector<Tensor> out;
  for (const char* name : {"desirable.logits", "undesirable.logits"})
    out.push_back(g.make(name, {M, K, Dim(vocab)}, logits.dtype, Category::logits));
  return out;
}

namespace {

/// logsumexp over the two halves of [2, B, C, V]: its maximum is as large as its result (aten/src/ATen/native/ReduceOps.cpp
/// logsumexp_out_impl, 2.13).
Tensor mixture_of(Eager& g, Tensor both, const Shape& shape) {
  const bool recorded = g.will_record({&both});
  Saved saved = recorded ? g.save(both) : Saved();
  const Tensor highest = g.make("mixture.max", shape, both.dtype, Category::logits);
  const Tensor hidden = g.make("mixture.exp", both.shape, both.dtype, Category::logits);
  Tensor out = g.make("mixture", shape, both.dtype, Category::logits);
  if (!recorded) return out;
  Saved result = g.save(out);
  g.record(out, "LogsumexpBackward0", {&both}, [&g, saved, result](Gradients) {
    const Tensor& self = saved.get();  // grad * (self - result).exp()
    (void)result.get();
    const Tensor difference = g.make("mixture_backward.difference", self.shape, self.dtype, Category::logits);
    const Tensor power = g.make("mixture_backward.exp", self.shape, self.dtype, Category::logits);
    return Gradients{g.make("mixture_backward", self.shape, self.dtype, Category::logits)};
  });
  return out;
}

/// F.kl_div with the logarithms of both: exp(target) * (target - input).
Tensor divergence(Eager& g, const Tensor& input, const Tensor& target, const std::string& name) {
  Tensor weight = exp(g, target, name + ".target");
  Tensor difference = sub(g, target, input, name + ".difference");
  return mul(g, std::move(weight), std::move(difference), name, Category::logits);
}

/// Both log-probs and a number each, stacked.
Tensor stacked(Eager& g, const Tensor& policy, const Tensor& teacher) {
  Tensor first = add_scalar(g, policy, "mixture.policy");
  Tensor second = add_scalar(g, teacher, "mixture.teacher");
  Shape shape{2};
  shape.insert(shape.end(), policy.shape.begin(), policy.shape.end());
  return cat(g, {std::move(first), std::move(second)}, std::move(shape), "mixture.both");
}

}  // namespace

Tensor teacher_divergence(Eager& g, const Tensor& logits, const Tensor& teacher, std::int64_t vocab) {
  const Shape shape{B, C, Dim(vocab)};
  const Tensor policy_scaled = scale(g, slice(g, logits, shape), "logits_scaled", Category::logits);
  const Tensor teacher_scaled = scale(g, slice(g, teacher, shape), "teacher.logits_scaled", Category::logits);
  const Tensor policy = log_softmax(g, policy_scaled, "log_probs");
  const Tensor other = log_softmax(g, teacher_scaled, "teacher.log_probs");
  const Tensor mixture = mixture_of(g, stacked(g, policy, other), shape);
  const Tensor of_teacher = divergence(g, mixture, other, "divergence.teacher");
  const Tensor of_policy = divergence(g, mixture, policy, "divergence.policy");
  Tensor first = scale(g, of_teacher, "divergence.teacher_scaled", Category::logits);
  Tensor second = scale(g, of_policy, "divergence.policy_scaled", Category::logits);
  Tensor all = add(g, std::move(first), std::move(second), "divergence");
  const Tensor index = g.make("divergence.mask", {B, C}, DType::boolean);
  const Tensor kept = index_rows(g, std::move(all), index, shape, "divergence.of_completions");
  Tensor loss = g.make("loss", {}, kept.dtype);
  g.record(loss, "SumBackward0", {&kept}, [&g, shape](Gradients in) {  // expanded, not copied
    return Gradients{g.make("loss_backward", {}, in[0].dtype).alias(shape)};
  });
  return loss;
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
