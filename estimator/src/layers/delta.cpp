#include "layers/delta.hpp"

#include <algorithm>
#include <array>

#include "layers/delta_rule.hpp"
#include "layers/fla.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/state_parts.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// What the projections give. `wide` and `narrow` are names for in_proj_qkvz's and in_proj_ba's results.
struct Projections {
  Tensor wide, narrow, mixed, query, key, value, z, b, a;
};

/// A reshape that copies, where `copies`.
Tensor reshaped(Eager& g, const Tensor& x, Shape as, bool copies, const std::string& name) {
  return copies ? copy(g, x, std::move(as), name) : view(x, std::move(as));
}

/// A part of a row, seen by heads. Its gradient comes with heads in front of tokens and is copied to be rows again.
Tensor by_heads(Eager& g, const Tensor& x, Shape as, bool copied_back, const std::string& name) {
  return copied_back ? view_copied_back(g, x, std::move(as), name + ".gradient_rows") : view(x, std::move(as));
}

/// Qwen3-Next: two projections, ordered by key heads. Parts of one row lie apart where there are several key heads.
Projections ordered_by_head(Eager& g, const DeltaSizes& n, const LayerLeaves& w, const Tensor& x) {
  Projections out;
  const Dim wide(2 * n.keys.coefficient + 2 * n.values.coefficient), narrow(2 * n.value_heads.coefficient);
  out.wide = linear(g, x, w.state.in, -1, B * n.tokens, {B, n.tokens, wide}, "qkvz");
  out.narrow = linear(g, x, w.state.in_ba, -1, B * n.tokens, {B, n.tokens, narrow}, "ba");
  const Shape keys{B, n.tokens, n.keys}, values{B, n.tokens, n.values}, heads{B, n.tokens, n.value_heads};
  const bool apart = n.several_key_heads && n.grouped;
  {
    std::vector<Tensor> parts = split(g, out.wide, {keys, keys, values, values});
    std::vector<Tensor> rates = split(g, out.narrow, {heads, heads});
    out.value = reshaped(g, parts[2], values, apart, "v_copied");
    out.z = reshaped(g, parts[3], values, apart, "z_copied");
    out.b = reshaped(g, rates[0], heads, apart, "b_copied");
    out.a = reshaped(g, rates[1], heads, apart, "a_copied");
    out.query = reshaped(g, parts[0], keys, n.several_key_heads, "q_copied");
    out.key = reshaped(g, parts[1], keys, n.several_key_heads, "k_copied");
  }
  Tensor value = reshaped(g, out.value, values, n.several_key_heads && !n.grouped, "v_copied");
  out.value = std::move(value);
  out.mixed = cat(g, {out.query, out.key, out.value}, {B, n.tokens, n.both()}, "qkv");
  return out;
}

/// Qwen3.5: a projection each.
Projections apart(Eager& g, const DeltaSizes& n, const LayerLeaves& w, const Tensor& x) {
  Projections out;
  out.mixed = linear(g, x, w.state.in, -1, B * n.tokens, {B, n.tokens, n.both()}, "qkv");
  out.z = linear(g, x, w.state.in_z, -1, B * n.tokens, {B, n.tokens, n.values}, "z");
  out.b = linear(g, x, w.state.in_b, -1, B * n.tokens, {B, n.tokens, n.value_heads}, "b");
  out.a = linear(g, x, w.state.in_a, -1, B * n.tokens, {B, n.tokens, n.value_heads}, "a");
  return out;
}

/// -A_log.float().exp() * softplus(a.float() + dt_bias)
Tensor log_decay(Eager& g, const LayerLeaves& w, const Tensor& a) {
  Tensor rate = negative_rate(g, w.state.a_log);
  Tensor soft;
  {
    Tensor wide = to(g, a, DType::fp32, "a_fp32");
    Tensor shifted = add(g, std::move(wide), g.leaf(w.state.dt_bias), "a_shifted");
    soft = softplus(g, std::move(shifted), "a_softplus");
  }
  return mul(g, std::move(rate), std::move(soft), "log_decay");
}

/// x * rsqrt((x * x).sum(dim=-1) + eps)
Tensor l2norm(Eager& g, const Tensor& x, const std::string& name) {
  Tensor inverse;
  {
    Tensor squares = mul(g, x, x, name + ".squares");
    Tensor total = sum(g, std::move(squares), with_last(x.shape, 1), name + ".total");
    Tensor shifted = add_scalar(g, std::move(total), name + ".shifted");
    inverse = rsqrt(g, std::move(shifted), name + ".inverse");
  }
  return mul(g, x, inverse, name);
}

/// torch_chunk_gated_delta_rule of transformers 5.23, one name a line.
struct ChunkRule {
  Eager& g;
  const DeltaSizes& n;
  const std::int64_t chunks;
  const Dim padded{chunks * kDeltaChunk};
  const bool whole;   ///< no token is padded
  const DType dtype;  ///< of the result
  Tensor query, key, value, decay, beta;
  Tensor corrected = {}, between = {};  ///< names of the scan's last turn live until the function returns

  Shape by_token(Dim width) const { return {B, n.value_heads, S, width}; }
  Shape by_chunk(Dim width) const { return {B, n.value_heads, Dim(chunks), Dim(kDeltaChunk), width}; }
  Shape rates() const { return {B, n.value_heads, Dim(chunks), Dim(kDeltaChunk)}; }
  Shape one_chunk(Dim width) const { return {B, n.value_heads, Dim(kDeltaChunk), width}; }

  /// fp32, heads in front of tokens, queries and keys normed, for all heads, padded to whole chunks.
  void prepare() {
    if (n.grouped) {
      const Shape repeated{B, S, n.value_heads, n.key_dim};
      Tensor wide = repeat_interleave(g, query, repeated, "q_repeated");
      query = std::move(wide);
      wide = repeat_interleave(g, key, repeated, "k_repeated");
      key = std::move(wide);
    }
    {
      std::array<Tensor, 5> wide;
      wide[0] = to(g, view(query, by_token(n.key_dim)), DType::fp32, "q_fp32");
      wide[1] = to(g, view(key, by_token(n.key_dim)), DType::fp32, "k_fp32");
      wide[2] = to(g, view(value, by_token(n.value_dim)), DType::fp32, "v_fp32");
      wide[3] = to(g, view(beta, {B, n.value_heads, S}), DType::fp32, "beta_fp32");
      wide[4] = view(decay, {B, n.value_heads, S});
      query = wide[0];
      key = wide[1];
      value = wide[2];
      beta = wide[3];
      decay = wide[4];
    }
    Tensor next = l2norm(g, query, "q_normed");
    query = std::move(next);
    next = l2norm(g, key, "k_normed");
    key = std::move(next);
    next = scale(g, query, "q_scaled");
    query = std::move(next);
    pad_all();
  }

  void pad_all() {
    {
      Tensor q = pad(g, query, {B, n.value_heads, padded, n.key_dim}, "q_padded");
      Tensor k = pad(g, key, {B, n.value_heads, padded, n.key_dim}, "k_padded");
      Tensor v = pad(g, value, {B, n.value_heads, padded, n.value_dim}, "v_padded");
      query = std::move(q);
      key = std::move(k);
      value = std::move(v);
    }
    Tensor rate = pad(g, beta, {B, n.value_heads, padded}, "beta_padded");
    Tensor log = pad(g, decay, {B, n.value_heads, padded}, "decay_padded");
    beta = std::move(rate);
    decay = std::move(log);
  }

  Tensor in_chunks(const Tensor& x, Dim width, const std::string& name) const {
    return chunks > 1 ? view_copied_back(g, x, by_chunk(width), name + ".gradient_rows") : view(x, by_chunk(width));
  }

  /// exp(cum_i - cum_j) for all pairs of a chunk, zero above the diagonal. `mask` is a name of the function.
  Tensor pairs(const Tensor& cumulated, const Tensor& mask) const {
    Shape column = rates(), row = rates();
    column.emplace_back(1);
    row.insert(row.end() - 1, Dim(1));
    Tensor out = difference(g, view(cumulated, column), view(cumulated, row), by_chunk(kDeltaChunk), "pairs.difference");
    Tensor filled = masked_fill(g, out, mask, "pairs.masked");
    out = std::move(filled);
    return exp(g, out, "pairs.decay");
  }

  /// x * exp(cumulated)[..., None]
  Tensor decayed(const Tensor& x, const Tensor& exponent, const std::string& name) const {
    Tensor factor = exp(g, exponent, name + ".factor");
    Shape column = rates();
    column.emplace_back(1);
    return outer(g, x, view(std::move(factor), column), x.shape, name);
  }

  Tensor run() {
    prepare();
    Tensor v_beta = outer(g, value, view(beta, {B, n.value_heads, padded, Dim(1)}), value.shape, "v_beta");
    Tensor k_beta = outer(g, key, view(beta, {B, n.value_heads, padded, Dim(1)}), key.shape, "k_beta");
    query = view(std::move(query), by_chunk(n.key_dim));
    key = view(std::move(key), by_chunk(n.key_dim));
    // the solver's gradients lie column by column: those of several chunks are copied
    k_beta = in_chunks(k_beta, n.key_dim, "k_beta");
    v_beta = in_chunks(v_beta, n.value_dim, "v_beta");
    decay = view(std::move(decay), rates());
    Tensor mask;
    {
      Tensor ones = g.make("chunk.ones", {Dim(kDeltaChunk), Dim(kDeltaChunk)}, DType::boolean);
      mask = g.make("chunk.mask", {Dim(kDeltaChunk), Dim(kDeltaChunk)}, DType::boolean);
    }
    const Tensor cumulated = cumsum(g, decay, "decay_cumulated");
    const Tensor pairwise = pairs(cumulated, mask);
    Tensor system, within;
    {
      const Shape flat{B * n.value_heads * Dim(chunks), Dim(kDeltaChunk), Dim(kDeltaChunk)};
      Tensor scores = view(delta_product(g, k_beta, key, flat, "system.scores"), by_chunk(kDeltaChunk));
      system = mul(g, std::move(scores), pairwise, "system");
      scores = view(delta_product(g, query, key, flat, "within.scores"), by_chunk(kDeltaChunk));
      within = mul(g, std::move(scores), pairwise, "within");
    }
    const Tensor decayed_k_beta = decayed(k_beta, cumulated, "k_beta_decayed");
    const Tensor new_values = solve_triangular(g, system, v_beta, "new_values");
    const Tensor k_decayed = solve_triangular(g, system, decayed_k_beta, "k_cumulated");
    Tensor state = g.make("state", {B, n.value_heads, n.key_dim, n.value_dim}, DType::fp32);
    Tensor out = g.make("core", by_chunk(n.value_dim), DType::fp32);
    Tensor next = decayed(query, cumulated, "q_decayed");
    query = std::move(next);
    {
      Tensor last = slice(g, cumulated, {B, n.value_heads, Dim(chunks), Dim(1)});
      Tensor rest = difference(g, std::move(last), cumulated, rates(), "rest");
      next = decayed(key, rest, "k_decayed");
    }
    key = std::move(next);
    Tensor last = slice(g, cumulated, {B, n.value_heads, Dim(chunks)});
    const Tensor chunk_decay = exp(g, std::move(last), "chunk_decay");
    scan(out, std::move(state), new_values, k_decayed, within, chunk_decay);
    return finish(std::move(out));
  }

  void scan(Tensor& out, Tensor state, const Tensor& new_values, const Tensor& k_decayed, const Tensor& within,
            const Tensor& chunk_decay) {
    const Shape state_shape = state.shape, rows = one_chunk(n.value_dim);
    g.each_turn(chunks, [&](std::int64_t) {
      {
        Tensor fresh = slice(g, new_values, rows), keys = slice(g, k_decayed, one_chunk(n.key_dim));
        Tensor known = delta_product(g, std::move(keys), state, rows, "scan.known");
        Tensor difference = sub(g, std::move(fresh), std::move(known), "scan.v_new");
        corrected = std::move(difference);
      }
      {
        Tensor read = delta_product(g, slice(g, query, one_chunk(n.key_dim)), state, rows, "scan.between");
        between = std::move(read);
      }
      {
        Tensor inside = delta_product(g, slice(g, within, one_chunk(kDeltaChunk)), corrected, rows, "scan.within");
        Tensor both = add(g, between, std::move(inside), "scan.sum");
        Tensor filled = copy_into(g, out, both, rows);
        out = std::move(filled);
      }
      Tensor factor = slice(g, chunk_decay, {B, n.value_heads, Dim(1), Dim(1)});
      Tensor old = outer(g, state, std::move(factor), state_shape, "scan.state_decayed");
      Tensor update = delta_product(g, slice(g, key, one_chunk(n.key_dim)), corrected, state_shape, "scan.update");
      Tensor sum = add(g, std::move(old), std::move(update), "scan.state");
      state = std::move(sum);
    });
  }

  /// The solver's results lie column by column, and so does what is made like them: the reshape of several chunks
  /// copies.
  Tensor finish(Tensor out) const {
    Tensor flat = reshaped(g, out, {B, n.value_heads, padded, n.value_dim}, chunks > 1, "core.flat");
    out = std::move(flat);
    if (!whole) out = slice(g, out, by_token(n.value_dim));
    return to(g, view(std::move(out), {B, S, n.value_heads, n.value_dim}), dtype, "core.cast");
  }
};

/// Qwen3NextRMSNormGated.
Tensor gated_norm(Eager& g, const Tensor& x, const Tensor& gate, int weight) {
  const DType dtype = x.dtype;
  Tensor hidden = to(g, x, DType::fp32, "norm.fp32");
  Tensor variance;
  {
    Tensor squares = pow2(g, hidden);
    variance = mean_last(g, std::move(squares));
  }
  {
    Tensor shifted = add_scalar(g, variance, "norm.variance");
    Tensor root = rsqrt(g, std::move(shifted), "norm.rstd");
    Tensor next = mul(g, hidden, std::move(root), "norm.normed_fp32");
    hidden = std::move(next);
  }
  {
    Tensor cast = to(g, hidden, dtype, "norm.normed");
    Tensor next = mul(g, g.leaf(weight), std::move(cast), "norm.weighted");
    hidden = std::move(next);
  }
  {
    Tensor wide = to(g, gate, DType::fp32, "norm.gate_fp32");
    Tensor open = activation(g, std::move(wide), "norm.gate_act");
    Tensor next = mul(g, hidden, std::move(open), "norm.gated");
    hidden = std::move(next);
  }
  return to(g, hidden, dtype, "norm.output");
}

/// That share a row and hand on what the next one begins with.
std::int64_t ranks_of_row(const KernelOptions& options) { return options.delta.told_nothing ? 1 : options.ulysses; }

/// Tokens of the sequences that have some here; none: the row is one sequence. Of the ranks that share a row (get_cp_cu_seqlens
/// of fla/ops/cp/context.py) it is the one whose sequences begin most chunks.
std::vector<std::int64_t> lengths_of(const KernelOptions& options) {
  std::vector<std::int64_t> fullest;
  const std::int64_t each = options.delta.sequence, part = options.scan_tokens;
  if (each == 0) return fullest;
  for (std::int64_t begin = 0; begin < part * ranks_of_row(options); begin += part) {
    std::vector<std::int64_t> out;
    for (std::int64_t at = begin; at < begin + part;) {
      const std::int64_t end = std::min(begin + part, (at / each + 1) * each);
      out.push_back(end - at);
      at = end;
    }
    if (fullest.empty() || fla::chunks_of(part, out) > fla::chunks_of(part, fullest)) fullest = std::move(out);
  }
  return fullest;
}

/// Ulysses: the last tokens of the rank before stand in front, as zeros where another sequence begins here
/// (verl/models/transformers/qwen3_5.py _prepend_cp_conv_prefix, 0.9 and 0.10). By channel.
Tensor with_prefix(Eager& g, const Mixer& m, const DeltaSizes& n, const KernelOptions& options, const Tensor& x) {
  const Shape few{B, n.both(), Dim(m.conv_kernel - 1)};
  const Tensor tails = slice(g, x, few);
  const auto exchange = [&g, few, ranks = ranks_of_row(options), dtype = x.dtype](const std::string& name) {
    Tensor sent = g.make(name + ".sent", few, dtype, Category::communication);
    Tensor gathered = g.make(name + ".gathered", {Dim(ranks), few[0], few[1], few[2]}, dtype, Category::communication);
    return g.make(name, few, dtype);
  };
  Tensor prefix = exchange("conv.prefix");
  g.record(prefix, "_ConvPrefixExchangeBackward", {&tails},
           [exchange](const Gradients&) { return Gradients{exchange("conv.prefix_backward")}; });
  const Tensor cleared = copy(g, prefix, few, "conv.prefix_cleared");
  const Dim all(options.scan_tokens + m.conv_kernel - 1);
  return cat(g, {cleared, view(x, {B, n.both(), S})}, {B, n.both(), all}, "conv.prefixed");
}

/// Queries, keys and values behind the convolution. causal-conv1d leaves them by token, and is told whose every token is.
/// `given`: names of verl's forward pass for what went in.
struct Convolution {
  Eager& g;
  const Mixer& m;
  const DeltaSizes& n;
  const KernelOptions& options;
  const int weight;
  const std::int64_t before = ranks_of_row(options) > 1 ? m.conv_kernel - 1 : 0;

  Tensor by_token(const Tensor& x, bool told, Tensor& given) const {
    const Dim tokens(options.scan_tokens + before);
    given = options.delta.patched ? x : Tensor();
    if (before > 0) {
      const Tensor joined = with_prefix(g, m, n, options, x);
      given = copy(g, joined, {B, tokens, n.both()}, "conv.input");
    }
    Tensor sequences = told ? g.make("conv.seq_idx", {S}, DType::int32) : Tensor();
    if (told && before > 0) {
      Tensor joined = g.make("conv.seq_idx_prefixed", {Dim(1), tokens}, DType::int32);
      sequences = std::move(joined);
    }
    Tensor out = fla::causal_conv1d(g, before > 0 ? given : x, weight, sequences, "conv");
    return before > 0 ? slice(g, out, {B, S, n.both()}) : out;
  }

  Tensor run(Tensor x, Tensor& given) const {
    std::vector<std::int64_t> lengths = lengths_of(options);
    if (options.delta.kernels == LinearAttention::fla_conv) return by_token(x, !lengths.empty(), given);
    const CausalConv conv{weight, -1, n.both(), m.conv_kernel, options.scan_tokens};
    if (lengths.empty()) return causal_conv(g, x, conv);
    if (before == 0) return causal_conv_by_sequence(g, view(x, {B, n.both(), S}), conv, lengths);
    lengths.front() += before;
    const Tensor joined = with_prefix(g, m, n, options, x);
    x.reset();
    const Tensor out = causal_conv_by_sequence(g, joined, conv, lengths);
    return slice(g, out, {B, n.both(), S});
  }
};

/// Queries and keys for all heads of values.
void repeat_for_values(Eager& g, const DeltaSizes& n, Projections& p) {
  if (!n.grouped) return;
  const Shape repeated{B, n.tokens, n.value_heads, n.key_dim};
  Tensor wide = repeat_interleave(g, p.query, repeated, "q_repeated");
  p.query = std::move(wide);
  wide = repeat_interleave(g, p.key, repeated, "k_repeated");
  p.key = std::move(wide);
}

/// torch_chunk_gated_delta_rule of the release.
Tensor run_in_torch(Eager& g, const DeltaSizes& n, const KernelOptions& options, Projections& p, const Tensor& decay,
                    const Tensor& beta, DType dtype) {
  if (options.delta_by_rows) {
    repeat_for_values(g, n, p);
    return run_delta_by_rows(g, n, {p.query, p.key, p.value, decay, beta}, options.scan_tokens, dtype);
  }
  const std::int64_t chunks = ceil_div(options.scan_tokens, kDeltaChunk);
  ChunkRule rule{.g = g,
                 .n = n,
                 .chunks = chunks,
                 .whole = chunks * kDeltaChunk == options.scan_tokens,
                 .dtype = dtype,
                 .query = p.query,
                 .key = p.key,
                 .value = p.value,
                 .decay = decay,
                 .beta = beta};
  return rule.run();
}

/// Parts of a convolved row lie apart; what is repeated does not.
Tensor run_in_fla(Eager& g, const DeltaSizes& n, const KernelOptions& options, Projections& p, const Tensor& decay,
                  const Tensor& beta) {
  repeat_for_values(g, n, p);
  const std::vector<std::int64_t> lengths = lengths_of(options);
  const fla::Rule rule{.heads = n.value_heads,
                       .key_dim = n.key_dim,
                       .value_dim = n.value_dim,
                       .chunks = fla::chunks_of(options.scan_tokens, lengths),
                       .ranks = ranks_of_row(options),
                       .sequences = std::max<std::int64_t>(1, static_cast<std::int64_t>(lengths.size())),
                       .copies_query = !n.grouped,
                       .copies_key = !n.grouped,
                       .copies_value = true};
  return fla::chunk_gated_delta_rule(g, rule, {p.query, p.key, p.value, decay, beta});
}

/// Of a convolved row, by heads. `copied_back`: gradients of queries and keys, of values come with heads in front of tokens.
void split_by_heads(Eager& g, const DeltaSizes& n, Projections& p, bool copied_back, bool copied_value) {
  const std::vector<Tensor> parts = split(g, p.mixed, {{B, n.tokens, n.keys}, {B, n.tokens, n.keys}, {B, n.tokens, n.values}});
  p.query = by_heads(g, parts[0], {B, n.tokens, n.key_heads, n.key_dim}, copied_back, "q");
  p.key = by_heads(g, parts[1], {B, n.tokens, n.key_heads, n.key_dim}, copied_back, "k");
  p.value = by_heads(g, parts[2], {B, n.tokens, n.value_heads, n.value_dim}, copied_value, "v");
}

}  // namespace

Tensor run_gated_delta(Eager& g, const Mixer& m, std::int64_t hidden, const LayerLeaves& w, const KernelOptions& options,
                       const Tensor& x) {
  const DeltaSizes n(m);
  const bool by_head = w.state.in_ba >= 0, torch = options.delta.kernels == LinearAttention::torch;
  // apply_mask_to_padding_states: a product with the batch's own mask, in the place of which it stands
  const Tensor masked = options.padding_mask ? scale(g, x, "masked") : x;
  Projections p = by_head ? ordered_by_head(g, n, w, masked) : apart(g, n, w, masked);
  const DType dtype = p.mixed.dtype;
  Tensor given;
  {
    const Convolution convolution{g, m, n, options, w.state.conv};
    Tensor next = convolution.run(std::move(p.mixed), given);
    p.mixed = std::move(next);
  }
  // gradients of transformers' own rule come with heads in front of tokens
  split_by_heads(g, n, p, torch && !n.grouped && n.several_key_heads, torch && n.several_value_heads);
  const Tensor beta = sigmoid(g, p.b, "beta");
  const Tensor decay = log_decay(g, w, p.a);
  Tensor core = torch ? run_in_torch(g, n, options, p, decay, beta, dtype) : run_in_fla(g, n, options, p, decay, beta);
  const Shape rows{T * n.value_heads, n.value_dim};
  core = reshaped(g, core, rows, torch && dtype == DType::fp32, "core.rows");
  const bool z_apart = by_head && n.grouped && !n.several_key_heads;
  p.z = reshaped(g, p.z, rows, z_apart, "z_rows");
  Tensor normed =
      torch ? gated_norm(g, core, p.z, w.state.norm)
            : fla::rms_norm_gated(g, core, p.z, w.state.norm, by_head && !n.grouped, options.delta.multiprocessors, "norm");
  core = view(std::move(normed), {B, S, n.values});
  return linear(g, core, w.state.out, -1, T, {B, S, Dim(hidden)}, "out");
}

Tensor run_gated_delta_by_fla(Eager& g, const Mixer& m, std::int64_t hidden, const LayerLeaves& w, const FlaRow& row,
                              const Tensor& x) {
  DeltaSizes n(m);
  n.tokens = row.tokens;
  const bool by_head = w.state.in_ba >= 0;
  Projections p = by_head ? ordered_by_head(g, n, w, x) : apart(g, n, w, x);
  {
    const Tensor weight = g.leaf(w.state.conv);
    Tensor next = fla::short_convolution(g, p.mixed, weight, row.chunks, m.conv_kernel);
    p.mixed = std::move(next);
  }
  split_by_heads(g, n, p, false, false);
  const Tensor beta = sigmoid(g, p.b, "beta");
  const Tensor decay = log_decay(g, w, p.a);
  repeat_for_values(g, n, p);
  const fla::Rule rule{.heads = n.value_heads,
                       .key_dim = n.key_dim,
                       .value_dim = n.value_dim,
                       .chunks = row.chunks,
                       .copies_query = !n.grouped,
                       .copies_key = !n.grouped,
                       .copies_value = true,
                       .tokens = n.tokens};
  Tensor core = fla::chunk_gated_delta_rule(g, rule, {p.query, p.key, p.value, decay, beta});
  const Shape rows{B * n.tokens * n.value_heads, n.value_dim};
  core = view(core, rows);
  p.z = reshaped(g, p.z, rows, by_head && n.grouped && !n.several_key_heads, "z_rows");
  Tensor normed = fla::rms_norm_gated(g, core, p.z, w.state.norm, by_head && !n.grouped, row.multiprocessors, "norm");
  core = view(std::move(normed), {B, n.tokens, n.values});
  return linear(g, core, w.state.out, -1, B * n.tokens, {B, n.tokens, Dim(hidden)}, "out");
}

std::vector<Tensor> delta_caches(Eager& g, const KernelOptions& options) {
  std::vector<Tensor> out;
  const auto keep = [&](const char* name, Shape shape) {
    out.push_back(g.make(name, std::move(shape), DType::int64, Category::inputs));
  };
  const std::vector<std::int64_t> lengths = lengths_of(options);
  if (options.delta.kernels == LinearAttention::torch || lengths.empty()) return out;
  keep("fla.chunk_indices", {Dim(fla::chunks_of(options.scan_tokens, lengths)), Dim(2)});
  if (options.delta.kernels != LinearAttention::fla_conv) return out;
  keep("fla.position_ids", {S});
  keep("fla.sequence_ids", {S});
  return out;
}

}  // namespace oomplan
