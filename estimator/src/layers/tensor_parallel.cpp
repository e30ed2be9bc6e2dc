#include "layers/tensor_parallel.hpp"

#include <utility>

namespace oomplan {
namespace {

constexpr Category kWire = Category::communication;

/// all_gather_tensor along the tokens: what arrives lies rank by rank. With one sequence that is the right order already, with
/// several a cat puts it in order (torch/distributed/_functional_collectives.py, 2.13).
Tensor gathered(Eager& g, const Shape& part, const Shape& whole, DType dtype, bool several, const std::string& name) {
  const Dim ranks(whole[1].coefficient / part[1].coefficient);
  const Shape by_rank{ranks * part[0], part[1], part[2]};
  if (several) {
    Tensor received = g.make(name + ".received", by_rank, dtype, kWire);
    return g.make(name, whole, dtype);
  }
  Tensor out = g.make(name, by_rank, dtype);
  out.shape = whole;
  return out;
}

/// reduce_scatter_tensor along the tokens: the parts are put behind one another first.
Tensor reduced(Eager& g, const Shape& whole, const Shape& part, DType dtype, const std::string& name) {
  Tensor chunks = g.make(name + ".chunks", whole, dtype, kWire);
  return std::move(g.kept(false, [&] { return Eager::Results{g.make(name, part, dtype)}; })[0]);
}

Shape with_tokens(Shape shape, Dim tokens) {
  shape[1] = tokens;
  return shape;
}

}  // namespace

Architecture part_of(const Architecture& a, std::int64_t ranks) {
  Architecture part = a;
  if (ranks == 1) return part;
  part.vocab = ceil_div(a.vocab, ranks);
  for (auto& run : part.runs) {
    run.layer.mixer.heads = ceil_div(run.layer.mixer.heads, ranks);
    run.layer.mixer.kv_heads = ceil_div(run.layer.mixer.kv_heads, ranks);
    run.layer.feed_forward.width = ceil_div(run.layer.feed_forward.width, ranks);
  }
  return part;
}

Tensor gather_tokens(Eager& g, const Tensor& x, const KernelOptions& options, const std::string& name) {
  if (options.tensor == 1) return x;
  const bool several = options.several_sequences;
  const Shape part = x.shape, whole = with_tokens(x.shape, Dim(options.tensor) * x.shape[1]);
  Tensor out = gathered(g, part, whole, x.dtype, several, name);
  g.record(out, "RedistributeBackward", {&x},
           [=, &g](Gradients in) { return Gradients{reduced(g, whole, part, in[0].dtype, name + "_backward")}; });
  return out;
}

Tensor reduce_tokens(Eager& g, Tensor x, const KernelOptions& options, const std::string& name) {
  if (options.tensor == 1) return x;
  const bool several = options.several_sequences;
  const Shape whole = x.shape, part = with_tokens(x.shape, Dim(x.shape[1].coefficient / options.tensor) * axis::S);
  Tensor out = reduced(g, whole, part, x.dtype, name);
  g.record(out, "RedistributeBackward", {&x},
           [=, &g](Gradients in) { return Gradients{gathered(g, part, whole, in[0].dtype, several, name + "_backward")}; });
  return out;
}

std::string unsupported_split(const FamilyCode& code, const Layer& layer, const KernelOptions& options) {
  if (options.tensor == 1) return {};
  if (!code.tensor_parallel) return "tensor parallelism";
  const Mixer& m = layer.mixer;
  const FeedForward& ff = layer.feed_forward;
  if (options.ulysses > 1) return "tensor parallelism together with Ulysses";
  if (options.adapters.rank > 0) return "tensor parallelism with LoRA";
  if (options.liger.any()) return "tensor parallelism with Liger's operators";
  if (options.autocast) return "tensor parallelism under autocast";
  if (options.padding_mask || options.kernels == Kernels::hf_eager) return "tensor parallelism with an attention mask";
  if (m.heads % options.tensor != 0 || m.kv_heads % options.tensor != 0)
    return "tensor parallelism that does not divide the attention heads and the key/value heads";
  if (layer.norm_place != NormPlace::pre || m.kind != MixerKind::attention || m.fused_qkv || m.sinks || m.out_bias ||
      (m.qk_norm != QkNorm::none && m.qk_norm != QkNorm::head) || ff.kind != FeedForwardKind::gated || ff.fused_gate_up ||
      ff.bias)
    return "tensor parallelism of this layer";
  return {};
}

}  // namespace oomplan
