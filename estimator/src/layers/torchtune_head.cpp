// torchtune's output layer and losses: TransformerDecoder.forward, CEWithChunkedOutputLoss.forward and the recipes' _loss_step,
// 0.4.0.
#include "layers/ops.hpp"
#include "layers/torchtune.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::C, axis::K, axis::TK;

/// Logits of every part are there before the first loss, in a list that goes behind the last one; each part's loss makes its own
/// fp32 copy, of which the log-probs stay.
Tensor chunked_loss(Eager& g, Tensor hidden, int weight, const HeadOptions& o) {
  const Shape rows{C, hidden.shape.back()}, wide{C, Dim(o.vocab)};
  std::vector<Tensor> logits;
  {
    const std::vector<Tensor> parts = split(g, hidden, std::vector<Shape>(static_cast<std::size_t>(kTorchtuneChunks), rows));
    for (const Tensor& part : parts) {
      Tensor block = o.several_sequences ? copy(g, part, rows, "hidden_rows") : part;
      logits.push_back(linear(g, std::move(block), weight, -1, C, wide, "logits", Category::logits));
    }
  }
  hidden.reset();
  Tensor labels = g.make("labels.shifted", {B, K}, DType::int64);
  std::vector<Tensor> targets;
  for (std::size_t i = 0; i < logits.size(); ++i)
    targets.push_back(o.several_sequences ? g.make("chunk.labels", {C}, DType::int64) : labels);
  Tensor total;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    Tensor full = to(g, logits[i], DType::fp32, "chunk.logits_fp32");
    Tensor loss = cross_entropy(g, full, targets[i]);
    // `total_loss` begins as the number 0
    total = i > 0 ? add(g, std::move(total), std::move(loss), "loss.sum") : add_scalar(g, std::move(loss), "loss.sum");
  }
  return scale(g, std::move(total), "loss.mean");
}

}  // namespace

Tensor torchtune_loss(Eager& g, Tensor hidden, int weight, const HeadOptions& o) {
  if (o.head == LossHead::torchtune_chunked) return chunked_loss(g, std::move(hidden), weight, o);
  Tensor logits = linear(g, hidden, weight, -1, TK, {B, K, Dim(o.vocab)}, "logits", Category::logits);
  Tensor wide = to(g, std::move(logits), DType::fp32, "logits_fp32");
  hidden.reset();
  Tensor labels = g.make("labels.shifted", {B, K}, DType::int64);
  return cross_entropy(g, wide, labels);
}

}  // namespace oomplan
