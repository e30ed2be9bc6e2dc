#include "layers/ulysses.hpp"

#include <algorithm>
#include <vector>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

/// One all-to-all: contiguous chunks where the cut axis is not the outermost, received parts, and their concatenation. The
/// exchange works on [B, S, heads, d]; `heads_first`: the caller sees the result with heads in front.
Tensor exchange_buffers(Eager& g, const Shape& in, Shape out, bool heads_first, DType dtype, bool chunks_are_copies, bool flat,
                        const std::string& name) {
  Tensor chunks = chunks_are_copies ? g.make(name + ".chunks", in, dtype, Category::communication) : Tensor();
  Tensor stacked = flat ? g.make(name + ".stacked", in, dtype, Category::communication) : Tensor();
  Tensor received = g.make(name + ".received", in, dtype, Category::communication);
  const Shape by_token{out[0], heads_first ? out[2] : out[1], heads_first ? out[1] : out[2], out[3]};
  Tensor exchanged = g.make(name, by_token, dtype);
  exchanged.shape = std::move(out);
  return exchanged;
}

/// Gathers the tokens and scatters the heads (or back): its gradient is the opposite exchange.
Tensor all_to_all(Eager& g, const Tensor& x, Shape out_shape, bool to_tokens, bool flat, const std::string& name) {
  const Shape in_shape = x.shape;
  Tensor out = exchange_buffers(g, in_shape, out_shape, to_tokens, x.dtype, to_tokens, flat, name);
  g.record(out, "SeqAllToAllBackward", {&x}, [=, &g](Gradients in) {
    return Gradients{exchange_buffers(g, in[0].shape, in_shape, to_tokens, in[0].dtype, !to_tokens, false, name + "_backward")};
  });
  return out;
}

Gradients as_it_came(Gradients in) { return in; }

/// UlyssesSPAttentionHF._combine_local_sequences for one of q, k, v: chunks by rank, what is received, and its copy with heads in
/// front, unless there is but one of them. In backward the gradient of that copy is copied too.
Tensor deepspeed_to_heads(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const Shape in_shape = x.shape;
  const DType dtype = x.dtype;
  const bool several = out_shape[1].coefficient > 1;
  Tensor chunks = g.make(name + ".chunks", in_shape, dtype, Category::communication);
  g.record(chunks, "CloneBackward0", {&x}, as_it_came);
  x.reset();
  Tensor received = g.make(several ? name + ".received" : name, out_shape, dtype);
  g.record(received, "_DimZeroAllToAllBackward", {&chunks}, [=, &g](Gradients in) {
    Tensor copied = several ? g.make(name + "_backward.chunks", in[0].shape, in[0].dtype, Category::communication) : Tensor();
    return Gradients{g.make(name + "_backward", in_shape, in[0].dtype)};
  });
  chunks.reset();
  if (!several) return received;
  Tensor out = g.make(name, std::move(out_shape), dtype);
  g.record(out, "CloneBackward0", {&received}, as_it_came);
  return out;
}
/// _partition_global_sequence: what is received lies by rank; its copy by token.
Tensor deepspeed_to_tokens(Eager& g, const Tensor& x, Shape out_shape, const std::string& name) {
  const Shape in_shape = x.shape;
  Tensor received = g.make(name + ".received", out_shape, x.dtype, Category::communication);
  g.record(received, "_DimZeroAllToAllBackward", {&x}, [=, &g](Gradients in) {
    Tensor chunks = g.make(name + "_backward.chunks", in[0].shape, in[0].dtype, Category::communication);
    return Gradients{g.make(name + "_backward", in_shape, in[0].dtype)};
  });
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  g.record(out, "CloneBackward0", {&received}, as_it_came);
  return out;
}

/// deepspeedai/DeepSpeed 0.19.6, runtime/sequence_parallel/ulysses_sp.py (UlyssesSPAttentionHF.forward).
Tensor deepspeed_around(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t n, const Kernel& kernel) {
  const Dim width = q.shape[3], batch = q.shape[0], local = q.shape[2];
  const std::int64_t heads = q.shape[1].coefficient, kv = k.shape[1].coefficient, shared = std::max(kv, n);
  const Dim all = local * Dim(n);
  const auto keyed = [&](const Tensor& x, const std::string& name) {
    Tensor repeated = shared == kv ? x : ops::repeat_kv(g, x, {batch, shared, local, width}, name + "_repeated");
    return deepspeed_to_heads(g, std::move(repeated), {batch, shared / n, all, width}, name + "_exchanged");
  };
  // every rank's positions, each a tensor of its own, and their concatenation are names of the function
  std::vector<Tensor> parts;
  for (std::int64_t rank = 0; rank < n; ++rank)
    parts.push_back(g.make("positions.received", {Dim(1), local}, DType::int64, Category::communication));
  Tensor positions = g.make("positions.gathered", {Dim(1), all}, DType::int64, Category::communication);
  Tensor query = deepspeed_to_heads(g, q, {batch, heads / n, all, width}, "q_exchanged");
  Tensor keys = keyed(k, "k"), values = keyed(v, "v");
  Tensor out = kernel(query, keys, values, {batch, all, Dim(heads / n), width});
  return deepspeed_to_tokens(g, out, {batch, local, Dim(heads), width}, "attention_exchanged");
}

}  // namespace

Tensor exchange_around(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const KernelOptions& options,
                       const Kernel& kernel) {
  const std::int64_t n = options.ulysses;
  if (options.ulysses_deepspeed) return deepspeed_around(g, q, k, v, n, kernel);
  const bool flat = options.exchanges_flat;
  const Dim width = q.shape[3], batch = q.shape[0], local = q.shape[2];
  const std::int64_t heads = q.shape[1].coefficient, kv = k.shape[1].coefficient;
  const std::int64_t shared = std::max(kv, n);  // heads of k and v that are exchanged
  const Dim all = local * Dim(n);
  Tensor keys = shared == kv ? k : ops::repeat_kv(g, k, {batch, shared, local, width}, "k_repeated");
  Tensor values = shared == kv ? v : ops::repeat_kv(g, v, {batch, shared, local, width}, "v_repeated");
  Tensor query = all_to_all(g, q, {batch, heads / n, all, width}, true, flat, "q_exchanged");
  {
    Tensor exchanged = all_to_all(g, keys, {batch, shared / n, all, width}, true, flat, "k_exchanged");
    keys = std::move(exchanged);
  }
  {
    Tensor exchanged = all_to_all(g, values, {batch, shared / n, all, width}, true, flat, "v_exchanged");
    values = std::move(exchanged);
  }
  Tensor out = kernel(query, keys, values, {batch, all, Dim(heads / n), width});
  return all_to_all(g, out, {batch, local, Dim(heads), width}, false, flat, "attention_exchanged");
}

}  // namespace oomplan
