#include "layers/rotary.hpp"

#include <utility>

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

/// x.float() * cos + rotate_half(x).float() * sin.
Tensor turn_in_fp32(Eager& g, const Tensor& x, const LayerContext& table, const std::string& name) {
  Tensor wide = to(g, x, DType::fp32, name + ".fp32");
  Tensor straight = mul(g, std::move(wide), table.cos, name + ".cos");
  Tensor rotated = rotate_half(g, x, name);
  wide = to(g, std::move(rotated), DType::fp32, name + ".rotated_fp32");
  Tensor turned = mul(g, std::move(wide), table.sin, name + ".sin");
  return add(g, std::move(straight), std::move(turned), name);
}

/// cat(first * cos - second * sin, second * cos + first * sin).
Tensor turn_halves(Eager& g, const Tensor& x, const LayerContext& table, const std::string& name) {
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const std::vector<Tensor> halves = split(g, x, {half, half});
  Tensor first, second;
  {
    Tensor cos = mul(g, halves[0], table.cos, name + ".cos");
    Tensor sin = mul(g, halves[1], table.sin, name + ".sin");
    first = sub(g, std::move(cos), std::move(sin), name + ".first");
  }
  {
    Tensor cos = mul(g, halves[1], table.cos, name + ".cos");
    Tensor sin = mul(g, halves[0], table.sin, name + ".sin");
    second = add(g, std::move(cos), std::move(sin), name + ".second");
  }
  return cat(g, {first, second}, x.shape, name);
}

/// cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin]) of neighbours: slices of x and of the tables' first halves.
Tensor turn_pairs(Eager& g, const Tensor& x, const LayerContext& table, const std::string& name) {
  const std::int64_t width = table.cos.shape.back().coefficient / 2;
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const Tensor x1 = slice(g, x, half), x2 = slice(g, x, half);
  const Tensor cos = table.cos.alias(with_last(table.cos.shape, width)), sin = table.sin.alias(with_last(table.sin.shape, width));
  std::vector<Tensor> parts;
  {
    Tensor straight = mul(g, x1, cos, name + ".cos");
    Tensor crossed = mul(g, x2, sin, name + ".sin");
    parts.push_back(sub(g, std::move(straight), std::move(crossed), name + ".first"));
  }
  {
    Tensor straight = mul(g, x2, cos, name + ".cos");
    Tensor crossed = mul(g, x1, sin, name + ".sin");
    parts.push_back(add(g, std::move(straight), std::move(crossed), name + ".second"));
  }
  return cat(g, std::move(parts), x.shape, name);
}

/// view_as_complex(x.float()) * table, in fp32. A complex number is two fp32; `wide` is the function's name for the copy.
Tensor complex_product(Eager& g, const Tensor& x, const Tensor& wide, const Tensor& table, const std::string& name) {
  Shape pairs = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  pairs.push_back(Dim(2));
  Tensor as_complex = wide.alias(pairs);
  as_complex.grad_fn = wide.grad_fn;
  Tensor product = mul(g, std::move(as_complex), table, name + ".complex");
  product.shape = x.shape;
  return product;
}

Rotated rotate_complex(Eager& g, const RotaryCode& code, const LayerContext& context, const Tensor& q, const Tensor& k) {
  Tensor wide_q = to(g, q, DType::fp32, "q_fp32"), wide_k = to(g, k, DType::fp32, "k_fp32");
  Rotated out;
  Tensor query = complex_product(g, q, wide_q, context.cos, "q_rotary");
  const auto narrow = [&](Tensor product) { out.query = to(g, std::move(product), q.dtype, "q_rotary"); };
  if (!code.casts_behind) narrow(std::exchange(query, {}));
  Tensor key = complex_product(g, k, wide_k, context.cos, "k_rotary");
  if (code.casts_behind) narrow(query);
  out.key = to(g, std::move(key), k.dtype, "k_rotary");
  return out;
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
  if (code.keeps_parts) out.names = {out.query, query.passed, out.key, key.passed};
  Tensor joined = join(g, out.query, query.passed, q.shape, "q_rotary");
  out.query = std::move(joined);
  joined = join(g, out.key, key.passed, k.shape, "k_rotary");
  out.key = std::move(joined);
  return out;
}

}  // namespace

Tensor rotate(Eager& g, const LayerContext& context, const Tensor& x, const std::string& name) {
  return turn(g, x, context, name);
}

Rotated apply_rotary(Eager& g, const RotaryCode& code, const LayerContext& context, const Tensor& q, const Tensor& k) {
  if (code.form == RotaryForm::complex) return rotate_complex(g, code, context, q, k);
  if (code.form == RotaryForm::pairs) {
    Tensor query = turn_pairs(g, q, context, "q_rotary");
    return {std::move(query), turn_pairs(g, k, context, "k_rotary")};
  }
  if (code.form == RotaryForm::halves) {
    Tensor query = turn_halves(g, q, context, "q_rotary");
    return {std::move(query), turn_halves(g, k, context, "k_rotary")};
  }
  LayerContext table = context;
  if (code.repeats_cos) {
    table.cos = repeated(g, context.cos, "rotary.cos_repeated");
    table.sin = repeated(g, context.sin, "rotary.sin_repeated");
  }
  if (code.splits_head) return rotate_parts(g, code, table, q, k);
  const Tensor query = code.casts_first ? to(g, q, DType::fp32, "q_fp32") : q;
  const Tensor key = code.casts_first ? to(g, k, DType::fp32, "k_fp32") : k;
  Rotated out;
  out.query = code.casts_terms ? turn_in_fp32(g, query, table, "q_rotary") : turn(g, query, table, "q_rotary");
  out.key = code.casts_terms ? turn_in_fp32(g, key, table, "k_rotary") : turn(g, key, table, "k_rotary");
  if (!code.table_in_fp32 && !code.casts_first) return out;
  Rotated cast;
  cast.query = to(g, out.query, q.dtype, "q_rotary.cast");
  cast.key = to(g, out.key, k.dtype, "k_rotary.cast");
  return cast;
}

}  // namespace oomplan
