#include "layers/lightning.hpp"

#include <algorithm>

#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// The loop over blocks of tokens; names of its last turn live until the function returns.
struct Blocks {
  Eager& g;
  const Dim heads, width;
  const bool several;
  const Tensor &query, &key, &value;
  Tensor state, intra = {}, from_block = {}, from_state = {}, current = {}, next = {};
  std::vector<Tensor> outputs = {};

  Shape rows(Dim tokens) const { return {B, heads, tokens, width}; }
  /// A slice of all tokens is the tensor itself.
  Tensor block(const Tensor& x, std::int64_t tokens, bool whole) const { return whole ? x : slice(g, x, rows(Dim(tokens))); }
  /// Tensors that lie by token are no batch of matrices where there are several sequences.
  Tensor folded(const Tensor& x, const char* name) const { return several ? copy(g, x, x.shape, name) : x; }

  void run(std::int64_t tokens, std::int64_t length) {
    g.each_turn((tokens + length - 1) / length,
                [&](std::int64_t i) { turn(std::min(length, tokens - i * length), length >= tokens); });
  }
  void turn(std::int64_t tokens, bool whole) {
    const Tensor q = block(query, tokens, whole), k = block(key, tokens, whole), v = block(value, tokens, whole);
    {
      Tensor left = folded(q, "lightning.q"), right = folded(k, "lightning.k");
      Tensor product = matmul(g, std::move(left), std::move(right), {B, heads, Dim(tokens), Dim(tokens)}, "lightning.intra");
      intra = std::move(product);
    }
    {
      Tensor decayed = scale(g, intra, "lightning.intra_decayed"), right = folded(v, "lightning.v");
      Tensor product = matmul(g, std::move(decayed), std::move(right), rows(Dim(tokens)), "lightning.from_block");
      from_block = std::move(product);
    }
    {
      Tensor decayed = scale(g, q, "lightning.q_decayed");
      Tensor left = folded(decayed, "lightning.q_decayed_rows");
      decayed.reset();
      Tensor product = matmul(g, std::move(left), state, rows(Dim(tokens)), "lightning.from_state");
      from_state = std::move(product);
    }
    Tensor sum = add(g, from_state, from_block, "lightning.block");
    current = std::move(sum);
    outputs.push_back(current);
    {
      Tensor decayed = scale(g, k, "lightning.k_decayed");
      Tensor left = folded(decayed, "lightning.k_decayed_rows");
      decayed.reset();
      Tensor right = folded(v, "lightning.v");
      Tensor product = matmul(g, std::move(left), std::move(right), {B, heads, width, width}, "lightning.next");
      next = std::move(product);
    }
    Tensor decayed = scale(g, state, "lightning.state_decayed");
    sum = add(g, std::move(decayed), next, "lightning.state");
    state = std::move(sum);
  }
};

}  // namespace

Attended run_lightning(Eager& g, const Mixer& m, std::int64_t hidden, const LayerLeaves& w, const KernelOptions& options,
                       const Tensor& x) {
  const Dim heads = m.heads, width = m.head_dim, all = m.q_width();
  Tensor fused = linear(g, x, w.qkv, -1, T, {B, S, Dim(3 * m.q_width())}, "qkv");
  const Tensor states = activation(g, std::move(fused), "qkv.act");
  const Shape part{B, S, heads, width}, by_head{B, heads, S, width};
  const std::vector<Tensor> parts = split(g, states, {part, part, part});
  const Tensor query = view(parts[0], by_head), key = view(parts[1], by_head), value = view(parts[2], by_head);
  Blocks blocks{.g = g,
                .heads = heads,
                .width = width,
                .several = options.several_sequences,
                .query = query,
                .key = key,
                .value = value,
                .state = g.make("lightning.zeros", {B, heads, width, width}, value.dtype)};
  blocks.run(options.scan_tokens, m.chunk);
  Tensor out = cat(g, std::move(blocks.outputs), by_head, "lightning.joined");
  Tensor rows = copy(g, out, {B, S, all}, "lightning.rows");
  out = std::move(rows);
  Tensor normed = run_norm(g, NormCode::rms, out, {w.state.norm, -1}, "norm");
  out = std::move(normed);
  {
    Tensor gate = linear(g, x, w.attention_gate, -1, T, {B, S, all}, "gate");
    Tensor open = sigmoid(g, std::move(gate), "gate.sigmoid");
    Tensor gated = mul(g, std::move(open), out, "gated");
    out = std::move(gated);
  }
  Tensor projected = linear(g, out, w.o, -1, T, {B, S, Dim(hidden)}, "o");
  return {std::move(projected), blocks.state, {}};
}

Bytes lightning_buffers(const Architecture& a, DType dtype) {
  Bytes all = 0;
  for (const LayerRun& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    if (m.kind != MixerKind::lightning) continue;
    all += run.count * bytes_of(m.heads * (m.chunk * m.chunk + 2 * m.chunk + 1), dtype);  // diagonal, query's, key's, the rate
  }
  return all;
}

}  // namespace oomplan
