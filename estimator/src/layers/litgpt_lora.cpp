#include "layers/litgpt_lora.hpp"

#include <algorithm>

#include "layers/litgpt.hpp"
#include "layers/litgpt_prefix.hpp"
#include "layers/ops.hpp"
#include "layers/packed_linear.hpp"
#include "layers/vectors.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

bool targets(const AdapterOptions& adapters, std::string_view module) {
  return std::find(adapters.targets.begin(), adapters.targets.end(), module) != adapters.targets.end();
}

/// F.conv1d with a kernel of one token: saves input and weight.
Tensor convolution(Eager& g, const Tensor& x, const Tensor& given, Dim width, const std::string& name) {
  // a view of the parameter, of which autocast keeps no copy
  const Tensor weight = g.autocast ? to(g, given, DType::bf16, name + ".weight_bf16") : given;
  const bool recorded = g.will_record({&x, &weight});
  Saved saved = recorded ? g.save(x) : Saved(), saved_weight = recorded ? g.save(weight) : Saved();
  Tensor out = g.make(name, {B, width, S}, x.dtype);
  if (recorded) {
    const Shape weights = weight.shape;
    g.record(out, "ConvolutionBackward0", {&x, &weight}, [&g, saved, saved_weight, weights](Gradients in) {
      (void)saved_weight.get();
      Tensor for_x = gradient(g, "convolution_backward", saved.get().shape, in[0].dtype);
      return Gradients{for_x, g.make("convolution.weight_gradient", weights, in[0].dtype, Category::gradients)};
    });
  }
  return out;
}

/// LoRAQKVLinear.conv1d: one grouped convolution, or under grouped queries one for each part.
Tensor second_products(Eager& g, const Tensor& low, const Mixer& m, const LitgptParts& parts, const LayerLeaves& w) {
  const Tensor weight = g.leaf(w.qkv_lora_b);
  if (m.heads == m.kv_heads) return convolution(g, low, weight, weight.shape[0], "lora_B");
  const std::int64_t rank = weight.shape[1].coefficient;
  std::vector<Shape> inputs, weights;
  for (const auto& [used, width] : {std::pair{parts.q, m.q_width()}, {parts.k, m.k_width()}, {parts.v, m.v_width()}}) {
    if (!used) continue;
    inputs.push_back({B, S, Dim(rank)});
    weights.push_back({Dim(width), Dim(rank)});
  }
  const std::vector<Tensor> x = split(g, low, inputs), matrices = split(g, weight, weights);
  std::vector<Tensor> products;
  for (std::size_t i = 0; i < x.size(); ++i) products.push_back(convolution(g, x[i], matrices[i], weights[i][0], "lora_B.part"));
  return cat(g, std::move(products), {B, weight.shape[0], S}, "lora_B");
}

/// zero_pad: zeros of the whole width, into which the parts are copied (Lightning-AI/litgpt #770, 0.3.1).
Tensor padded(Eager& g, const Tensor& x, Dim width) {
  Tensor zeros = g.make("lora_padded", {B, S, width}, x.dtype);
  Tensor out = zeros.alias(zeros.shape);
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();  // for its shape alone (tools/autograd/derivatives.yaml)
  if (recorded)
    g.record(out, "IndexCopyBackward0", {&x},
             [&g, saved](Gradients in) { return Gradients{gradient(g, "index_copy_backward", saved.get().shape, in[0].dtype)}; });
  return out;
}

/// Fabric's BitsandbytesPrecision replaces every nn.Linear, the output layer among them (lightning/fabric/plugins/precision/
/// bitsandbytes.py, 2.2).
int packed_matrix(Eager& g, std::string name, Shape shape, DType dtype) {
  const int weight = g.parameter(std::move(name), std::move(shape), dtype);
  if (g.packed.any()) pack(g, weight);
  return weight;
}

}  // namespace

Tensor litgpt_linear(Eager& g, const Tensor& x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name,
                     Category category) {
  const Leaf base = g.leaves[static_cast<std::size_t>(weight)];
  if (base.packed != PackedLeaf::weight || base.low_rank_in < 0) {
    Tensor plain = linear(g, x, weight, bias, rows, std::move(out_shape), name, category);
    return scaled_and_shifted(g, std::move(plain), base, name);
  }
  Tensor pretrained = packed_linear(g, x, weight, bias, rows, std::move(out_shape), name);
  const Dim rank = g.leaves[static_cast<std::size_t>(base.low_rank_in)].shape[0];
  Tensor low;
  {
    Tensor dropped = g.low_rank_dropout ? dropout(g, x, name + ".lora_dropout") : x;
    low = linear(g, std::move(dropped), base.low_rank_in, -1, rows, with_last(x.shape, rank), name + ".lora_A");
  }
  Tensor high = linear(g, std::move(low), base.low_rank_out, -1, rows, pretrained.shape, name + ".lora_B");
  Tensor scaled = scale(g, std::move(high), name + ".lora_scaled");
  return add(g, pretrained, std::move(scaled), name + ".lora_sum");
}

LitgptParts litgpt_parts(const AdapterOptions& adapters) {
  if (adapters.rank == 0 || adapters.kind != AdapterKind::lora) return {};
  const bool all = adapters.targets.empty();
  return {all || targets(adapters, "q_proj"), all || targets(adapters, "k_proj"), all || targets(adapters, "v_proj")};
}

Tensor litgpt_qkv(Eager& g, const Tensor& x, const Mixer& m, const LayerLeaves& w, const KernelOptions& options) {
  const Dim width(m.q_width() + m.k_width() + m.v_width());
  Tensor pretrained = litgpt_linear(g, x, w.qkv, w.qkv_bias, T, {B, S, width}, "qkv");
  if (w.qkv_lora_a < 0) return pretrained;
  const LitgptParts parts = litgpt_parts(options.adapters);
  const Dim ranks = g.leaves[static_cast<std::size_t>(w.qkv_lora_a)].shape[0];
  Tensor low;
  {
    Tensor dropped = g.low_rank_dropout ? dropout(g, x, "lora_dropout") : x;
    low = linear(g, std::move(dropped), w.qkv_lora_a, -1, T, {B, S, ranks}, "lora_A");
  }
  Tensor high = second_products(g, low, m, parts, w);
  high.shape = {B, S, high.shape[1]};
  Tensor scaled = scale(g, high, "lora_scaled");
  Tensor update = parts.count() == 3 ? scaled : padded(g, scaled, width);
  scaled.reset();
  return add(g, pretrained, update, "adapted");
}

LayerLeaves declare_litgpt_layer(Eager& g, const Architecture& a, const Layer& layer, DType dtype, const AdapterOptions& adapters,
                                 std::int64_t number) {
  LayerLeaves w;
  const Mixer& m = layer.mixer;
  const FeedForward& ff = layer.feed_forward;
  const bool pairs = adapters.rank > 0 && adapters.kind == AdapterKind::lora, every = pairs && adapters.targets.empty();
  const bool scaled = adapters.rank > 0 && adapters.kind == AdapterKind::adapter_v2;
  const auto matrix = [&](const char* module, std::int64_t out, std::int64_t in, std::string_view target) {
    const int weight = packed_matrix(g, std::string(module) + ".weight", {out, in}, dtype);
    if (scaled) add_vectors(g, weight, std::string(module) + ".weight", out, in, adapters);
    if (pairs && (every || targets(adapters, target))) g.add_low_rank(weight, adapters.rank, in, out, adapters.dtype);
    return weight;
  };
  const auto bias = [&](bool has, const char* name, std::int64_t width) {
    return has ? g.parameter(std::string(name) + ".bias", {width}, dtype) : -1;
  };
  const auto norm = [&](const char* name) { return declare_norm(g, layer.norm, name, a.hidden, dtype); };
  const std::int64_t qkv = m.q_width() + m.k_width() + m.v_width();
  w.before_attention = norm("norm_1");
  w.qkv = packed_matrix(g, "attn.attn.weight", {qkv, a.hidden}, dtype);
  if (scaled) add_vectors(g, w.qkv, "attn.attn.weight", qkv, a.hidden, adapters);
  w.qkv_bias = bias(m.q_bias, "attn.attn", qkv);
  if (has_prefixes(adapters.kind) && adapters.rank > 0 && number >= kLayersWithoutPrefix) {
    g.parameter("attn.adapter_wte.weight", {adapters.rank, a.hidden}, dtype);
    w.gates = g.parameter("attn.gating_factor", {1, 1, m.heads, 1}, adapters.dtype);
  }
  if (const LitgptParts parts = litgpt_parts(adapters); parts.count() > 0) {
    const std::int64_t out = (parts.q ? m.q_width() : 0) + (parts.k ? m.k_width() : 0) + (parts.v ? m.v_width() : 0);
    w.qkv_lora_a = g.parameter("attn.attn.lora_A", {adapters.rank * parts.count(), a.hidden}, adapters.dtype);
    w.qkv_lora_b = g.parameter("attn.attn.lora_B", {out, adapters.rank}, adapters.dtype);
  }
  w.o = matrix("attn.proj", a.hidden, m.out_width(), "o_proj");
  w.o_bias = bias(m.out_bias, "attn.proj", a.hidden);
  if (layer.norm_place == NormPlace::pre_and_post) w.after_attention = norm("post_attention_norm");
  if (layer.norm_place != NormPlace::parallel_one) w.before_feed_forward = norm("norm_2");
  if (ff.kind == FeedForwardKind::gated) {
    w.gate = matrix("mlp.fc_1", ff.width, a.hidden, "gate_proj");
    w.gate_bias = bias(ff.bias, "mlp.fc_1", ff.width);
    w.up = matrix("mlp.fc_2", ff.width, a.hidden, "up_proj");
    w.up_bias = bias(ff.bias, "mlp.fc_2", ff.width);
  } else {
    w.up = matrix("mlp.fc", ff.width, a.hidden, "up_proj");
    w.up_bias = bias(ff.bias, "mlp.fc", ff.width);
  }
  w.down = matrix("mlp.proj", a.hidden, ff.width, "down_proj");
  w.down_bias = bias(ff.bias, "mlp.proj", a.hidden);
  if (layer.norm_place == NormPlace::pre_and_post) w.after_feed_forward = norm("post_mlp_norm");
  return w;
}

void adapt_litgpt_head(Eager& g, const Architecture& a, int head, const AdapterOptions& adapters) {
  if (g.packed.any()) pack(g, head);
  if (adapters.rank == 0) return;
  if (adapters.kind == AdapterKind::adapter_v2) add_vectors(g, head, "lm_head.weight", a.vocab, a.hidden, adapters);
  if (adapters.kind == AdapterKind::lora && targets(adapters, "lm_head"))
    g.add_low_rank(head, adapters.rank, a.hidden, a.vocab, adapters.dtype);
}

}  // namespace oomplan
