#include "layers/te_fp8_tensors.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

constexpr std::int64_t kBlock = 128, kSmallBlock = 32, kUnit = 4;  // 128 x 4 scales of 32 numbers are a tile of a product

/// Bytes of scales beside a row of `width` numbers, of as many rows as fill the blocks.
std::int64_t scale_bytes(std::int64_t width, bool columns, const TeOptions& o) {
  if (o.fp8 == Fp8Recipe::mxfp8) return columns ? round_up(width, kBlock) / kSmallBlock : round_up(width / kSmallBlock, kUnit);
  return columns ? ceil_div(width, kSmallBlock) : ceil_div(width, kBlock) * 4;  // 4 bytes for 128 numbers either way
}

Tensor scales(Eager& g, const Shape& shape, bool columns, const TeOptions& o, const std::string& name, Category category) {
  if (!scaled_in_blocks(o)) return g.make(name, {Dim(1)}, DType::fp32, category);
  return g.make(name, with_last(shape, Dim(scale_bytes(shape.back().coefficient, columns, o))), DType::fp8, category);
}

}  // namespace

bool scaled_in_blocks(const TeOptions& o) { return o.fp8 == Fp8Recipe::blockwise || o.fp8 == Fp8Recipe::mxfp8; }

Quantised quantised(Eager& g, const Shape& shape, Needs needs, const TeOptions& o, const std::string& name, Category category) {
  const bool blocks = scaled_in_blocks(o), turned = blocks || o.fp8_transposes;
  Quantised out;
  if (needs != Needs::columns || !turned) {
    out.rows = g.make(name + ".fp8", shape, DType::fp8, category);
    if (blocks) out.row_scales = scales(g, shape, false, o, name + ".scales", category);
  }
  if (needs != Needs::rows && turned) {
    out.columns = g.make(name + ".fp8_transposed", shape, DType::fp8, category);
    if (blocks) out.column_scales = scales(g, shape, true, o, name + ".scales_transposed", category);
  }
  if (!blocks) out.row_scales = scales(g, shape, false, o, name + ".scale", category);
  return out;
}

Quantised quantised_together(Eager& g, const Shape& shape, std::int64_t count, Needs needs, const TeOptions& o,
                             const std::string& name, Category category) {
  if (!scaled_in_blocks(o)) {
    Quantised out = quantised(g, shape, needs, o, name, category);
    out.row_scales = g.make(name + ".scale", {Dim(count)}, DType::fp32, category);
    return out;
  }
  const std::int64_t width = shape.back().coefficient;
  const auto block = [&](bool columns, const char* what) {
    return g.make(name + what, with_last(shape, Dim(width + scale_bytes(width, columns, o))), DType::fp8, category);
  };
  Quantised out;
  if (needs != Needs::columns) out.rows = block(false, ".fp8");
  if (needs != Needs::rows) out.columns = block(true, ".fp8_transposed");
  return out;
}

std::int64_t scales_of_matrix(std::int64_t out, std::int64_t in, bool columns, Fp8Recipe recipe) {
  if (recipe == Fp8Recipe::mxfp8)
    return columns ? round_up(out / kSmallBlock, kUnit) * round_up(in, kBlock)
                   : round_up(out, kBlock) * round_up(in / kSmallBlock, kUnit);
  if (recipe != Fp8Recipe::blockwise) return 0;
  const std::int64_t rows = ceil_div(columns ? in : out, kBlock), each = ceil_div(columns ? out : in, kBlock);
  return 4 * rows * round_up(each, kUnit);
}

KeptQuantised keep_rows(Eager& g, const Quantised& q) {
  KeptQuantised out;
  out.rows = g.save(q.rows);
  if (q.row_scales) out.row_scales = g.save(q.row_scales);
  return out;
}

KeptQuantised keep_columns(Eager& g, const Quantised& q) {
  if (!q.columns) return keep_rows(g, q);
  KeptQuantised out;
  out.columns_kept = true;
  out.columns = g.save(q.columns);
  const Tensor& numbers = q.column_scales ? q.column_scales : q.row_scales;
  if (numbers) out.column_scales = g.save(numbers);
  return out;
}

void clear(Eager& g, const KeptQuantised& kept) {
  for (const Saved* one : {&kept.rows, &kept.row_scales, &kept.columns, &kept.column_scales})
    if (one->get()) g.clear(one->get());
}

Tensor ordered_scales(Eager& g, const Shape& shape, bool fresh, const TeOptions& o, const std::string& name) {
  // blocks of 128 are MXFP8's on Blackwell, whatever made them
  const bool wanted = o.fp8 == Fp8Recipe::mxfp8 ? !fresh : o.fp8 == Fp8Recipe::blockwise && o.fp8_on_blackwell;
  if (!wanted) return {};
  const Shape bytes = with_last(shape, Dim(round_up(ceil_div(shape.back().coefficient, kSmallBlock), kUnit)));
  return g.make(name + ".ordered_scales", bytes, DType::fp8, Category::temporaries);
}

}  // namespace oomplan
