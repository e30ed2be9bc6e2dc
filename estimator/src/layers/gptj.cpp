#include "layers/gptj.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// Names of the function that hold the tables; sin and cos are halves of one tensor.
struct Tables {
  Tensor whole, rows, both;
};

Tables tables(Eager& g, Dim sequences, std::int64_t positions, std::int64_t width, DType dtype) {
  Tables out;
  out.whole = g.make("rotary.table", {sequences, Dim(positions), Dim(width)}, DType::fp32, Category::buffers);
  out.rows = g.make("rotary.rows", {sequences, S, Dim(width)}, DType::int64, Category::buffers);
  Tensor wide = g.make("rotary.gathered", {sequences, S, Dim(width)}, DType::fp32, Category::buffers);
  out.both = to(g, std::move(wide), dtype, "rotary.sincos");
  return out;
}

/// apply_rotary_pos_emb: halves of the tables with each value twice; x * cos + stack(-x2, x1) * sin.
Tensor turn(Eager& g, const Tensor& x, Dim sequences, DType dtype, const std::string& name) {
  const Shape table{sequences, S, Dim(1), x.shape.back()};
  const Shape pairs{sequences, S, Dim(1), Dim(x.shape.back().coefficient / 2), Dim(2)};
  Tensor sin = g.make(name + ".sin_table", pairs, dtype, Category::buffers);
  Tensor cos = g.make(name + ".cos_table", pairs, dtype, Category::buffers);
  sin.shape = cos.shape = table;
  Tensor straight = mul(g, x, cos, name + ".cos");
  Tensor rotated;
  {
    const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
    Tensor first = slice(g, x, half), second = slice(g, x, half);
    std::vector<Tensor> parts;
    parts.push_back(neg(g, second, name + ".negated"));
    parts.push_back(first);
    rotated = cat(g, std::move(parts), x.shape, name + ".rotated");
  }
  Tensor turned = mul(g, std::move(rotated), sin, name + ".sin");
  return add(g, std::move(straight), std::move(turned), name);
}

/// GPTJAttention._attn and _merge_heads. A transposed tensor of several sequences is copied to be multiplied.
Attended attend_in_fp32(Eager& g, const Tensor& query, const Tensor& key, const Tensor& value, const KernelOptions& options,
                        const Tensor& mask, const Shape& by_token) {
  const Shape scores_shape{B, query.shape[1], S, S};
  const auto folded = [&](const Tensor& t, const char* name, const Shape& as) {
    return options.several_sequences ? copy(g, t, as, name) : t;
  };
  const Shape transposed{B, key.shape[1], key.shape[3], S};
  Attended out;
  Tensor heads;
  {
    const Tensor wide_q = to(g, query, DType::fp32, "attention.q_fp32"), wide_k = to(g, key, DType::fp32, "attention.k_fp32");
    {
      Tensor q = folded(wide_q, "attention.q_contiguous", query.shape), k = folded(wide_k, "attention.k_contiguous", transposed);
      Tensor scores = matmul(g, std::move(q), std::move(k), scores_shape, "attention.scores");
      Tensor scaled = scale(g, std::move(scores), "attention.scaled");
      if (mask) {
        Tensor masked = add(g, scaled, mask, "attention.masked");
        scaled = std::move(masked);
      }
      Tensor probabilities = softmax(g, scaled, DType::fp32, "attention.probabilities");
      scaled = std::move(probabilities);
      out.weights = to(g, scaled, value.dtype, "attention.weights");
    }
    Tensor v = folded(value, "attention.v_contiguous", value.shape);
    heads = matmul(g, out.weights, std::move(v), query.shape, "attention.out_heads");
  }
  out.output = copy(g, heads, by_token, "attention.out");
  return out;
}

}  // namespace

Bytes gptj_buffers(const Architecture& a) {
  if (a.family != "gptj") return 0;
  Bytes all = 0;
  for (const LayerRun& run : a.runs) all += run.count * a.max_positions * run.layer.mixer.rotary_dim * bytes_of(1, DType::fp32);
  return all;
}

Attended run_gptj_attention(Eager& g, const Mixer& m, std::int64_t positions, std::int64_t hidden, const LayerLeaves& w,
                            const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  const Dim width = m.q_width(), sequences = options.positions_by_row ? B : Dim(1);
  const Shape rows{B, S, width}, by_token{B, S, Dim(m.heads), Dim(m.head_dim)};
  const Shape by_head{B, Dim(m.heads), S, Dim(m.head_dim)};
  Tensor query = linear(g, x, w.q, -1, T, rows, "q"), key = linear(g, x, w.k, -1, T, rows, "k");
  Tensor value = linear(g, x, w.v, -1, T, rows, "v");
  query.shape = key.shape = by_token;
  value.shape = by_head;
  const Tables names = tables(g, sequences, positions, m.rotary_dim, key.dtype);
  const Shape turned = with_last(by_token, Dim(m.rotary_dim)), left = with_last(by_token, Dim(m.head_dim - m.rotary_dim));
  Tensor k_turned = slice(g, key, turned);
  const Tensor k_left = slice(g, key, left);
  Tensor q_turned = slice(g, query, turned);
  const Tensor q_left = slice(g, query, left);
  k_turned = turn(g, Tensor(k_turned), sequences, names.both.dtype, "k_rotary");
  q_turned = turn(g, Tensor(q_turned), sequences, names.both.dtype, "q_rotary");
  key = cat(g, {k_turned, k_left}, by_token, "k_rotary.joined");
  query = cat(g, {q_turned, q_left}, by_token, "q_rotary.joined");
  query.shape = key.shape = by_head;
  Attended out;
  if (options.kernels == Kernels::hf_eager) {
    out = attend_in_fp32(g, query, key, value, options, context.mask, by_token);
  } else {
    out = attend(g, {.query = query, .key = key, .value = value, .out_shape = by_token}, options);
    out.weights = out.output;  // what the kernel gave is returned in their place
  }
  out.output.shape = rows;
  Tensor projected = linear(g, out.output, w.o, -1, T, {B, S, Dim(hidden)}, "o");
  out.output = std::move(projected);
  return out;
}

}  // namespace oomplan
