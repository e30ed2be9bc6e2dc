#include "layers/delta_rule.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

/// One name of the function a line.
struct RowRule {
  Eager& g;
  const DeltaSizes& n;
  const std::int64_t tokens, chunks = (tokens + kDeltaChunk - 1) / kDeltaChunk;
  const Dim padded{chunks * kDeltaChunk};
  const DType dtype;  ///< of the result
  Tensor query, key, value, decay, beta;
  // names of the last turn over rows, and over chunks, live until the function returns
  Tensor last_row = {}, rows_above = {};
  Tensor known = {}, fresh = {}, between = {};

  Shape by_chunk(Dim width) const { return {B, n.value_heads, Dim(chunks), Dim(kDeltaChunk), width}; }
  Shape rates() const { return {B, n.value_heads, Dim(chunks), Dim(kDeltaChunk)}; }
  Shape column() const { return {B, n.value_heads, Dim(chunks), Dim(kDeltaChunk), Dim(1)}; }
  Shape one_chunk(Dim width) const { return {B, n.value_heads, Dim(kDeltaChunk), width}; }
  Shape products(Dim width) const { return {B * n.value_heads * Dim(chunks), Dim(kDeltaChunk), width}; }

  /// x * rsqrt((x * x).sum(dim=-1) + eps); autocast sums in fp32.
  Tensor l2norm(const Tensor& x, const std::string& name) const {
    Tensor inverse;
    {
      Tensor squares = mul(g, x, x, name + ".squares");
      if (g.autocast) squares = to(g, std::move(squares), DType::fp32, name + ".squares_fp32");
      Tensor total = sum(g, std::move(squares), with_last(x.shape, 1), name + ".total");
      Tensor shifted = add_scalar(g, std::move(total), name + ".shifted");
      inverse = rsqrt(g, std::move(shifted), name + ".inverse");
    }
    return mul(g, x, inverse, name);
  }

  /// x.transpose(1, 2).contiguous().to(torch.float32)
  Tensor in_front(const Tensor& x, Shape as, const std::string& name) const {
    Tensor block = copy(g, x, std::move(as), name + ".by_head");
    return to(g, std::move(block), DType::fp32, name + ".fp32");
  }

  void prepare() {
    Tensor next = l2norm(query, "q_normed");
    query = std::move(next);
    next = l2norm(key, "k_normed");
    key = std::move(next);
    const Shape keys{B, n.value_heads, S, n.key_dim}, values{B, n.value_heads, S, n.value_dim}, rate{B, n.value_heads, S};
    DeltaInput wide;
    wide.query = in_front(query, keys, "q");
    wide.key = in_front(key, keys, "k");
    wide.value = in_front(value, values, "v");
    wide.beta = in_front(beta, rate, "beta");
    wide.decay = in_front(decay, rate, "decay");
    query = wide.query;
    key = wide.key;
    value = wide.value;
    beta = wide.beta;
    decay = wide.decay;
    wide = {};
    const auto padded_to = [&](Tensor& x, Shape shape, const char* name) {
      Tensor out = pad(g, x, std::move(shape), name);
      x = std::move(out);
    };
    padded_to(query, {B, n.value_heads, padded, n.key_dim}, "q_padded");
    padded_to(key, {B, n.value_heads, padded, n.key_dim}, "k_padded");
    padded_to(value, {B, n.value_heads, padded, n.value_dim}, "v_padded");
    padded_to(beta, {B, n.value_heads, padded}, "beta_padded");
    padded_to(decay, {B, n.value_heads, padded}, "decay_padded");
    next = scale(g, query, "q_scaled");
    query = std::move(next);
  }

  /// exp(cum_i - cum_j) for all pairs of a chunk, zero above the diagonal.
  Tensor pairs(const Tensor& cumulated) const {
    Shape row = rates();
    row.insert(row.end() - 1, Dim(1));
    Tensor out = difference(g, view(cumulated, column()), view(cumulated, row), by_chunk(kDeltaChunk), "pairs.difference");
    Tensor next = lower(out, "pairs.lower");
    out = std::move(next);
    next = exp(g, out, "pairs.decay");
    out = std::move(next);
    return lower(out, "pairs");
  }
  /// x.tril(): its gradient is one more.
  Tensor lower(const Tensor& x, const std::string& name) const { return scale(g, x, name); }

  /// attn[..., i, :i] = row + (row[..., None] * sub).sum(-2), for all rows of all chunks.
  Tensor solved(Tensor system) {
    for (std::int64_t i = 1; i < kDeltaChunk; ++i) {
      const Shape row_shape{B, n.value_heads, Dim(chunks), Dim(i)}, square{B, n.value_heads, Dim(chunks), Dim(i), Dim(i)};
      {
        Tensor part = slice(g, system, row_shape);
        Tensor next = copy(g, std::move(part), row_shape, "row");
        last_row = std::move(next);
        Tensor block = slice(g, system, square);
        next = copy(g, std::move(block), square, "rows_above");
        rows_above = std::move(next);
      }
      Tensor weighted =
          outer(g, view(last_row, {B, n.value_heads, Dim(chunks), Dim(i), Dim(1)}), rows_above, square, "row.weighted");
      Tensor total = sum(g, std::move(weighted), row_shape, "row.total");
      Tensor whole = add(g, last_row, std::move(total), "row.whole");
      Tensor filled = copy_into(g, system, whole, row_shape);
      system = std::move(filled);
    }
    return add_scalar(g, std::move(system), "system_with_ones");
  }

  Tensor run() {
    prepare();
    Tensor v_beta = outer(g, value, view(beta, {B, n.value_heads, padded, Dim(1)}), value.shape, "v_beta");
    Tensor k_beta = outer(g, key, view(beta, {B, n.value_heads, padded, Dim(1)}), key.shape, "k_beta");
    query = view(std::move(query), by_chunk(n.key_dim));
    key = view(std::move(key), by_chunk(n.key_dim));
    value = view(std::move(value), by_chunk(n.value_dim));
    k_beta = view(std::move(k_beta), by_chunk(n.key_dim));
    v_beta = view(std::move(v_beta), by_chunk(n.value_dim));
    decay = view(std::move(decay), rates());
    Tensor mask = upper_mask("chunk.mask");
    Tensor cumulated = cumsum(g, decay, "decay_cumulated");
    decay = cumulated;
    const Tensor pairwise = pairs(decay);
    Tensor attn;
    {
      Tensor scores = view(delta_product(g, k_beta, key, products(kDeltaChunk), "system.scores"), by_chunk(kDeltaChunk));
      Tensor decayed = mul(g, std::move(scores), pairwise, "system.decayed");
      Tensor masked = masked_fill(g, std::move(decayed), mask, "system.masked");
      attn = neg(g, std::move(masked), "system");
    }
    attn = solved(std::move(attn));
    Tensor next = view(delta_product(g, attn, v_beta, products(n.value_dim), "new_values"), by_chunk(n.value_dim));
    value = std::move(next);
    Tensor k_cumulated;
    {
      Tensor factor = exp(g, decay, "k_beta_decayed.factor");
      Tensor decayed = outer(g, k_beta, view(std::move(factor), column()), k_beta.shape, "k_beta_decayed");
      k_cumulated = view(delta_product(g, attn, std::move(decayed), products(n.key_dim), "k_cumulated"), by_chunk(n.key_dim));
    }
    Tensor state = g.make("state", {B, n.value_heads, n.key_dim, n.value_dim}, value.dtype);
    Tensor core = g.make("core", by_chunk(n.value_dim), value.dtype);
    Tensor other = upper_mask("scan.mask");
    mask = std::move(other);
    scan(core, std::move(state), k_cumulated, pairwise, attn);
    // the name is bound to the whole until its cast copy is there
    core = view(std::move(core), {B, n.value_heads, padded, n.value_dim});
    if (chunks * kDeltaChunk != tokens) core = slice(g, core, {B, n.value_heads, S, n.value_dim});
    Tensor by_token = copy(g, core, {B, S, n.value_heads, n.value_dim}, "core.by_token");
    return to(g, std::move(by_token), dtype, "core.cast");
  }
  Tensor upper_mask(const std::string& name) const {
    Tensor ones = g.make("chunk.ones", {Dim(kDeltaChunk), Dim(kDeltaChunk)}, DType::boolean);
    return g.make(name, {Dim(kDeltaChunk), Dim(kDeltaChunk)}, DType::boolean);
  }

  void scan(Tensor& core, Tensor state, const Tensor& k_cumulated, const Tensor& pairwise, Tensor& attn) {
    const Shape rows = one_chunk(n.value_dim), keys = one_chunk(n.key_dim), state_shape = state.shape;
    const Shape one_rate{B, n.value_heads, Dim(kDeltaChunk)}, one_column{B, n.value_heads, Dim(kDeltaChunk), Dim(1)};
    g.each_turn(chunks, [&](std::int64_t) {
      const Tensor q = slice(g, query, keys), k = slice(g, key, keys);
      {
        Tensor scores = delta_product(g, q, k, one_chunk(kDeltaChunk), "scan.scores");
        Tensor next = mul(g, std::move(scores), slice(g, pairwise, one_chunk(kDeltaChunk)), "scan.attn");
        attn = std::move(next);
      }
      {
        Tensor next = delta_product(g, slice(g, k_cumulated, keys), state, rows, "scan.known");
        known = std::move(next);
        next = sub(g, slice(g, value, rows), known, "scan.v_new");
        fresh = std::move(next);
      }
      {
        Tensor factor = exp(g, slice(g, decay, one_column), "scan.q_factor");
        Tensor decayed = outer(g, q, std::move(factor), keys, "scan.q_decayed");
        Tensor next = delta_product(g, std::move(decayed), state, rows, "scan.between");
        between = std::move(next);
      }
      {
        Tensor inside = delta_product(g, attn, fresh, rows, "scan.within");
        Tensor both = add(g, between, std::move(inside), "scan.sum");
        Tensor filled = copy_into(g, core, both, rows);
        core = std::move(filled);
      }
      Tensor last = exp(g, slice(g, decay, {B, n.value_heads, Dim(1), Dim(1)}), "scan.state_factor");
      Tensor old = outer(g, state, std::move(last), state_shape, "scan.state_decayed");
      Tensor rest = difference(g, slice(g, decay, {B, n.value_heads, Dim(1)}), slice(g, decay, one_rate), one_rate, "scan.rest");
      Tensor factor = exp(g, std::move(rest), "scan.k_factor");
      Tensor decayed = outer(g, k, view(std::move(factor), one_column), keys, "scan.k_decayed");
      Tensor update = delta_product(g, std::move(decayed), fresh, state_shape, "scan.update");
      Tensor sum = add(g, std::move(old), std::move(update), "scan.state");
      state = std::move(sum);
    });
  }
};

}  // namespace

Tensor delta_product(Eager& g, Tensor a, Tensor b, Shape out, const std::string& name) {
  if (g.autocast) {
    b = to(g, std::move(b), DType::bf16, name + ".right_bf16");
    a = to(g, std::move(a), DType::bf16, name + ".left_bf16");
  }
  return matmul(g, std::move(a), std::move(b), std::move(out), name);
}

Tensor run_delta_by_rows(Eager& g, const DeltaSizes& n, const DeltaInput& in, std::int64_t tokens, DType dtype) {
  RowRule rule{.g = g,
               .n = n,
               .tokens = tokens,
               .dtype = dtype,
               .query = in.query,
               .key = in.key,
               .value = in.value,
               .decay = in.decay,
               .beta = in.beta};
  return rule.run();
}

}  // namespace oomplan
