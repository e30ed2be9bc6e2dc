#include "layers/operators_preference.hpp"

#include <vector>

#include "layers/heads.hpp"
#include "layers/liger.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

struct LossSizes {
  std::int64_t B, S, H, V;
};
LossSizes sizes_of(const OperatorSetup& s) { return {s.size("sequences"), s.size("tokens"), s.size("hidden"), s.size("vocab")}; }

/// What a chunk's loss and its gradient take when torch.compile makes them one graph (torch/_inductor, compared with runs of
/// 2.5 to 2.7): log_softmax is never written down, the gather's backward is zeros that a kernel scatters into, and the gradient
/// of the logits is written into the logits. Both products with it are there before it goes.
struct CompiledChunk {
  std::int64_t rows, hidden, vocab;
  std::int64_t nll_rows;        ///< rows with a likelihood loss beside the preference: zeros of their own
  std::int64_t reference_rows;  ///< rows whose logits of a reference model are made too
};
Tensor compiled_chunk(Eager& g, const CompiledChunk& c, DType dtype) {
  const auto logits_of = [&](const char* name, std::int64_t rows, DType format) {
    return g.make(name, {rows, c.vocab}, format, Category::logits);
  };
  Tensor logits = logits_of("chunk.logits", c.rows, dtype);
  if (c.reference_rows > 0) Tensor reference = logits_of("chunk.reference_logits", c.reference_rows, dtype);
  {
    Tensor likelihood = c.nll_rows > 0 ? logits_of("chunk.nll_gradient", c.nll_rows, DType::fp32) : Tensor();
    Tensor picked = logits_of("chunk.gather_gradient", c.rows, DType::fp32);
  }
  Tensor input = g.make("chunk.input_gradient", {c.rows, c.hidden}, dtype, Category::temporaries);
  Tensor weight = g.make("chunk.weight_gradient", {c.vocab, c.hidden}, dtype, Category::temporaries);
  return input;
}

/// Gradients that were made in forward: backward hands them over.
Tensor loss_with(Eager& g, const Tensor& x, int weight, Tensor input_gradient, Tensor weight_gradient) {
  Tensor w = g.leaf(weight);
  Tensor loss = g.make("loss", {}, DType::fp32);
  if (!g.will_record({&x, &w})) return loss;
  Saved saved_input = g.save(input_gradient), saved_weight = g.save(weight_gradient);
  input_gradient.reset();
  weight_gradient.reset();
  g.record(loss, "LigerFusedLinearBackward", {&x, &w}, [saved_input, saved_weight](const Gradients&) {
    const Tensor &a = saved_input.get(), &b = saved_weight.get();
    return Gradients{a.alias(a.shape), b.alias(b.shape)};
  });
  return loss;
}

/// linkedin/Liger-Kernel src/liger_kernel/chunked_loss/fused_linear_preference.py (0.4.1 to 0.8.2): pair after pair;
/// `fused_linear_ppo.py` (0.6.1): sequence after sequence, without the copy.
Tensor liger_chunks(Eager& g, const Tensor& x, int weight, const LossSizes& n, std::int64_t together, const CompiledChunk& c) {
  const bool grad = std::exchange(g.grad_enabled, false);
  Tensor weight_gradient = g.make("weight_gradient", {n.V, n.H}, g.leaf(weight).dtype, Category::gradients);
  std::vector<Tensor> parts;
  Tensor copy;
  for (std::int64_t at = 0; at < n.B; at += together) {
    if (together > 1) {
      Tensor next = g.make("chunk.input", {c.rows, n.H}, x.dtype, Category::temporaries);
      copy = std::move(next);
    }
    parts.push_back(compiled_chunk(g, c, x.dtype));
  }
  Tensor whole = g.make("input_gradient", x.shape, x.dtype, Category::temporaries);
  parts.clear();
  copy.reset();
  g.grad_enabled = grad;
  return loss_with(g, x, weight, std::move(whole), std::move(weight_gradient));
}

/// Log-probability of each token that was chosen: fp32 logits, log_softmax, gather.
Tensor token_logps(Eager& g, const Tensor& full, const Tensor& labels, std::int64_t rows) {
  Tensor all = log_softmax(g, full, "log_probs");
  return gather(g, std::move(all), labels, {rows, 1}, "token_logps");
}

/// Liger-Kernel test/utils.py HFAlignmentLoss, after TRL's trainers: the likelihood loss of the chosen half beside the
/// log-probabilities of all.
Tensor reference_preference(Eager& g, const Tensor& x, int weight, const LossSizes& n, const Tensor& labels) {
  const std::int64_t rows = n.B * n.S, half = rows / 2;
  Tensor logits = linear(g, x, weight, -1, rows, {rows, n.V}, "logits", Category::logits);
  Tensor full = to(g, logits, DType::fp32, "logits_fp32");
  Tensor chosen = slice(g, full, {half, n.V});
  Tensor nll = cross_entropy(g, chosen, labels);
  Tensor logps = token_logps(g, full, labels, rows);
  Tensor preference = sum(g, std::move(logps), {}, "preference");
  return add(g, nll, std::move(preference), "loss");
}

/// Liger-Kernel test/chunked_loss/test_grpo_loss.py TorchLMHeadGRPO: names of all stages live until the loss is there.
Tensor reference_grpo(Eager& g, const Tensor& x, int weight, int reference, const LossSizes& n, const Tensor& labels,
                      const Tensor& reference_x) {
  const std::int64_t rows = n.B * n.S;
  Tensor logits = linear(g, x, weight, -1, rows, {rows, n.V}, "logits", Category::logits);
  Tensor log_probs;
  {
    Tensor full = to(g, logits, DType::fp32, "logits_fp32");
    log_probs = log_softmax(g, std::move(full), "log_probs");
  }
  Tensor logps = gather(g, log_probs, labels, {rows, 1}, "token_logps");
  const bool grad = std::exchange(g.grad_enabled, false);
  Tensor other = linear(g, reference_x, reference, -1, rows, {rows, n.V}, "reference_logits", Category::logits);
  Tensor other_probs;
  {
    Tensor full = to(g, other, DType::fp32, "reference_logits_fp32");
    other_probs = log_softmax(g, std::move(full), "reference_log_probs");
  }
  g.grad_enabled = grad;
  return sum(g, std::move(logps), {}, "loss");
}

/// KLDivLoss(log_target=True): exp(target) * (target - input).
Tensor kl_div(Eager& g, const Tensor& input, const Tensor& target) {
  Tensor probability = exp(g, target, "kl.exp");
  Tensor difference = sub(g, target, input, "kl.difference");
  Tensor product = mul(g, std::move(probability), std::move(difference), "kl.product");
  return sum(g, std::move(product), {}, "kl");
}

/// torch.lerp(a, b, number): each gradient is a multiple of its own.
Tensor lerp(Eager& g, const Tensor& a, const Tensor& b) {
  Tensor out = g.make("mixture", a.shape, a.dtype);
  g.record(out, "LerpBackward0", {&a, &b}, [&g](const Gradients& in) {
    Tensor left = gradient(g, "lerp_backward", in[0].shape, in[0].dtype);
    return Gradients{left, gradient(g, "lerp_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

/// Liger-Kernel benchmark/scripts/benchmark_fused_linear_jsd.py TorchLMHeadJSD.
Tensor reference_jsd(Eager& g, const Tensor& x, const Tensor& teacher_x, int student, int teacher, std::int64_t rows,
                     std::int64_t vocab) {
  Tensor logits = linear(g, x, student, -1, rows, {rows, vocab}, "student.logits", Category::logits);
  Tensor other = linear(g, teacher_x, teacher, -1, rows, {rows, vocab}, "teacher.logits", Category::logits);
  const auto log_probs = [&](const Tensor& from, const std::string& name) {
    Tensor scaled = scale(g, from, name + ".scaled", Category::logits);
    return log_softmax(g, std::move(scaled), name + ".log_probs");
  };
  const Tensor q = log_probs(logits, "student"), p = log_probs(other, "teacher");
  Tensor log_p = to(g, p, DType::fp32, "log_p"), log_q = to(g, q, DType::fp32, "log_q");
  Tensor mixture;
  {
    Tensor exp_p = exp(g, log_p, "exp_p");
    Tensor exp_q = exp(g, log_q, "exp_q");
    mixture = lerp(g, exp_p, exp_q);
  }
  Tensor first, second;
  {
    Tensor log_m = activation(g, mixture, "log_mixture");
    first = kl_div(g, log_m, log_p);
  }
  {
    Tensor log_m = activation(g, mixture, "log_mixture");
    second = kl_div(g, log_m, log_q);
  }
  return add(g, std::move(first), std::move(second), "loss");
}

/// linkedin/Liger-Kernel src/liger_kernel/ops/fused_linear_jsd.py (0.3.1): the names of the loop outlive their turn; the loss of
/// every logit is kept until it is added up.
Tensor liger_jsd(Eager& g, const Tensor& x, int weight, std::int64_t rows, std::int64_t hidden, std::int64_t vocab) {
  const bool grad = std::exchange(g.grad_enabled, false);
  const std::int64_t most = liger::fused_head_rows(rows, hidden, vocab);
  Tensor weight_gradient = g.make("weight_gradient", {vocab, hidden}, g.leaf(weight).dtype, Category::gradients);
  Tensor input_gradient = g.make("input_gradient", x.shape, x.dtype, Category::temporaries);
  Tensor losses = g.make("losses", {rows, vocab}, DType::fp32, Category::logits);
  Tensor student, teacher, student_prob, teacher_prob;
  for (std::int64_t at = 0; at < rows; at += most) {
    const std::int64_t part = std::min(most, rows - at);
    const auto make = [&](const char* name) { return g.make(name, {part, vocab}, x.dtype, Category::logits); };
    for (Tensor* logits : {&student, &teacher}) *logits = make("chunk.logits");
    for (Tensor* logits : {&student, &teacher}) *logits = make("chunk.logits_scaled");
    for (Tensor* probs : {&student_prob, &teacher_prob}) *probs = make("chunk.log_probs");
    Tensor softmaxed = make("chunk.softmax");
    Tensor product = make("chunk.product");
    softmaxed.reset();
    Tensor difference = make("chunk.difference");
    product.reset();
    student = make("chunk.gradient");
    difference.reset();
    Tensor made = g.make("chunk.input_gradient", {part, hidden}, x.dtype, Category::temporaries);
  }
  for (Tensor* name : {&student, &teacher, &student_prob, &teacher_prob, &losses}) name->reset();
  g.grad_enabled = grad;
  return loss_with(g, x, weight, std::move(input_gradient), std::move(weight_gradient));
}

}  // namespace

OperatorSetup::Forward preference_operator(const OperatorSetup& s) {
  const LossSizes n = sizes_of(s);
  const int weight = s.weight("lm_head.weight", {n.V, n.H});
  const Tensor x = s.input("x", {n.B * n.S, n.H}, s.call.dtype);
  const Tensor labels = s.g.make("labels", {n.B * n.S}, DType::int64, Category::inputs);
  if (!s.is("liger")) return [&g = s.g, x, weight, n, labels] { return reference_preference(g, x, weight, n, labels); };
  const CompiledChunk chunk{2 * n.S, n.H, n.V, s.size("nll") != 0 ? n.S : 0, 0};
  return [&g = s.g, x, weight, n, labels, chunk] { return liger_chunks(g, x, weight, n, 2, chunk); };
}

OperatorSetup::Forward grpo_operator(const OperatorSetup& s) {
  const LossSizes n = sizes_of(s);
  const int weight = s.weight("lm_head.weight", {n.V, n.H}), reference = s.weight("reference.weight", {n.V, n.H});
  const Tensor x = s.input("x", {n.B * n.S, n.H}, s.call.dtype);
  const Tensor other = s.g.make("reference.x", {n.B * n.S, n.H}, s.call.dtype, Category::inputs);
  const Tensor labels = s.g.make("selected_token_ids", {n.B * n.S}, DType::int64, Category::inputs);
  if (!s.is("liger"))
    return
        [&g = s.g, x, weight, reference, n, labels, other] { return reference_grpo(g, x, weight, reference, n, labels, other); };
  const CompiledChunk chunk{n.S, n.H, n.V, 0, n.S};
  return [&g = s.g, x, weight, n, chunk, labels, other] { return liger_chunks(g, x, weight, n, 1, chunk); };
}

OperatorSetup::Forward jsd_operator(const OperatorSetup& s) {
  const std::int64_t rows = s.size("tokens"), hidden = s.size("hidden"), vocab = s.size("vocab");
  const int student = s.weight("student.weight", {vocab, hidden}), teacher = s.weight("teacher.weight", {vocab, hidden});
  const Tensor x = s.input("x", {rows, hidden}, s.call.dtype);
  const Tensor other = s.g.make("teacher.x", {rows, hidden}, s.call.dtype, Category::inputs);
  if (!s.is("liger"))
    return
        [&g = s.g, x, other, student, teacher, rows, vocab] { return reference_jsd(g, x, other, student, teacher, rows, vocab); };
  return [&g = s.g, x, other, student, rows, hidden, vocab] { return liger_jsd(g, x, student, rows, hidden, vocab); };
}

}  // namespace oomplan
