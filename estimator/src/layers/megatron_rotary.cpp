// Rotary positions of Megatron-core without a fused kernel: _apply_rotary_pos_emb_bshd
// (megatron/core/models/common/embeddings/rope_utils.py, 0.16.1).
#include "layers/megatron.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// _rotate_half: two halves, the second one negated, put together. Nothing is kept.
Tensor rotated_half(Eager& g, const Tensor& x, const std::string& name) {
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const std::vector<Tensor> parts = split(g, x, {half, half});
  Tensor negated = neg(g, parts[1], name + ".negated");
  return cat(g, {std::move(negated), parts[0]}, x.shape, name + ".rotated");
}

/// The same of neighbours: torch.stack of every second column, whose gradient is views.
Tensor rotated_pairs(Eager& g, const Tensor& x, const std::string& name) {
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const Tensor even = slice(g, x, half), odd = slice(g, x, half);
  Tensor negated = neg(g, odd, name + ".negated");
  return cat(g, {std::move(negated), even}, x.shape, name + ".rotated");
}

/// x[..., 0::2] and x[..., 1::2] put together.
Tensor apart(Eager& g, const Tensor& x, const std::string& name) {
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const Tensor even = slice(g, x, half), odd = slice(g, x, half);
  return cat(g, {even, odd}, x.shape, name + ".apart");
}

}  // namespace

namespace {

struct RotaryForm {
  bool apart = false, pairs = false, by_sequence = false;
};

Tensor rotary(Eager& g, const Tensor& x, Dim width, RotaryForm form, const std::string& name) {
  const bool whole = x.shape.back() == width;
  // the part that is not rotated may be empty: its gradient is as wide as x all the same
  const Tensor passed = slice(g, x, with_last(x.shape, Dim(x.shape.back().coefficient - width.coefficient)));
  Tensor t = whole ? x : slice(g, x, with_last(x.shape, width));
  if (form.apart) t = apart(g, t, name);
  const Shape table{x.shape[0], form.by_sequence ? axis::B : Dim(1), Dim(1), width};
  const auto made = [&](const char* what) {
    Tensor angles = g.make(name + "." + what + "_fp32", table, DType::fp32);
    if (x.dtype == DType::fp32) return angles;
    return g.make(name + "." + what, table, x.dtype);
  };
  const Tensor cosines = made("cos"), sines = made("sin");
  Tensor straight = mul(g, t, cosines, name + ".by_cos");
  Tensor turned = mul(g, form.pairs ? rotated_pairs(g, t, name) : rotated_half(g, t, name), sines, name + ".by_sin");
  Tensor sum = add(g, std::move(straight), std::move(turned), name + ".sum");
  return cat(g, {std::move(sum), passed}, x.shape, name);
}

}  // namespace

Tensor megatron_rotary(Eager& g, const Tensor& x, Dim width, bool interleaved, const std::string& name, bool by_sequence) {
  return rotary(g, x, width, {.apart = interleaved, .by_sequence = by_sequence}, name);
}

// _apply_rotary_pos_emb_thd (1dcf0dafa).
Tensor packed_rotary(Eager& g, const Tensor& x, Dim width, bool pairs, const std::string& name) {
  const Tensor angles = g.make(name + ".angles", {x.shape[0], Dim(1), Dim(1), width}, DType::fp32);
  return rotary(g, x, width, {.pairs = pairs}, name);
}

Tensor megatron_rotary_in_fp32(Eager& g, const Tensor& x, Dim width, const std::string& name, bool by_sequence) {
  const Tensor wide = to(g, x, DType::fp32, name + ".fp32");  // a name until all is over
  Tensor turned = megatron_rotary(g, wide, width, false, name + ".turned", by_sequence);
  return to(g, std::move(turned), x.dtype, name);
}

}  // namespace oomplan
