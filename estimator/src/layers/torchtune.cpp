#include "layers/torchtune.hpp"

#include "layers/kernels.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

bool packed(const KernelOptions& options) { return options.kernels == Kernels::torchtune_packed; }

/// Llama3ScaledRoPE.forward of x, [B, S, heads, d]: pairs of neighbours. Positions of packed samples gather their rows of the
/// table.
Tensor rope(Eager& g, const Tensor& x, const KernelOptions& options, const std::string& name) {
  const Dim width = x.shape.back();
  const Shape half = with_last(x.shape, Dim(width.coefficient / 2));
  const Tensor table = packed(options) ? g.make(name + ".table", {B, S, width}, DType::fp32) : g.scalar(DType::fp32);
  const Tensor turns = table.alias({B, S, Dim(1), half.back()});
  const Tensor wide = to(g, x, DType::fp32, name + ".fp32");
  Tensor turned;
  {
    std::vector<Tensor> parts;
    {
      const Tensor first = slice(g, wide, half), second = slice(g, wide, half);
      Tensor straight = mul(g, first, turns, name + ".straight");
      Tensor crossed = mul(g, second, turns, name + ".crossed");
      parts.push_back(sub(g, std::move(straight), std::move(crossed), name + ".first"));
    }
    {
      const Tensor second = slice(g, wide, half), first = slice(g, wide, half);
      Tensor straight = mul(g, second, turns, name + ".straight");
      Tensor crossed = mul(g, first, turns, name + ".crossed");
      parts.push_back(add(g, std::move(straight), std::move(crossed), name + ".second"));
    }
    turned = cat(g, std::move(parts), x.shape, name + ".turned");
  }
  return to(g, turned, x.dtype, name);
}

/// MultiHeadAttention.forward. flex_attention keeps what flash-attention keeps; its backward kernel adds queries' gradients up in
/// place, without a copy in fp32.
Tensor torchtune_attention(Eager& g, const Architecture& a, const Mixer& m, const LayerLeaves& w, const KernelOptions& options,
                           const Tensor& x) {
  const auto heads = [&](int weight, int bias, std::int64_t n, const char* name) {
    Tensor t = linear(g, x, weight, bias, T, {B, S, Dim(n * m.head_dim)}, name);
    t.shape = {B, S, Dim(n), Dim(m.head_dim)};
    return t;
  };
  Tensor q = heads(w.q, w.q_bias, m.heads, "q");
  q = rope(g, q, options, "q_rotary");
  Tensor k = heads(w.k, w.k_bias, m.kv_heads, "k"), v = heads(w.v, w.v_bias, m.kv_heads, "v");
  k = rope(g, k, options, "k_rotary");
  for (auto* t : {&q, &k, &v}) std::swap(t->shape[1], t->shape[2]);
  const Shape all{B, Dim(m.heads), S, Dim(m.head_dim)};
  Tensor repeated = repeat_kv(g, k, all, "k_repeated");
  k = std::move(repeated);
  repeated = repeat_kv(g, v, all, "v_repeated");
  v = std::move(repeated);
  KernelOptions kernel = options;
  if (packed(options)) kernel.kernel_internals = false;
  Tensor output =
      attend(g, {.query = q, .key = k, .value = v, .out_shape = {B, S, Dim(m.heads), Dim(m.head_dim)}}, kernel).output;
  output.shape = {B, S, Dim(m.out_width())};
  return linear(g, output, w.o, w.o_bias, T, {B, S, Dim(a.hidden)}, "o");
}

/// FeedForward.forward: one name, rebound.
Tensor feed_forward(Eager& g, const Architecture& a, std::int64_t width, const LayerLeaves& w, const Tensor& x) {
  const Shape wide{B, S, Dim(width)};
  Tensor h;
  {
    Tensor gate = linear(g, x, w.gate, -1, T, wide, "w1");
    h = activation(g, std::move(gate), "active");
  }
  {
    Tensor up = linear(g, x, w.up, -1, T, wide, "w3");
    Tensor product = mul(g, h, std::move(up), "product");
    h = std::move(product);
  }
  return linear(g, h, w.down, -1, T, {B, S, Dim(a.hidden)}, "w2");
}

std::string unsupported_torchtune_layer(const Architecture& a, const Layer& layer) {
  const Mixer& m = layer.mixer;
  const FeedForward& ff = layer.feed_forward;
  const bool plain = m.kind == MixerKind::attention && m.qk_norm == QkNorm::none && !m.softcap && !m.sinks && !m.clip &&
                     !m.output_gate && !m.out_bias && m.rotary_dim == m.head_dim;
  if (!plain || layer.norm != NormKind::rms || layer.norm_place != NormPlace::pre) return "this layer";
  if (ff.kind != FeedForwardKind::gated || ff.bias || ff.activation != Activation::silu) return "this feed-forward block";
  return m.q_width() != a.hidden ? "heads that are together not as wide as the model" : std::string();
}

}  // namespace

std::string unsupported_torchtune(const Architecture& a, const KernelOptions& options) {
  if (a.family != "llama" && a.family != "mistral") return "torchtune's model of '" + a.family + "' is not supported yet";
  if (options.liger.any() || options.autocast || options.padding_mask || options.ulysses > 1 || options.tensor > 1)
    return "Liger, autocast, padding masks, Ulysses and tensor parallelism are not supported yet with torchtune's models";
  if (options.packed.any() || options.adapters.dora) return "QLoRA and DoRA of torchtune's models are not supported yet";
  if (options.parameters != DType::bf16) return "torchtune's models in another format than bf16 are not supported yet";
  if (a.hidden_dropout > 0 || a.attention_dropout > 0) return "dropout in torchtune's models is not supported yet";
  for (const auto& run : a.runs)
    if (const std::string why = unsupported_torchtune_layer(a, run.layer); !why.empty())
      return why + " in torchtune's model of '" + a.family + "' is not supported yet";
  return {};
}

/// (x_fp32 * rsqrt(x_fp32.pow(2).mean() + eps)).type_as(x) * scale.
Tensor torchtune_norm(Eager& g, const Tensor& x, const NormLeaf& leaf, const std::string& name) {
  const Tensor wide = to(g, x, DType::fp32, name + ".fp32");
  Tensor normed;
  {
    Tensor squares = pow2(g, wide);
    Tensor mean = mean_last(g, std::move(squares));
    Tensor shifted = add_scalar(g, std::move(mean), name + ".variance");
    Tensor root = rsqrt(g, std::move(shifted), name + ".rstd");
    Tensor product = mul(g, wide, std::move(root), name + ".normed_fp32");
    normed = to(g, std::move(product), x.dtype, name + ".normed");
  }
  return mul(g, normed, g.leaf(leaf.weight), name + ".output");
}

Tensor run_torchtune_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w,
                           const KernelOptions& options, const Tensor& x) {
  Tensor h = torchtune_norm(g, x, w.before_attention, "sa_norm");
  const Tensor attended = torchtune_attention(g, a, layer.mixer, w, options, h);
  Tensor sum = add(g, attended, x, "attention_residual");
  h = std::move(sum);
  Tensor fed;
  {
    Tensor normed = torchtune_norm(g, h, w.before_feed_forward, "mlp_norm");
    fed = feed_forward(g, a, layer.feed_forward.width, w, normed);
  }
  return add(g, h, fed, "output");
}

Bytes torchtune_buffers(const Architecture& a) {
  const std::int64_t width = a.runs.front().layer.mixer.head_dim;
  return bytes_of(a.max_positions * width, DType::fp32) + bytes_of(width / 2, DType::fp32);
}

}  // namespace oomplan
