#include "layers/mamba2.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/state_parts.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// One operand of an einsum: as a matrix for each head it is a copy, unless it lies so already.
struct Operand {
  const Tensor& tensor;
  bool copied;
  const char* name;
};

/// torch.einsum of two operands: one batched product. `copied_back`: its gradient does not lie as the product does.
Tensor einsum(Eager& g, const Operand& left, const Operand& right, Shape out, bool copied_back, const std::string& name) {
  const auto given = [&](const Operand& o, const char* side) {  // autocast casts einsum's operands, not those of its product
    return g.autocast ? to(g, o.tensor, DType::bf16, name + side) : o.tensor;
  };
  const Tensor first = given(left, ".left_bf16"), second = given(right, ".right_bf16");
  const auto matrix = [&](const Operand& o, const Tensor& x) { return o.copied ? copy(g, x, x.shape, o.name) : x; };
  Tensor product;
  {
    Tensor a = matrix(left, first), b = matrix(right, second);
    product = matmul(g, std::move(a), std::move(b), std::move(out), name);
  }
  return copied_back ? view_copied_back(g, product, product.shape, name + ".gradient_matrix") : product;
}

/// Mamba2Sizes of one mixer.
struct Mamba2Sizes {
  Dim heads, width, groups, states, chunks, length, padded;
  bool several, many, pads;  ///< sequences, chunks, tokens at the end
  Mamba2Sizes(const Mixer& m, const KernelOptions& o, std::int64_t count)
      : heads(m.linear_value_heads),
        width(m.linear_value_dim),
        groups(m.groups),
        states(m.state_size),
        chunks(count),
        length(m.chunk),
        padded(count * m.chunk),
        several(o.several_sequences),
        many(count > 1),
        pads(count * m.chunk != o.scan_tokens) {}
  /// Heads of all chunks of all sequences are no axis as they lie.
  bool apart() const { return several || many; }
  /// What the convolution gave lies by channel, as does what is padded of it: the heads of one chunk are an axis.
  bool hidden_apart() const { return many; }
};

/// mamba2_chunk_scan: every name lives until it returns.
struct ChunkScan {
  Eager& g;
  const Mamba2Sizes n;
  Tensor hidden, step, rate, input, output;  ///< hidden_states, dt, A, B, C
  Tensor skipped = {}, cumulated = {}, decay = {}, scores = {}, mixed = {}, diagonal = {}, decay_states = {}, decayed = {},
         previous = {}, states = {}, decay_chunk = {}, new_states = {}, decay_out = {}, read = {}, between = {};

  Shape by_token(Dim width) const { return {B, n.padded, n.heads, width}; }
  Shape by_chunk(Dim width) const { return {B, n.chunks, n.length, n.heads, width}; }
  Shape rates() const { return {B, n.heads, n.chunks, n.length}; }

  void discretise(int dt_bias, int d) {
    {
      Tensor bias = to(g, g.leaf(dt_bias), step.dtype, "dt_bias_cast");
      Tensor next = add(g, step, std::move(bias), "dt.shifted");
      step = std::move(next);
      next = softplus(g, step, "dt.softplus");
      step = std::move(next);
      next = clamp(g, step, 2, "dt.clamped");
      step = std::move(next);
    }
    hidden = to(g, Tensor(hidden), DType::fp32, "hidden_fp32");
    for (Tensor* part : {&input, &output}) {
      Tensor wide = to(g, *part, DType::fp32, "group_fp32");
      const Shape all{B, S, n.heads, n.states};
      *part = n.heads == n.groups ? copy(g, std::move(wide), all, "group_copied")
                                  : repeat_interleave(g, std::move(wide), all, "group_repeated");
    }
    {
      Tensor padded = pad(g, hidden, by_token(n.width), "hidden_padded");
      skipped = outer(g, view(g.leaf(d), {n.heads, Dim(1)}), std::move(padded), by_token(n.width), "skipped");
    }
    {
      Tensor wide = to(g, view(step, {B, S, n.heads, Dim(1)}), DType::fp32, "dt_fp32");
      Tensor next = outer(g, hidden, std::move(wide), hidden.shape, "hidden_scaled");
      hidden = std::move(next);
    }
    Tensor wide = to(g, step, DType::fp32, "dt_fp32");
    Tensor next = outer(g, rate, std::move(wide), {B, S, n.heads}, "A_scaled");
    rate = std::move(next);
  }

  /// reshape_into_chunks of all four; the gradients of the einsums' operands lie by head.
  void cut() {
    Tensor h = pad(g, hidden, by_token(n.width), "hidden_chunks");
    h = chunked(h, n.width, "hidden");
    Tensor r = view(pad(g, rate, {B, n.padded, n.heads}, "A_chunks"), rates());
    Tensor i = pad(g, input, by_token(n.states), "B_chunks");
    i = chunked(i, n.states, "B");
    Tensor o = pad(g, output, by_token(n.states), "C_chunks");
    o = chunked(o, n.states, "C");
    hidden = std::move(h);
    rate = std::move(r);
    input = std::move(i);
    output = std::move(o);
  }
  Tensor chunked(const Tensor& x, Dim width, const std::string& name) const {
    return n.many ? view_copied_back(g, x, by_chunk(width), name + ".gradient_rows") : view(x, by_chunk(width));
  }

  /// segment_sum: x expanded, masked, summed up, masked.
  Tensor segment_sum(const Tensor& x, Dim length) const {
    Shape square = x.shape;
    square.push_back(length);
    Tensor expanded = x.alias(square);
    const Shape column = x.shape;
    g.record(expanded, "ExpandBackward0", {&x},
             [&gg = g, column](Gradients in) { return Gradients{gradient(gg, "expand_backward", column, in[0].dtype)}; });
    Tensor mask = triangle(length);
    Tensor masked;
    {
      Tensor outside = g.make("segment.outside", {length, length}, DType::boolean);
      masked = masked_fill(g, expanded, outside, "segment.masked");
    }
    Tensor sum = cumsum(g, masked, "segment.sum");
    {
      Tensor next = triangle(length);
      mask = std::move(next);
    }
    Tensor outside = g.make("segment.outside", {length, length}, DType::boolean);
    return masked_fill(g, sum, outside, "segment");
  }
  Tensor triangle(Dim length) const {
    Tensor ones = g.make("segment.ones", {length, length}, DType::boolean);
    return g.make("segment.mask", {length, length}, DType::boolean);
  }

  /// x of every position of a chunk, times a factor that lies by head.
  Tensor times(const Tensor& x, const Tensor& factor, const std::string& name) const {
    return outer(g, x, view(factor, {B, n.chunks, n.length, n.heads, Dim(1)}), x.shape, name);
  }

  void within_chunks() {
    cumulated = cumsum(g, rate, "A_cumulated");
    {
      Tensor segments = segment_sum(rate, n.length);
      decay = exp(g, std::move(segments), "L");
    }
    const Shape square{B, n.chunks, n.heads, n.length, n.length};
    scores = einsum(g, {output, n.apart(), "C_by_head"}, {input, n.apart(), "B_by_head"}, square, false, "G");
    mixed = mul(g, scores, view(decay, square), "M");
    diagonal =
        einsum(g, {mixed, false, ""}, {hidden, n.hidden_apart(), "hidden_by_head"}, by_chunk(n.width), n.apart(), "Y_diag");
    {
      Tensor last = slice(g, cumulated, {B, n.heads, n.chunks, Dim(1)});
      Tensor rest = difference(g, std::move(last), cumulated, rates(), "decay_rest");
      decay_states = exp(g, std::move(rest), "decay_states");
    }
    decayed = times(input, decay_states, "B_decayed");
    states = einsum(g, {hidden, n.hidden_apart(), "hidden_by_state"}, {decayed, n.apart(), "B_decayed_by_head"},
                    {B, n.chunks, n.heads, n.width, n.states}, n.apart(), "states");
  }

  void between_chunks() {
    const Dim all(n.chunks.coefficient + 1);
    previous = g.make("states.zeros", {B, Dim(1), n.heads, n.width, n.states}, states.dtype);
    Tensor joined = cat(g, {previous, states}, {B, all, n.heads, n.width, n.states}, "states.joined");
    states = std::move(joined);
    {
      Tensor ends = slice(g, cumulated, {B, n.heads, n.chunks});
      Tensor padded = pad(g, std::move(ends), {B, n.heads, all}, "decay_chunk.padded");
      Tensor segments = segment_sum(padded, all);
      padded.reset();
      decay_chunk = exp(g, std::move(segments), "decay_chunk");
    }
    new_states = einsum(g, {decay_chunk, false, ""}, {states, n.several, "states_by_head"}, {B, all, n.heads, n.width, n.states},
                        n.several, "new_states");
    states = slice(g, new_states, {B, n.chunks, n.heads, n.width, n.states});
  }

  Tensor finish() {
    decay_out = exp(g, cumulated, "state_decay_out");
    read =
        einsum(g, {output, n.apart(), "C_by_state"}, {states, n.many, "states_read"}, by_chunk(n.width), n.apart(), "C_states");
    between = times(read, decay_out, "Y_off");
    Tensor out;
    {
      Tensor sum = add(g, diagonal, between, "Y");
      out = copy(g, std::move(sum), by_token(n.width), "Y_contiguous");
    }
    Tensor with_skip = add(g, out, skipped, "Y_with_skip");
    out = std::move(with_skip);
    if (n.pads) out = slice(g, out, {B, S, n.heads, n.width});
    return out;
  }

  Tensor run(int dt_bias, int d) {
    discretise(dt_bias, d);
    cut();
    within_chunks();
    between_chunks();
    return finish();
  }
};

/// MambaRMSNormGated: gated, then normed by group.
Tensor gated_norm(Eager& g, const Tensor& x, const Tensor& gate, int weight, std::int64_t groups) {
  const DType dtype = x.dtype;
  Tensor hidden = to(g, x, DType::fp32, "norm.fp32");
  {
    Tensor wide = to(g, gate, DType::fp32, "norm.gate_fp32");
    Tensor open = activation(g, std::move(wide), "norm.gate_act");
    Tensor next = mul(g, hidden, std::move(open), "norm.gated");
    hidden = std::move(next);
  }
  const Dim width = g.leaves[static_cast<std::size_t>(weight)].shape[0];
  Tensor by_group = view(hidden, {B, S, Dim(groups), Dim(width.coefficient / groups)});
  Tensor variance;
  {
    Tensor squares = pow2(g, by_group);
    variance = mean_last(g, std::move(squares));
  }
  {
    Tensor shifted = add_scalar(g, variance, "norm.variance");
    Tensor root = rsqrt(g, std::move(shifted), "norm.rstd");
    Tensor next = mul(g, by_group, std::move(root), "norm.normed");
    by_group = std::move(next);
  }
  hidden = view(by_group, {B, S, width});
  Tensor cast = to(g, hidden, dtype, "norm.cast");
  return mul(g, g.leaf(weight), std::move(cast), "norm.output");
}

}  // namespace

Tensor run_mamba2(Eager& g, const FamilyCode&, const Mixer& m, std::int64_t hidden, const LayerLeaves& leaves,
                  const KernelOptions& options, const Tensor& x) {
  const StateLeaves& w = leaves.state;
  const std::int64_t chunks = (options.scan_tokens + m.chunk - 1) / m.chunk;
  const Mamba2Sizes n(m, options, chunks);
  const std::int64_t states = m.groups * m.state_size;
  const Dim inner = m.inner, group = states, channels = m.inner + 2 * states;
  const Dim all = m.inner + channels.coefficient + m.linear_value_heads;
  const Tensor projected = linear(g, x, w.in, w.in_bias, T, {B, S, all}, "in_proj");
  const DType dtype = projected.dtype;
  const Tensor rate = negative_rate(g, w.a_log);
  const std::vector<Tensor> parts = split(g, projected, {{B, S, inner}, {B, S, channels}, {B, S, n.heads}});
  const Tensor convolved = causal_conv(g, parts[1], {w.conv, w.conv_bias, channels, m.conv_kernel, options.scan_tokens});
  const std::vector<Tensor> given = split(g, convolved, {{B, S, inner}, {B, S, group}, {B, S, group}});
  Tensor result;
  {
    ChunkScan scan{.g = g,
                   .n = n,
                   .hidden = view(given[0], {B, S, n.heads, n.width}),
                   .step = parts[2],
                   .rate = rate,
                   .input = view(given[1], {B, S, n.groups, n.states}),
                   .output = view(given[2], {B, S, n.groups, n.states})};
    result = scan.run(w.dt_bias, w.d);
  }
  Tensor scanned = view(result, {B, S, inner});
  Tensor normed = gated_norm(g, scanned, parts[0], w.norm, m.groups);
  scanned = std::move(normed);
  Tensor cast = to(g, scanned, dtype, "out_proj.input");
  return linear(g, std::move(cast), w.out, w.out_bias, T, {B, S, Dim(hidden)}, "out_proj");
}

}  // namespace oomplan
