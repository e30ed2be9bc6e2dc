#include "layers/preamble.hpp"

#include <algorithm>
#include <utility>

#include "layers/families.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// Tokens of a whole sequence on this rank.
Dim all_tokens(const KernelOptions& options) { return Dim(options.tensor) * axis::S; }

/// `windowed`: of layers with a window that the sequences reach past. Without padding one mask serves all sequences.
Tensor mask(Eager& g, const KernelOptions& options, DType dtype, bool windowed, bool forced) {
  const Dim tokens = all_tokens(options), keys = options.kv_cache == KvCache::grows ? axis::D : tokens;
  const Shape shape{B, Dim(1), tokens, keys};
  if (options.kernels == Kernels::hf_eager) {
    Tensor allowed = g.make("mask.bool", shape, DType::boolean, Category::buffers);
    return g.make("mask.additive", shape, dtype, Category::buffers);
  }
  if ((options.padding_mask || options.vision.sees_itself) && options.kernels == Kernels::hf_sdpa)
    return g.make("mask.bool", shape, DType::boolean, Category::buffers);
  if ((windowed && options.window_mask) || (forced && options.kernels == Kernels::hf_sdpa)) {
    Tensor once = g.make("mask.window", {Dim(1), Dim(1), tokens, keys}, DType::boolean, Category::buffers);
    once.shape = shape;
    return once;
  }
  return {};
}

/// DeepSeek V2: freqs, polar(ones, freqs) times a number; a complex number is two fp32.
void complex_table(Eager& g, LayerContext& context, Dim tokens, std::int64_t width) {
  const Shape half{Dim(1), tokens, Dim(width / 2)}, pairs{Dim(1), tokens, Dim(width / 2), Dim(2)};
  Tensor freqs = g.make("rotary.freqs", half, DType::fp32, Category::buffers);
  Tensor table;
  {
    Tensor ones = g.make("rotary.ones", half, DType::fp32, Category::buffers);
    table = g.make("rotary.polar", pairs, DType::fp32, Category::buffers);
  }
  context.cos = g.make("rotary.table", pairs, DType::fp32, Category::buffers);
}

/// Qwen3.5: cos and sin of three rows of positions, put together in the first row's place; a table for each sequence.
void tables_by_axis(Eager& g, LayerContext& context, Dim tokens, std::int64_t width, DType dtype) {
  const Shape axes{Dim(3), B, tokens, Dim(width / 2)}, whole{B, tokens, Dim(width)};
  Tensor freqs = g.make("rotary.freqs", axes, DType::fp32, Category::buffers);
  Tensor cos = g.make("rotary.cos_axes", axes, DType::fp32, Category::buffers);
  Tensor sin = g.make("rotary.sin_axes", axes, DType::fp32, Category::buffers);
  Tensor joined = g.make("rotary.sin_fp32", whole, DType::fp32, Category::buffers);
  sin = std::move(joined);
  joined = g.make("rotary.cos_fp32", whole, DType::fp32, Category::buffers);
  cos = std::move(joined);
  context.cos = to(g, cos, dtype, "rotary.cos");
  context.sin = to(g, sin, dtype, "rotary.sin");
}

/// Qwen2-VL and Qwen2.5-VL up to transformers 5.10: tables of all three axes, which every layer puts together for itself.
void tables_of_axes(Eager& g, LayerContext& context, Dim tokens, std::int64_t width, DType dtype) {
  const Shape whole{Dim(3), B, tokens, Dim(width)};
  const auto fp32 = [&](const std::string& name, const Shape& shape) {
    return g.make(name, shape, DType::fp32, Category::buffers);
  };
  Tensor positions = fp32("rotary.positions_fp32", {Dim(3), B, Dim(1), tokens});
  Tensor freqs = fp32("rotary.freqs", {Dim(3), B, tokens, Dim(width / 2)});
  Tensor emb = fp32("rotary.emb", whole);
  const auto scaled = [&](const std::string& name) {
    Tensor plain = fp32(name + "_plain", whole);
    return fp32(name + "_fp32", whole);
  };
  Tensor cos = scaled("rotary.cos"), sin = scaled("rotary.sin");
  context.cos = to(g, cos, dtype, "rotary.cos");
  context.sin = to(g, sin, dtype, "rotary.sin");
}

/// `rows`: of position numbers.
void tables(Eager& g, const RotaryCode& code, LayerContext& context, Dim rows, Dim tokens, std::int64_t width, DType dtype) {
  if (code.form == RotaryForm::complex) return complex_table(g, context, tokens, width);
  if (code.by_axis) return tables_by_axis(g, context, tokens, width, dtype);
  if (code.form == RotaryForm::halves) width /= 2;
  const Shape whole{rows, tokens, Dim(width)};
  Tensor emb;
  if (code.form == RotaryForm::halves) {
    emb = g.make("rotary.freqs", whole, DType::fp32, Category::buffers);
  } else {
    Tensor freqs = g.make("rotary.freqs", {rows, tokens, Dim(width / 2)}, DType::fp32, Category::buffers);
    emb = g.make("rotary.emb", whole, DType::fp32, Category::buffers);
  }
  Tensor cos = g.make("rotary.cos_fp32", whole, DType::fp32, Category::buffers);
  Tensor sin = g.make("rotary.sin_fp32", whole, DType::fp32, Category::buffers);
  if (code.table_in_fp32) dtype = DType::fp32;
  context.cos = to(g, cos, dtype, "rotary.cos");
  context.sin = to(g, sin, dtype, "rotary.sin");
}

bool has_span(const Architecture& a, bool windowed) {
  return std::any_of(a.runs.begin(), a.runs.end(),
                     [&](const LayerRun& r) { return (r.layer.mixer.span != AttentionSpan::full) == windowed; });
}

bool has_attention(const Architecture& a) {
  return std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& r) {
    return r.layer.mixer.kind == MixerKind::attention || r.layer.mixer.kind == MixerKind::mla;
  });
}

/// Gemma 4: tables are as wide as a head of the span's layers, however much of it is rotated.
std::int64_t head_width(const Architecture& a, bool windowed, std::int64_t otherwise) {
  for (const auto& run : a.runs)
    if ((run.layer.mixer.span != AttentionSpan::full) == windowed && run.layer.mixer.rotary_dim > 0)
      return run.layer.mixer.head_dim;
  return otherwise;
}

}  // namespace

std::int64_t rotary_width(const Architecture& a) {
  for (const auto& run : a.runs)
    if (run.layer.mixer.rotary_dim > 0) return run.layer.mixer.rotary_dim;
  const FamilyCode* code = find_family_code(a.family);
  return code != nullptr && code->rotary.always_tables ? a.runs.front().layer.mixer.head_dim : 0;
}

Preamble make_preamble(Eager& g, const Architecture& a, const KernelOptions& options, DType dtype) {
  const FamilyCode& code = family_code(a.family);
  Preamble out;
  const bool grad = std::exchange(g.grad_enabled, false);
  const bool windows = has_span(a, true), both = windows && has_span(a, false);
  if (has_attention(a)) out.full.mask = mask(g, options, dtype, false, code.forces_mask);
  if (code.own == OwnCode::mpt && out.full.mask) {  // .to(torch.bool): what is refused
    Tensor refused = g.make("mask.refused", out.full.mask.shape, DType::boolean, Category::buffers);
    out.full.mask = std::move(refused);
  }
  // configuration_qwen2_moe.py, 5.23: `self.sliding_window if self.use_sliding_window else 0`; release 4 made one mask
  const bool past_none = code.zero_window && !windows && !options.release.expert_modules;
  if (code.masks_by_span || both || options.window_mask)
    out.windowed.mask = mask(g, options, dtype, true, code.forces_mask || past_none);
  else
    out.windowed.mask = out.full.mask;
  if (const std::int64_t width = rotary_width(a); width > 0 && code.own != OwnCode::gptj) {
    const Dim rows = options.positions_by_row ? B : Dim(1), all = all_tokens(options);
    RotaryCode rotary = code.rotary;
    rotary.by_axis = rotary.by_axis || options.vision.by_axis;
    const auto width_of = [&](bool windowed) { return code.norms_values ? head_width(a, windowed, width) : width; };
    if (options.joins_tables)
      tables_of_axes(g, out.full, all, width_of(false), dtype);
    else
      tables(g, rotary, out.full, rows, all, width_of(false), dtype);
    out.windowed.cos = out.full.cos;
    out.windowed.sin = out.full.sin;
    if (code.tables_by_span && both) tables(g, code.rotary, out.windowed, rows, all, width_of(true), dtype);
  }
  g.grad_enabled = grad;
  return out;
}

}  // namespace oomplan
