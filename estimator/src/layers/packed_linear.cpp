#include "layers/packed_linear.hpp"

#include <algorithm>
#include <utility>

#include "layers/decoder.hpp"
#include "layers/families.hpp"
#include "layers/gptq.hpp"
#include "layers/int8.hpp"
#include "layers/litgpt.hpp"

namespace oomplan {

std::string unsupported_packed(const Architecture& a, const FamilyCode& code, const KernelOptions& options) {
  if (options.adapters.dora) {
    const auto experts = [](const auto& run) { return run.layer.feed_forward.kind == FeedForwardKind::moe; };
    if (options.packed.any()) return "DoRA beside a quantised base is not supported yet";
    if (options.autocast) return "DoRA under autocast is not supported yet";
    if (code.conv1d || std::any_of(a.runs.begin(), a.runs.end(), experts))
      return "DoRA of '" + a.family + "' is not supported yet";
  }
  if (options.adapters.rank > 0 && options.adapters.kind != AdapterKind::lora) {
    const auto routed = [](const auto& run) { return run.layer.feed_forward.kind == FeedForwardKind::moe; };
    if (code.conv1d || std::any_of(a.runs.begin(), a.runs.end(), routed))
      return "adapters of '" + a.family + "' other than LoRA are not supported yet";
  }
  if (!options.packed.any()) return {};
  if (options.packed.format == BaseFormat::int8 && is_litgpt(options.kernels))
    return "an 8-bit base of LitGPT's models is not supported yet";
  if (code.conv1d) return "a quantised base of '" + a.family + "' is not supported yet";
  const auto routed = [](const auto& run) { return run.layer.feed_forward.kind == FeedForwardKind::moe; };
  if (std::any_of(a.runs.begin(), a.runs.end(), routed)) return "a quantised base with experts is not supported yet";
  if (options.kernels == Kernels::torchtitan) return "a quantised base of torchtitan's models is not supported yet";
  return {};
}

namespace ops {
namespace {

/// functional.dequantize_4bit: nested scales are rebuilt in fp32 first, and are gone when the matrix is there.
Tensor dequantised(Eager& g, const Leaf& leaf, DType wanted, const std::string& name) {
  const PackedOptions& p = g.packed;
  const Dim blocks = ceil_div(elements(leaf.unpacked).coefficient, kPackedBlock);
  Tensor scales = p.nested ? g.make(name + ".absmax", {blocks}, DType::fp32, Category::temporaries) : Tensor();
  Tensor whole = g.make(name + ".dequantised", leaf.unpacked, p.dequantised, Category::temporaries);
  scales.reset();
  return to(g, std::move(whole), wanted, name + ".dequantised_cast");
}

/// backends/cuda/ops.py _dequant_linear_fallback (0.50), which large inputs take: scales without and with their offset are both
/// there until the product is. Its fused kernel, for up to a few hundred rows, needs none of this.
Tensor dequantised_by_hand(Eager& g, const Leaf& leaf, DType wanted, Tensor held[2], const std::string& name) {
  const Dim blocks = ceil_div(elements(leaf.unpacked).coefficient, kPackedBlock);
  if (g.packed.nested)
    for (int i = 0; i < 2; ++i) held[i] = g.make(name + ".absmax", {blocks}, DType::fp32, Category::temporaries);
  return g.make(name + ".dequantised", leaf.unpacked, wanted, Category::temporaries);
}

/// F.linear with the unpacked matrix, under whatever autocast is on.
Tensor product(Eager& g, const Tensor& x, const Leaf& leaf, Dim rows, Shape out_shape, const std::string& name) {
  Tensor held[2];
  Tensor w =
      g.packed.code.dequantises_by_hand ? dequantised_by_hand(g, leaf, x.dtype, held, name) : dequantised(g, leaf, x.dtype, name);
  Tensor w16, x16;
  if (g.autocast && x.dtype == DType::fp32) {
    w16 = to(g, w, DType::bf16, name + ".dequantised_bf16");
    x16 = to(g, x, DType::bf16, name + ".input_bf16");
  }
  Tensor out = g.make(name, {rows, out_shape.back()}, x16 ? DType::bf16 : x.dtype);
  out.shape = std::move(out_shape);
  return out;
}

/// MatMul4Bit (autograd/_functions.py): saves nothing; backward unpacks the matrix again.
Tensor matmul_4bit(Eager& g, const Tensor& x, int weight, Dim rows, Shape out_shape, const std::string& name) {
  const bool grad = std::exchange(g.grad_enabled, false);  // inside of a function's forward
  Tensor out = product(g, x, g.leaves[static_cast<std::size_t>(weight)], rows, std::move(out_shape), name);
  g.grad_enabled = grad;
  const Shape x_shape = x.shape;
  const bool recorded = g.record(out, "MatMul4BitBackward", {&x}, [&g, weight, rows, x_shape, name](Gradients in) {
    const DType dtype = in[0].dtype;
    Tensor w = dequantised(g, g.leaves[static_cast<std::size_t>(weight)], dtype, name + ".backward");
    Tensor for_x = gradient(g, "mm_backward", {rows, x_shape.back()}, dtype);
    for_x.shape = x_shape;
    return Gradients{for_x};
  });
  if (recorded && g.packed.code.keeps_input) out.grad_fn->attributes.push_back(x.alias(x.shape));
  return out;
}

}  // namespace

Tensor packed_linear(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name) {
  if (g.packed.format == BaseFormat::gptq) return gptq::linear(g, x, weight, bias, rows, std::move(out_shape), name);
  if (g.packed.format == BaseFormat::int8) return int8::linear(g, x, weight, bias, rows, std::move(out_shape), name);
  const DType given = x.dtype;
  const DType compute = g.packed.code.computes_as_given && given != DType::fp16 ? given : g.packed.compute;
  x = to(g, std::move(x), compute, name + ".input_cast");
  Tensor b = bias < 0 ? Tensor() : to(g, g.leaf(bias), compute, name + ".bias_cast");
  Tensor out = matmul_4bit(g, x, weight, rows, std::move(out_shape), name);
  return to(g, std::move(out), given, name + ".output_cast");
}

/// huggingface/peft, src/peft/tuners/lora/bnb.py Linear4bit.forward, 0.21.2. Under autocast the input is not cast by hand.
/// Linear8bitLt.forward there is the same without the clone.
Tensor packed_low_rank(Eager& g, Tensor result, const Tensor& given, const Leaf& base, Dim rows, const std::string& name) {
  if (g.packed.format == BaseFormat::gptq) return gptq::low_rank(g, std::move(result), given, base, rows, name);
  const int in = base.low_rank_in, out = base.low_rank_out;
  const DType back = result.dtype;
  if (g.packed.format != BaseFormat::int8) {
    Tensor cloned = copy(g, result, result.shape, name + ".cloned");
    result = std::move(cloned);
  }
  const Leaf& first = g.leaves[static_cast<std::size_t>(in)];
  Tensor x = g.autocast ? given : to(g, given, first.dtype, name + ".lora_input");
  Tensor low;
  {
    Tensor dropped = g.low_rank_dropout ? dropout(g, x, name + ".lora_dropout") : x;
    low = linear(g, std::move(dropped), in, -1, rows, with_last(x.shape, first.shape[0]), name + ".lora_A");
  }
  Tensor high = linear(g, std::move(low), out, -1, rows, result.shape, name + ".lora_B");
  Tensor output = scale(g, std::move(high), name + ".lora_scaled");
  if (!g.autocast) output = to(g, output, back, name + ".lora_cast");
  return add(g, result, output, name + ".lora_sum");
}

}  // namespace ops
}  // namespace oomplan
