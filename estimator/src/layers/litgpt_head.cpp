// LitGPT's output layer and loss: litgpt/finetune/lora.py and full.py, litgpt/utils.py chunked_cross_entropy.
//
// The logits of all tokens exist, in 16 bits and, as Fabric gives them back, in fp32. What a chunk of them makes in backward is
// one chunk's; everything else is written for all rows at once, which reaches the same heights.
#include "layers/litgpt.hpp"
#include "layers/litgpt_lora.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::C, axis::K, axis::TK;

constexpr std::int64_t kTokensOfChunk = 128;

Tensor capped_logits(Eager& g, const Tensor& logits) {
  Tensor divided = scale(g, logits, "logits.divided", Category::logits);
  Tensor bounded = tanh(g, std::move(divided), "logits.tanh");
  return scale(g, std::move(bounded), "logits.capped", Category::logits);
}

/// Cross-entropy by chunks. `collects`: the chunks' gradients wait until one cat puts them together; otherwise each goes down its
/// own chunk of the output layer, and no gradient of all logits exists: what flows back then is a tensor without a storage.
Tensor chunk_losses(Eager& g, const Tensor& logits, Dim vocabulary, const Tensor& labels, bool collects) {
  Tensor log_probs = g.make("log_probs", logits.shape, logits.dtype, Category::logits);
  Tensor loss = g.make("loss", {}, DType::fp32);
  if (!g.will_record({&logits})) return loss;
  Saved saved = g.save(log_probs), target = g.save(labels);
  g.record(loss, "ChunkedCrossEntropyBackward", {&logits}, [&g, saved, target, vocabulary, collects](Gradients) {
    const Tensor& self = saved.get();
    (void)target.get();
    {
      Tensor dense = g.make("nll_loss_backward", {C, vocabulary}, self.dtype, Category::logits);
      Tensor chunk = g.make("log_softmax_backward", {C, vocabulary}, self.dtype, Category::logits);
    }
    if (collects) return Gradients{g.make("logits.chunk_gradients", self.shape, self.dtype, Category::logits)};
    Tensor passed_on = g.scalar(self.dtype);
    passed_on.shape = self.shape;
    return Gradients{passed_on};
  });
  return loss;
}

/// adapter_scale * (logits + adapter_bias), chunk by chunk: the sums of all of them stay, what backward makes is one chunk's.
Tensor scaled_logits(Eager& g, Tensor plain, const Leaf& head) {
  Tensor sum = g.make("logits.shifted", plain.shape, plain.dtype, Category::logits);
  const Tensor scale = g.leaf(head.scale), shift = g.leaf(head.shift);
  const bool recorded = g.will_record({&plain, &scale});
  Saved saved = recorded ? g.save(sum) : Saved();
  Tensor out = g.make("logits.scaled", plain.shape, plain.dtype, Category::logits);
  if (!recorded) return out;
  g.record(out, "MulBackward0", {&plain, &scale, &shift}, [&g, saved, width = scale.shape](Gradients in) {
    const DType dtype = saved.get().dtype;
    Tensor scaled = g.make("logits.chunk_scaled", {C, width.back()}, dtype, Category::logits);
    Tensor for_plain = g.make("logits.chunk_gradient", {C, width.back()}, dtype, Category::logits);
    return Gradients{in[0], g.make("logits.scale_gradient", width, dtype, Category::gradients),
                     g.make("logits.shift_gradient", width, dtype, Category::gradients)};
  });
  return out;
}

/// With vectors beside it the output layer is the bare matrix first.
Tensor head_product(Eager& g, const Tensor& hidden, const LitgptHead& o) {
  const Leaf head = g.leaves[static_cast<std::size_t>(o.weight)];
  const Shape shape{B, K, Dim(o.options.vocab)};
  if (head.shift < 0) return litgpt_linear(g, hidden, o.weight, o.bias, TK, shape, "logits", Category::logits);
  Tensor plain = linear(g, hidden, o.weight, o.bias, TK, shape, "logits", Category::logits);
  return scaled_logits(g, std::move(plain), head);
}

/// What the last chunk's product unpacks, when the logits of those before it are there; its own are counted too.
void unpack_for_last_chunk(Eager& g, int weight, DType dtype) {
  const Leaf& head = g.leaves[static_cast<std::size_t>(weight)];
  if (head.packed != PackedLeaf::weight) return;
  Tensor whole = g.make("logits.dequantised", head.unpacked, g.packed.dequantised, Category::temporaries);
  Tensor cast = g.make("logits.dequantised_cast", head.unpacked, dtype, Category::temporaries);
}

/// Autocast keeps no copy of a frozen weight: every chunk's product makes one of its own, and they wait for backward. The product
/// of all rows has made the first.
Tensor with_other_chunks_copies(Eager& g, Tensor logits, const LitgptHead& o) {
  const Leaf& head = g.leaves[static_cast<std::size_t>(o.weight)];
  const std::int64_t others = ceil_div(o.sequence_tokens, kTokensOfChunk) - 1;
  if (!g.autocast || !o.split || head.trainable || others < 1) return logits;
  Tensor copies = g.make("logits.weight_copies", {Dim(others), head.shape[0], head.shape[1]}, DType::bf16, Category::weights);
  if (!g.will_record({&logits})) return logits;
  Saved saved = g.save(copies);
  Tensor out = logits.alias(logits.shape);
  g.record(out, "SplitBackward0", {&logits}, [saved](Gradients in) {
    (void)saved.get();
    return in;
  });
  return out;
}

/// The rows without each sequence's last token, cut into chunks of 128: the split's gradient is a cat of those of the chunks.
Tensor whole_loss(Eager& g, const Tensor& logits, const LitgptHead& o, Dim vocabulary) {
  Tensor shifted = slice(g, logits, logits.shape);
  Tensor rows = o.options.several_sequences ? copy(g, shifted, {TK, vocabulary}, "logits.rows") : shifted;
  const std::vector<Tensor> parts = split(g, rows, {rows.shape});
  return chunk_losses(g, parts[0], vocabulary, o.options.labels, true);
}

}  // namespace

Tensor litgpt_loss(Eager& g, Tensor hidden, const LitgptHead& o, Tensor& kept, const std::function<void()>& leave_model) {
  const Dim vocabulary(o.options.vocab);
  Tensor logits_before;
  if (o.before.there) logits_before = g.make("logits.before", {B, K, vocabulary}, DType::fp32, Category::logits);
  Tensor logits = head_product(g, hidden, o);
  unpack_for_last_chunk(g, o.weight, logits.dtype);
  logits = with_other_chunks_copies(g, std::move(logits), o);
  if (o.architecture.final_softcap && !o.split) {  // lora.py has no cap up to 0.5.3
    Tensor capped = capped_logits(g, logits);
    logits = std::move(capped);
  }
  hidden.reset();
  g.leave_autocast();  // Fabric's forward pass is over
  g.autocast = false;
  // autograd takes what was made last first: the losses of all chunks, their casts, and only then a chunk of the output layer
  if (o.split) leave_model();
  Tensor wide = to(g, logits, DType::fp32, "logits_fp32");
  logits.reset();
  kept = wide;
  o.before = {};
  logits_before.reset();
  if (o.split) {
    // the last chunk loses its last token, so its rows of several sequences are no block
    Tensor last =
        o.options.several_sequences ? g.make("logits.last_rows", {C, vocabulary}, wide.dtype, Category::logits) : Tensor();
    return chunk_losses(g, wide, vocabulary, o.options.labels, false);
  }
  return whole_loss(g, wide, o, vocabulary);
}

std::int64_t litgpt_chunk_rows(bool adapters, std::int64_t sequences) { return kTokensOfChunk * (adapters ? sequences : 1); }

}  // namespace oomplan
