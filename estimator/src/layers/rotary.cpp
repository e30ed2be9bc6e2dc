#include "layers/rotary.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// rotate_half: (-x2, x1) joined by cat, or by stack where pairs are neighbours: the same tensors.
Tensor rotate_half(Eager& g, const Tensor& x, const std::string& name) {
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  Tensor first = slice(g, x, half), second = slice(g, x, half);
  std::vector<Tensor> parts;
  parts.push_back(neg(g, second, name + ".negated"));
  parts.push_back(first);
  return cat(g, std::move(parts), x.shape, name + ".rotated");
}

/// x * cos + rotate_half(x) * sin.
Tensor turn(Eager& g, const Tensor& x, const LayerContext& table, const std::string& name) {
  Tensor straight = mul(g, x, table.cos, name + ".cos");
  Tensor rotated = rotate_half(g, x, name);
  Tensor turned = mul(g, std::move(rotated), table.sin, name + ".sin");
  return add(g, std::move(straight), std::move(turned), name);
}

/// The first half of a table, each value twice.
Tensor repeated(Eager& g, const Tensor& table, const std::string& name) {
  const std::int64_t width = table.shape.back().coefficient;
  Tensor out = g.make(name, {Dim(1), Dim(1), table.shape[1], Dim(width / 2), Dim(2)}, table.dtype, Category::buffers);
  out.shape = table.shape;
  return out;
}

/// x[..., :width] and x[..., width:]. Python gives x itself for the whole range.
struct Parts {
  Tensor rotated, passed;
};
Parts split(Eager& g, const Tensor& x, std::int64_t width) {
  const std::int64_t whole = x.shape.back().coefficient;
  Parts out;
  out.rotated = width == whole ? x : slice(g, x, with_last(x.shape, Dim(width)));
  out.passed = slice(g, x, with_last(x.shape, Dim(whole - width)));
  return out;
}

Tensor join(Eager& g, Tensor rotated, const Tensor& passed, const Shape& whole, const std::string& name) {
  std::vector<Tensor> parts;
  parts.push_back(std::move(rotated));
  parts.push_back(passed);
  return cat(g, std::move(parts), whole, name + ".joined");
}

Rotated rotate_parts(Eager& g, const RotaryCode& code, const LayerContext& table, const Tensor& q, const Tensor& k) {
  const std::int64_t width = table.cos.shape.back().coefficient;
  const Parts query = split(g, q, width), key = split(g, k, width);
  Rotated out;
  if (code.joins_at_once) {
    out.query = join(g, turn(g, query.rotated, table, "q_rotary"), query.passed, q.shape, "q_rotary");
    out.key = join(g, turn(g, key.rotated, table, "k_rotary"), key.passed, k.shape, "k_rotary");
    return out;
  }
  out.query = turn(g, query.rotated, table, "q_rotary");
  out.key = turn(g, key.rotated, table, "k_rotary");
  Tensor joined = join(g, out.query, query.passed, q.shape, "q_rotary");
  out.query = std::move(joined);
  joined = join(g, out.key, key.passed, k.shape, "k_rotary");
  out.key = std::move(joined);
  return out;
}

}  // namespace

Rotated apply_rotary(Eager& g, const RotaryCode& code, const LayerContext& context, const Tensor& q, const Tensor& k) {
  LayerContext table = context;
  if (code.repeats_cos) {
    table.cos = repeated(g, context.cos, "rotary.cos_repeated");
    table.sin = repeated(g, context.sin, "rotary.sin_repeated");
  }
  if (code.splits_head) return rotate_parts(g, code, table, q, k);
  const Tensor query = code.casts_first ? to(g, q, DType::fp32, "q_fp32") : q;
  const Tensor key = code.casts_first ? to(g, k, DType::fp32, "k_fp32") : k;
  Rotated out{turn(g, query, table, "q_rotary"), turn(g, key, table, "k_rotary")};
  if (!code.table_in_fp32 && !code.casts_first) return out;
  Rotated cast;
  cast.query = to(g, out.query, q.dtype, "q_rotary.cast");
  cast.key = to(g, out.key, k.dtype, "k_rotary.cast");
  return cast;
}

}  // namespace oomplan
