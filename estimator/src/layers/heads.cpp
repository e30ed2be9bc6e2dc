#include "layers/heads.hpp"

#include <algorithm>

#include "layers/compiled_layer.hpp"
#include "layers/foak.hpp"
#include "layers/heads_parallel.hpp"
#include "layers/heads_slime.hpp"
#include "layers/heads_trl.hpp"
#include "layers/heads_verl.hpp"
#include "layers/heads_verl_fused.hpp"
#include "layers/liger.hpp"
#include "layers/ops.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::rows_of_chunk, axis::TK;

/// cross_entropy: log_softmax and nll_loss. The gradient of nll_loss is a dense tensor of zeros.
Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels) {
  Tensor log_probs = log_softmax(g, logits, "log_probs");
  const bool recorded = g.will_record({&log_probs});
  Saved saved = recorded ? g.save(log_probs) : Saved();
  Saved target = recorded ? g.save(labels) : Saved();
  Tensor loss = g.make("loss", {}, DType::fp32);
  Tensor weight = g.make("loss.total_weight", {}, DType::fp32);
  if (recorded) {
    Saved saved_weight = g.save(weight);
    g.record(loss, "NllLossBackward0", {&log_probs}, [&g, saved, target, saved_weight](Gradients) {
      (void)target.get();
      (void)saved_weight.get();
      return Gradients{g.make("nll_loss_backward", saved.get().shape, saved.get().dtype, Category::logits)};
    });
  }
  return loss;
}

namespace {

/// A scalar loss from one fp32 number a token.
/// transformers/generation/utils.py _sample, 4.57 and 5.24: a copy in fp32 beside the logits that the model returned, which
/// chooses the likeliest token.
Tensor next_token(Eager& g, const Tensor& logits, std::int64_t vocab) {
  const Tensor scores = g.make("next_token_logits", {logits.shape[0], Dim(vocab)}, DType::fp32, Category::logits);
  return g.make("next_tokens", {logits.shape[0]}, DType::int64);
}

Tensor mean_loss(Eager& g, Tensor per_token) {
  const Shape whole = per_token.shape;
  Tensor loss = g.make("loss", {}, DType::fp32);
  g.record(loss, "MeanBackward0", {&per_token},
           [&g, whole](Gradients) { return Gradients{g.make("loss_backward", whole, DType::fp32, Category::temporaries)}; });
  return loss;
}

/// torch's, Liger's or fms-acceleration's.
Tensor cross_entropy_of(Eager& g, const Tensor& logits, const Tensor& labels, LossHead head) {
  if (head == LossHead::foak_ce) return foak::cross_entropy(g, logits, labels);
  return head == LossHead::liger_ce ? liger::cross_entropy(g, logits, labels) : cross_entropy(g, logits, labels);
}

/// ForCausalLMLoss (transformers loss/loss_utils.py); with another cross-entropy in place of torch's.
Tensor hf_loss(Eager& g, const Tensor& logits, LossHead head, bool copies_shifted, bool several) {
  Tensor full = to(g, logits, DType::fp32, "logits_fp32");
  if (copies_shifted) {  // logits[..., :-1, :].contiguous(), here with the last token; the labels the same. Of one sequence: a
                         // view
    Tensor part = slice(g, full, full.shape);
    Tensor shifted = several ? copy(g, std::move(part), full.shape, "logits.shifted") : std::move(part);
    Tensor labels = g.make("labels.shifted", {B, K}, DType::int64);
    return cross_entropy_of(g, shifted, labels, head);
  }
  // `labels` names the padded ones to the end; what is cut off of one sequence is a view of them
  const Tensor padded = several ? g.make("labels.padded", {B, K}, DType::int64) : Tensor();
  const Tensor shifted = g.make("labels.shifted", {B, K}, DType::int64);
  return cross_entropy_of(g, full, shifted, head);
}

/// log_softmax(logits) -> gather; its index is a view of the labels.
Tensor gathered(Eager& g, Tensor logits, const Tensor& labels) {
  const Tensor index = labels.alias({B, K, 1});
  Tensor log_probs = widened_log_softmax(g, logits, "log_probs");
  logits.reset();
  Tensor token = gather(g, std::move(log_probs), index, {B, K, 1}, "token_log_probs");
  return to(g, std::move(token), DType::fp32, "token_log_probs_fp32");
}

/// gather(x) - logsumexp(x).
Tensor by_logsumexp(Eager& g, const Tensor& x, const Tensor& labels) {
  const Tensor index = labels.alias({B, K, 1});
  Tensor token = gather(g, x, index, {B, K, 1}, "token_logits");
  Tensor total = logsumexp(g, x, {B, K, 1}, "logsumexp");
  Tensor negative = neg(g, std::move(total), "negative");
  return add(g, std::move(token), std::move(negative), "token_log_probs");
}

/// One compiled chunk of AReaL: fp32 logits of the chunk while it runs, in backward too; a 16-bit gradient of the chunk.
Tensor areal_chunk(Eager& g, Tensor part) {
  const bool recorded = g.will_record({&part});
  Saved saved = recorded ? g.save(part) : Saved();
  {
    Tensor full = g.make("chunk.logits_fp32", part.shape, DType::fp32, Category::logits);
  }
  Tensor rows = g.make("chunk.rows", with_last(part.shape, 2), DType::fp32);
  Tensor out = g.make("chunk.log_probs_and_entropy", with_last(part.shape, 2), DType::fp32);
  if (recorded) {
    Saved saved_rows = g.save(rows);
    g.record(out, "CompiledFunctionBackward", {&part}, [&g, saved, saved_rows](Gradients) {
      (void)saved_rows.get();
      const Tensor& self = saved.get();
      Tensor full = g.make("chunk.backward_fp32", self.shape, DType::fp32, Category::logits);
      full.reset();
      return Gradients{g.make("chunk.gradient", self.shape, self.dtype, Category::logits)};
    });
  }
  return out;
}

/// The same chunk without torch.compile. The entropy is a metric: what its graph saved goes when the caller drops it. A pass that
/// asks for log-probs alone has none (gather_logprobs).
struct ArealChunk {
  Tensor token, entropy;
};
ArealChunk areal_eager_chunk(Eager& g, Tensor part) {
  const Shape one = with_last(part.shape, 1);
  Tensor full = to(g, std::move(part), DType::fp32, "chunk.logits_fp32");
  Tensor scaled = scale(g, std::move(full), "chunk.logits_scaled", Category::logits);
  Tensor log_probs = log_softmax(g, std::move(scaled), "chunk.log_probs");
  Tensor entropy;
  if (g.grad_enabled) {
    Tensor probabilities = exp(g, log_probs, "chunk.probabilities");
    Tensor product = mul(g, std::move(probabilities), log_probs, "chunk.product", Category::logits);
    Tensor weighted = sum(g, std::move(product), one, "chunk.weighted");
    entropy = neg(g, std::move(weighted), "chunk.entropy");
  }
  Tensor index = g.make("chunk.labels", one, DType::int64);
  Tensor token = gather(g, std::move(log_probs), index, one, "chunk.token");
  return {std::move(token), std::move(entropy)};
}

/// One compiled chunk of AReaL's recipe AEnt (recipe/AEnt/functional.py, 0.4.1 to 0.5.3), as inductor writes it (2.13). The least
/// logits are looked for on the host, where an fp32 copy goes; what stays is the mask that comes back, and logits less their
/// greatest in fp32: their softmax has a gradient. A pass without gradients asks for log-probs alone (gather_logprobs).
Tensor areal_clamped_chunk(Eager& g, Tensor part) {
  if (!g.will_record({&part})) return areal_chunk(g, std::move(part));
  const Shape one = with_last(part.shape, 1);
  Saved saved = g.save(part);
  Tensor finite = g.make("chunk.finite", one, DType::boolean);
  {
    Tensor copied = g.make("chunk.logits_fp32", part.shape, DType::fp32, Category::logits);
  }
  Tensor mask = g.make("chunk.clamped", part.shape, DType::boolean, Category::logits);
  Tensor rows = g.make("chunk.rows", with_last(part.shape, 4), DType::fp32);
  Tensor shifted = g.make("chunk.shifted", part.shape, DType::fp32, Category::logits);
  Tensor out = g.make("chunk.log_probs_and_entropy", with_last(part.shape, 2), DType::fp32);
  Saved kept[] = {g.save(finite), g.save(mask), g.save(rows), g.save(shifted)};
  g.record(out, "CompiledFunctionBackward", {&part},
           [&g, saved, finite = kept[0], mask = kept[1], rows = kept[2], shifted = kept[3]](Gradients) {
             for (const Saved* s : {&finite, &mask, &rows, &shifted}) (void)s->get();
             const Tensor& self = saved.get();
             Tensor scattered = g.make("chunk.scattered", self.shape, DType::fp32, Category::logits);
             return Gradients{g.make("chunk.gradient", self.shape, self.dtype, Category::logits)};
           });
  return out;
}

/// What a chunk leaves: its tokens' log-probs, and what of it stays until the function returns.
Tensor one_chunk(Eager& g, Tensor part, const HeadOptions& o, std::vector<Tensor>& entropies) {
  if (o.split_vocabulary) return areal_vocab_parallel_chunk(g, std::move(part));
  if (o.head == LossHead::areal_compiled) return areal_chunk(g, std::move(part));
  if (o.head == LossHead::areal_clamped) return areal_clamped_chunk(g, std::move(part));
  if (o.head == LossHead::areal_eager) {
    ArealChunk chunk = areal_eager_chunk(g, std::move(part));
    entropies.push_back(std::move(chunk.entropy));
    return std::move(chunk.token);
  }
  const Shape one = with_last(part.shape, 1);
  Tensor full = to(g, std::move(part), DType::fp32, "chunk.logits_fp32");
  Tensor log_probs = log_softmax(g, std::move(full), "chunk.log_probs");
  Tensor index = g.make("chunk.labels", one, DType::int64);
  return gather(g, std::move(log_probs), index, one, "chunk.token");
}

Tensor chunked(Eager& g, const Tensor& logits, const HeadOptions& o, const std::function<void(int)>& scope) {
  Tensor rows_view = logits.alias({TK, Dim(o.vocab)});
  rows_view.grad_fn = logits.grad_fn;
  rows_view.output = logits.output;
  // A packed tree's tokens are taken branch by branch, and each branch's last one alone (areal/models/tree_attn/functional.py,
  // 1.0.0 to 2.0.0). One branch has all tokens: its gradient is as large as it gets.
  const Tensor all = o.one_branch ? slice(g, rows_view, {TK, Dim(o.vocab)}) : rows_view;
  std::vector<Tensor> parts, entropies;
  for (int i = 0; i < o.chunks; ++i) {
    scope(i);
    parts.push_back(one_chunk(g, slice(g, all, {rows_of_chunk(i, o.chunks), Dim(o.vocab)}), o, entropies));
  }
  scope(-1);
  if (o.one_branch) parts.push_back(one_chunk(g, slice(g, rows_view, {Dim(1), Dim(o.vocab)}), o, entropies));
  return cat(g, std::move(parts), {TK, Dim(1)}, "token_log_probs");
}

/// AgileRL's function works on rows of all sequences: with several the slice that drops each one's last token is no block.
Tensor flat_rows(Eager& g, const Tensor& x, bool several, Shape rows, const char* name) {
  return several ? g.make(name, std::move(rows), x.dtype, Category::temporaries) : x.alias(std::move(rows));
}

/// A loss for each part of every sequence, and their mean; the parts' gradients wait until one cat puts them together.
Tensor chunked_cross_entropy(Eager& g, const Tensor& logits, const HeadOptions& o, const std::function<void(int)>& scope) {
  std::vector<Shape> shapes;
  for (int i = 0; i < o.chunks; ++i) shapes.push_back({rows_of_chunk(i, o.chunks), Dim(o.vocab)});
  const std::vector<Tensor> parts = split(g, logits, shapes);
  Tensor total;
  for (int i = 0; i < o.chunks; ++i) {
    scope(i);
    const Tensor& chunk = parts[static_cast<std::size_t>(i)];
    Tensor rows = o.several_sequences ? copy(g, chunk, chunk.shape, "chunk.logits") : chunk;
    Tensor full = to(g, std::move(rows), DType::fp32, "chunk.logits_fp32");
    Tensor index = o.several_sequences ? g.make("chunk.labels", {chunk.shape[0]}, DType::int64) : o.labels;
    Tensor loss = cross_entropy(g, full, index);
    // `total_loss` begins as the number 0
    total = i > 0 ? add(g, std::move(total), std::move(loss), "loss.sum") : add_scalar(g, std::move(loss), "loss.sum");
  }
  scope(-1);
  return scale(g, std::move(total), "loss.mean");
}

/// A chunk of AgileRL's head, whose last one has the rows that are left. A tape's site has one size: it has sites of its own.
struct AgileChunk {
  Dim rows;
  std::string name;
  explicit AgileChunk(bool last) : rows(last ? axis::R : C), name(last ? "last_chunk." : "chunk.") {}
};

/// agilerl/algorithms/core/llm_ops/fused_logprobs.py, 2.8. The chunk is compiled; what inductor (2.13) makes of it holds the
/// 16-bit logits, and in backward an fp32 tensor of zeros, into which the chosen tokens' gradients are scattered, while it writes
/// the gradient of the logits over the logits. The last chunk has the rows that are left, in backward too.
Tensor agilerl_fused(Eager& g, Tensor hidden, const HeadOptions& o, const std::function<void(int)>& scope) {
  const int begun = g.scope;
  const Dim width = hidden.shape.back(), vocab(o.vocab);
  const bool several = o.several_sequences;
  Tensor kept = slice(g, hidden, {B, K, width});
  hidden.reset();
  Tensor out;
  {
    Tensor flat = flat_rows(g, kept, several, {TK, width}, "head.rows");
    Tensor targets = several ? g.make("head.targets", {TK}, DType::int64, Category::temporaries) : Tensor();
    out = g.make("log_probs", {B, K}, kept.dtype);
    for (int i = 0; i < o.chunks; ++i) {
      scope(i);
      const AgileChunk chunk(i > 0 && i + 1 == o.chunks);
      Tensor logits = g.make(chunk.name + "logits", {chunk.rows, vocab}, kept.dtype, Category::logits);
      Tensor rows = g.make(chunk.name + "log_probs", {chunk.rows}, DType::fp32);
    }
    scope(-1);
  }
  if (g.will_record({&kept})) {
    Saved saved = g.save(kept);
    const int chunks = o.chunks;
    g.record(out, "FusedLinearLogProbsFunctionBackward", {&kept}, [=, &g](Gradients) {
      const Tensor& self = saved.get();
      Tensor flat = flat_rows(g, self, several, {TK, width}, "head.rows");
      Tensor targets = several ? g.make("head.targets", {TK}, DType::int64, Category::temporaries) : Tensor();
      Tensor whole = g.make("head.gradient", {TK, width}, self.dtype, Category::temporaries);
      for (int i = chunks; i-- > 0;) {  // in the order of the forward pass; the tape plays what it calls the last one first
        scope(i);
        const AgileChunk chunk(i == 0 && chunks > 1);
        Tensor logits = g.make(chunk.name + "logits", {chunk.rows, vocab}, self.dtype, Category::logits);
        {
          Tensor scattered = g.make(chunk.name + "scattered", {chunk.rows, vocab}, DType::fp32, Category::logits);
        }
        Tensor part = g.make(chunk.name + "gradient", {chunk.rows, width}, self.dtype, Category::temporaries);
      }
      g.scope = begun;
      whole.shape = self.shape;
      return Gradients{whole};
    });
  }
  kept.reset();
  return mean_loss(g, std::move(out));
}

/// Liger's forward pass of the model in training: no logits; the labels are shifted as in ForCausalLMLoss.
Tensor liger_fused(Eager& g, const Tensor& hidden, const HeadOptions& o, const std::function<void(int)>& scope) {
  const Shape shape{B, K, hidden.shape.back()};
  Tensor kept = o.slice_hidden ? slice(g, hidden, shape) : hidden;
  if (o.slice_hidden && o.several_sequences) kept = copy(g, std::move(kept), shape, "hidden_kept");
  Tensor padded = g.make("labels.padded", {B, K}, DType::int64);
  Tensor shifted = g.make("labels.shifted", {B, K}, DType::int64);
  return liger::fused_linear_cross_entropy(
      g, kept, {TK, axis::C, axis::R, hidden.shape.back().coefficient, o.vocab, o.weight, o.chunks, scope, o.liger});
}

}  // namespace

Tensor run_hidden_head(Eager& g, Tensor hidden, const HeadOptions& o, const std::function<void(int)>& scope) {
  if (o.head == LossHead::liger_fused_ce) return liger_fused(g, hidden, o, scope);
  if (const auto fused = verl_fused(o.head))
    return mean_loss(g, verl_fused_objective(g, hidden, o.labels, o.weight, *fused, {o.vocab, o.chunks, scope}));
  return agilerl_fused(g, std::move(hidden), o, scope);
}

bool takes_hidden(LossHead head) {
  return head == LossHead::agilerl_fused || head == LossHead::liger_fused_ce || verl_fused(head).has_value();
}

bool splits_vocabulary(LossHead head) {
  return head == LossHead::areal_compiled || head == LossHead::areal_eager || head == LossHead::cross_entropy;
}

std::int64_t chunks_of_sequence(LossHead head) {
  return head == LossHead::cross_entropy_chunked || head == LossHead::torchtune_chunked ? 8 : 0;
}

std::int64_t chunk_rows(LossHead head, std::int64_t vocab) {
  switch (head) {
    case LossHead::agilerl_fused:
      return std::clamp<std::int64_t>(256 * kMiB / bytes_of(std::max<std::int64_t>(1, vocab), DType::fp32), 128, 4096);
    case LossHead::areal_compiled:
    case LossHead::areal_eager:
    case LossHead::areal_clamped:
    case LossHead::logprob_chunked:
      return 1024;
    case LossHead::verl_entropy_chunked:
    case LossHead::verl_entropy_chunked_checkpoint:
      return 2048;
    case LossHead::verl_rows:
      return 1;
    case LossHead::verl_fused:
    case LossHead::verl_fused_entropy:
    case LossHead::verl_fused_log_softmax:
    case LossHead::verl_fused_log_softmax_entropy:
      return kVerlFusedRows;
    default:
      return 0;
  }
}

bool runs_in_chunks(LossHead head) {
  if (head == LossHead::torchtune_chunked) return false;  // its eight chunks are written out
  return head == LossHead::liger_fused_ce || goes_by_sequence(head) || chunks_of_sequence(head) > 0 || chunk_rows(head, 1) > 0;
}

bool inside_model(LossHead head) {
  return head == LossHead::hf_loss || is_trl_sft(head) || head == LossHead::liger_ce || head == LossHead::liger_fused_ce ||
         head == LossHead::foak_ce || verl_fused(head).has_value();
}

Tensor run_head(Eager& g, Tensor logits, const HeadOptions& o, const std::function<void(int)>& scope) {
  if (const auto steps = verl_steps(o.head))
    return mean_loss(g, verl_objective(g, std::move(logits), *steps, {o.vocab, o.chunks, scope}));
  if (takes_sequences(o.head))
    return mean_loss(
        g, trl_objective(g, logits, o.head, {o.several_sequences, o.metrics, o.logged, o.names}, {o.vocab, o.chunks, scope}));
  switch (o.head) {
    case LossHead::hf_loss:
    case LossHead::trl_sft:
    case LossHead::trl_sft_1_3:
    case LossHead::liger_ce:
    case LossHead::foak_ce:  // its own ForCausalLMLoss is that of transformers up to 4.48, whatever the release
      return hf_loss(g, logits, o.head, o.copies_shifted || o.head == LossHead::foak_ce, o.several_sequences);
    case LossHead::logprob_fp32: {
      Tensor full = to(g, std::move(logits), DType::fp32, "logits_fp32");
      return mean_loss(g, gathered(g, std::move(full), o.labels));
    }
    case LossHead::logprob_bf16:
      return mean_loss(g, gathered(g, std::move(logits), o.labels));
    case LossHead::logprob_lse: {
      Tensor full = to(g, std::move(logits), DType::fp32, "logits_fp32");
      return mean_loss(g, by_logsumexp(g, full, o.labels));
    }
    case LossHead::logprob_temperature: {
      logits = scale(g, logits, "logits_scaled", Category::logits);  // `logits = logits / temperature`: the name stays
      Tensor full = to(g, logits, DType::fp32, "logits_fp32");       // in fp32 that very tensor
      return mean_loss(g, gathered(g, std::move(full), o.labels));
    }
    case LossHead::logprob_rows: {
      Tensor tokens = log_probs_by_sequence(g, logits, {o.vocab, o.chunks, scope});
      logits.reset();
      return mean_loss(g, std::move(tokens));
    }
    case LossHead::logprob_entropy_fp32:
    case LossHead::logprob_entropy_nograd: {
      Tensor full = to(g, std::move(logits), DType::fp32, "logits_fp32");
      Tensor token = gathered(g, full, o.labels);
      const bool grad = std::exchange(g.grad_enabled, g.grad_enabled && o.head == LossHead::logprob_entropy_fp32);
      Tensor spread = entropy(g, full);
      g.grad_enabled = grad;
      Tensor objective = add(g, std::move(token), std::move(spread), "objective");
      return mean_loss(g, std::move(objective));
    }
    case LossHead::logprob_chunked:
    case LossHead::areal_compiled:
    case LossHead::areal_eager:
    case LossHead::areal_clamped:
      return mean_loss(g, chunked(g, logits, o, scope));
    case LossHead::next_token:
      return next_token(g, logits, o.vocab);
    case LossHead::lm_eval:
      return log_softmax(g, std::move(logits), "log_probs");
    case LossHead::cross_entropy: {
      if (o.split_vocabulary) return loss_parallel(g, logits, o.labels);
      Tensor full = to(g, std::move(logits), DType::fp32, "logits_fp32");
      return cross_entropy(g, full, o.labels);
    }
    case LossHead::cross_entropy_chunked:
      return chunked_cross_entropy(g, logits, o, scope);
    case LossHead::cross_entropy_compiled:
      return compiled_cross_entropy(g, std::move(logits), o.labels);
    case LossHead::value: {
      Tensor full = to(g, std::move(logits), DType::fp32, "values_fp32");
      return mean_loss(g, std::move(full));
    }
    case LossHead::reward_pairs:
      return mean_loss(g, last_tokens(g, logits));
    case LossHead::slime_fsdp:
      return mean_loss(g, slime_objective(g, std::move(logits), o.vocab));
    default:
      break;  // verl's and TRL's, above
  }
  return {};
}

}  // namespace oomplan
