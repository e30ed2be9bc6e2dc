#include "layers/litgpt.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "layers/kernels.hpp"
#include "layers/litgpt_lora.hpp"
#include "layers/litgpt_prefix.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

bool parallel(const Layer& layer) {
  return layer.norm_place == NormPlace::parallel_one || layer.norm_place == NormPlace::parallel_two;
}

/// apply_rope: where the table is fp32, both products are. `table`: its format.
Tensor rope(Eager& g, const Tensor& x, DType table, const std::string& name) {
  Tensor cos = g.scalar(table), sin = g.scalar(table);  // slices of the model's buffers
  cos.shape = sin.shape = {S, x.shape.back()};
  const Shape half = with_last(x.shape, Dim(x.shape.back().coefficient / 2));
  const Tensor first = slice(g, x, half), second = slice(g, x, half);
  Tensor rotated;
  {
    std::vector<Tensor> parts;
    parts.push_back(neg(g, second, name + ".negated"));
    parts.push_back(first);
    rotated = cat(g, std::move(parts), x.shape, name + ".rotated");
  }
  Tensor turned;
  {
    Tensor straight = mul(g, x, cos, name + ".cos");
    Tensor crossed = mul(g, rotated, sin, name + ".sin");
    turned = add(g, std::move(straight), std::move(crossed), name + ".fp32");
  }
  return to(g, turned, x.dtype, name);
}

/// cat((rotated, x[..., width:])), where nothing may be left.
Tensor with_rest(Eager& g, const Tensor& rotated, const Tensor& x, const std::string& name) {
  std::vector<Tensor> parts{rotated};
  parts.push_back(slice(g, x, with_last(x.shape, Dim(x.shape.back().coefficient - rotated.shape.back().coefficient))));
  return cat(g, std::move(parts), x.shape, name);
}

/// x[..., :width], which is x itself where that is all.
Tensor leading(Eager& g, const Tensor& x, std::int64_t width) {
  return width == x.shape.back().coefficient ? x : slice(g, x, with_last(x.shape, width));
}

/// torch.ones(...).triu(), filled in place by its own truth.
Tensor triangle(Eager& g, DType dtype, const std::string& name) {
  Tensor mask;
  {
    Tensor ones = g.make(name + ".ones", {S, S}, dtype, Category::temporaries);
    mask = g.make(name, {S, S}, dtype);
  }
  Tensor truth = g.make(name + ".bool", {S, S}, DType::boolean, Category::temporaries);
  return mask;
}

/// scaled_dot_product_attention with a soft cap: written out.
Tensor capped_attention(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, Tensor mask) {
  Tensor scores;
  {
    Tensor keys = k;
    std::swap(keys.shape[2], keys.shape[3]);
    Tensor product = matmul(g, q, std::move(keys), {B, q.shape[1], S, S}, "attention.product");
    scores = scale(g, std::move(product), "attention.scores");
  }
  {
    Tensor divided = scale(g, scores, "attention.divided");
    Tensor bounded = tanh(g, std::move(divided), "attention.tanh");
    Tensor capped = scale(g, std::move(bounded), "attention.capped");
    scores = std::move(capped);
  }
  if (!mask) mask = triangle(g, q.dtype, "attention.mask");
  Tensor masked = add(g, scores, mask, "attention.masked");
  scores = std::move(masked);
  Tensor wide = softmax(g, scores, DType::fp32, "attention.probabilities_fp32");
  Tensor probabilities = to(g, std::move(wide), q.dtype, "attention.probabilities");
  scores = std::move(probabilities);
  return matmul(g, scores, v, q.shape, "attention.out_heads");
}

struct LitgptRunner {
  Eager& g;
  const Architecture& a;
  const Layer& layer;
  const LayerLeaves& w;
  const KernelOptions& options;
  LitgptBefore& before;

  /// x goes into packed layers.
  void remember(const Tensor& x, const char* name) const {
    if (before.there && g.packed.any() && g.packed.code.keeps_input && x.needs_grad())
      before.inputs.push_back(g.make(name, x.shape, x.dtype));
  }

  Tensor norm(const Tensor& x, const NormLeaf& leaf, const char* name) const {
    return litgpt_norm(g, layer.norm, x, leaf, options, name);
  }

  /// The view of queries, keys and values by groups; its gradient lies otherwise and is copied.
  Tensor by_group(const Tensor& qkv) const {
    const Mixer& m = layer.mixer;
    const std::int64_t all = m.heads / m.kv_heads + 2;
    Tensor out = qkv.alias({B, Dim(m.kv_heads), Dim(all), S, Dim(m.head_dim)});
    g.record(out, "ViewBackward0", {&qkv}, [this_g = &g, shape = qkv.shape](Gradients in) {
      return Gradients{gradient(*this_g, "view_backward", shape, in[0].dtype)};
    });
    return out;
  }

  Tensor attention(const Tensor& x) const {
    const Mixer& m = layer.mixer;
    const std::int64_t group = m.heads / m.kv_heads;
    const Dim d(m.head_dim), groups(m.kv_heads);
    const Shape all{B, Dim(m.heads), S, d}, few{B, groups, S, d};
    Tensor q, k, v, qkv;
    {
      Tensor flat = litgpt_qkv(g, x, m, w, options);
      qkv = by_group(flat);
      const Shape one{B, groups, Dim(1), S, d};
      std::vector<Tensor> parts = split(g, qkv, {{B, groups, Dim(group), S, d}, one, one});
      q = std::move(parts[0]);
      k = std::move(parts[1]);
      v = std::move(parts[2]);
    }
    if (group > 1 && m.kv_heads > 1) {
      Tensor queries = copy(g, q, all, "q");
      q = std::move(queries);
    }
    q.shape = all;
    k.shape = v.shape = few;
    for (auto* t : {&k, &v}) {
      Tensor expanded = repeat_kv(g, *t, all, t == &k ? "k" : "v");
      *t = std::move(expanded);
    }
    const DType table = options.narrow_tables ? options.parameters : DType::fp32;
    const Tensor turned_q = rope(g, leading(g, q, m.rotary_dim), table, "q_rotary");
    const Tensor turned_k = rope(g, leading(g, k, m.rotary_dim), table, "k_rotary");
    q = with_rest(g, turned_q, q, "q_joined");
    k = with_rest(g, turned_k, k, "k_joined");
    Tensor mask, bias;  // names of the function; SDPA makes its own mask from a flag
    if (m.softcap && m.span != AttentionSpan::full) {
      mask = triangle(g, q.dtype, "window");
      bias = triangle(g, q.dtype, "window_bias");
    }
    Tensor y;
    const Shape out_shape{B, S, Dim(m.heads), d};
    if (m.softcap) {
      Tensor heads = capped_attention(g, q, k, v, mask);
      y = copy(g, std::move(heads), out_shape, "attention.out");
    } else if (w.gates >= 0) {
      Tensor own = attend(g, {.query = q, .key = k, .value = v, .by_head = false, .out_shape = out_shape}, options).output;
      Tensor both = with_prefix(g, own, q, w.gates, out_shape, options.adapters.rank);
      own.reset();
      y = copy(g, std::move(both), out_shape, "attention.out_contiguous");
    } else {
      y = attend(g, {.query = q, .key = k, .value = v, .by_head = true, .out_shape = out_shape}, options).output;
    }
    y.shape = {B, S, Dim(m.out_width())};
    remember(y, "attention_before");
    return litgpt_linear(g, y, w.o, w.o_bias, T, {B, S, Dim(a.hidden)}, "proj");
  }

  /// LLaMAMLP, GemmaMLP and GptNeoxMLP.
  Tensor mlp(const Tensor& given) const {
    const FeedForward& ff = layer.feed_forward;
    const Shape wide{B, S, Dim(ff.width)}, narrow{B, S, Dim(a.hidden)};
    if (ff.kind == FeedForwardKind::plain) {
      Tensor x = litgpt_linear(g, given, w.up, w.up_bias, T, wide, "fc");
      Tensor active = activation(g, x, "act");
      x = std::move(active);
      remember(x, "mlp_before");
      return litgpt_linear(g, x, w.down, w.down_bias, T, narrow, "mlp_proj");
    }
    Tensor gate = litgpt_linear(g, given, w.gate, w.gate_bias, T, wide, "fc_1");
    Tensor up = litgpt_linear(g, given, w.up, w.up_bias, T, wide, "fc_2");
    Tensor x;
    {
      Tensor active = activation(g, gate, "act");
      x = mul(g, std::move(active), up, "product");
    }
    remember(x, "mlp_before");
    return litgpt_linear(g, x, w.down, w.down_bias, T, narrow, "mlp_proj");
  }

  Tensor run(const Tensor& x) const {
    const bool behind = layer.norm_place == NormPlace::pre_and_post;
    Tensor normed = norm(x, w.before_attention, "norm_1");
    remember(normed, "norm_1_before");
    Tensor attended = attention(normed);
    if (behind) {
      Tensor again = norm(attended, w.after_attention, "post_attention_norm");
      attended = std::move(again);
    }
    if (parallel(layer)) {
      if (layer.norm_place == NormPlace::parallel_two) {
        Tensor second = norm(x, w.before_feed_forward, "norm_2");
        normed = std::move(second);
        remember(normed, "norm_2_before");
      }
      Tensor fed = mlp(normed);
      Tensor halves = add(g, std::move(fed), attended, "halves");
      return add(g, std::move(halves), x, "output");
    }
    Tensor hidden = add(g, attended, x, "attention_residual");
    Tensor fed;
    {
      Tensor second = norm(hidden, w.before_feed_forward, "norm_2");
      remember(second, "norm_2_before");
      fed = mlp(second);
    }
    if (behind) {
      Tensor again = norm(fed, w.after_feed_forward, "post_mlp_norm");
      fed = std::move(again);
    }
    return add(g, std::move(fed), hidden, "output");
  }
};

std::string unsupported_litgpt_layer(const Architecture& a, const Layer& layer) {
  const Mixer& m = layer.mixer;
  const FeedForward& ff = layer.feed_forward;
  constexpr std::array kPlaces{NormPlace::pre, NormPlace::pre_and_post, NormPlace::parallel_one, NormPlace::parallel_two};
  if (m.kind != MixerKind::attention || m.qk_norm != QkNorm::none || m.sinks || m.clip || m.output_gate || m.rotary_dim == 0)
    return "this attention";
  if (m.softcap && m.heads == m.kv_heads) return "a soft cap of the scores without groups";
  if (m.span != AttentionSpan::full && !m.softcap && a.family != "mistral" && a.family != "phi3") return "windowed attention";
  if (ff.kind != FeedForwardKind::gated && ff.kind != FeedForwardKind::plain) return "this feed-forward block";
  if (ff.activation == Activation::relu || ff.activation == Activation::relu_squared) return "this activation";
  if (std::find(kPlaces.begin(), kPlaces.end(), layer.norm_place) == kPlaces.end()) return "this order of norms";
  if (layer.norm != NormKind::rms && layer.norm != NormKind::rms_plus_one && layer.norm != NormKind::layer) return "this norm";
  return {};
}

}  // namespace

std::string unsupported_litgpt(const Architecture& a, const KernelOptions& options) {
  constexpr std::array<std::string_view, 9> kFamilies{"llama", "mistral",  "gemma",  "gemma2", "phi",
                                                      "phi3",  "gpt_neox", "falcon", "qwen2"};
  if (std::find(kFamilies.begin(), kFamilies.end(), a.family) == kFamilies.end())
    return "LitGPT's model of '" + a.family + "' is not supported yet";
  if (options.liger.any() || options.padding_mask || options.ulysses > 1 || options.tensor > 1)
    return "Liger, padding masks, Ulysses and tensor parallelism are not supported yet with LitGPT's models";
  const auto joint = [](const std::string& target) { return target == "q_proj" || target == "k_proj" || target == "v_proj"; };
  const auto& targets = options.adapters.targets;
  if (options.autocast && options.adapters.rank > 0 && (targets.empty() || !std::all_of(targets.begin(), targets.end(), joint)))
    return "adapters of LitGPT but those of queries, keys and values under autocast are not supported yet";
  if (options.autocast && options.packed.any()) return "LitGPT's packed models under autocast are not supported yet";
  if (options.parameters == DType::fp32 && !options.autocast) return "LitGPT's models computed in fp32 are not supported yet";
  if (std::string why = unsupported_prefix(a, options); !why.empty()) return why;
  if (a.hidden_dropout > 0 || a.attention_dropout > 0 || a.embedding_dropout > 0 || a.position_rows > 0 || a.embedding_width > 0)
    return "this embedding or dropout is none of LitGPT's";
  for (const auto& run : a.runs)
    if (const std::string why = unsupported_litgpt_layer(a, run.layer); !why.empty())
      return why + " in LitGPT's model of '" + a.family + "' is not supported yet";
  return {};
}

Architecture litgpt_architecture(Architecture a, AdapterKind kind) {
  a.tied = false;
  return has_prefixes(kind) ? with_runs_of_prefixes(std::move(a)) : a;
}

Tensor litgpt_norm(Eager& g, NormKind kind, const Tensor& x, const NormLeaf& leaf, const KernelOptions& options,
                   const std::string& name) {
  if (kind == NormKind::layer) return run_norm(g, NormCode::layer, x, leaf, name);
  Tensor wide = to(g, x, DType::fp32, name + ".fp32"), mean;
  {
    Tensor squares = mul(g, wide, wide, name + ".squares");
    mean = mean_last(g, std::move(squares));
  }
  Tensor normed;
  {
    Tensor shifted = add_scalar(g, mean, name + ".variance");
    Tensor root = rsqrt(g, std::move(shifted), name + ".rstd");
    normed = mul(g, wide, std::move(root), name + ".normed_fp32");
  }
  const bool early = options.kernels == Kernels::litgpt_0_4_5;  // cast in front of the weight (Lightning-AI/litgpt #1545)
  if (early) {
    Tensor narrow = to(g, normed, x.dtype, name + ".normed");
    normed = std::move(narrow);
  }
  Tensor weight = g.leaf(leaf.weight);
  if (kind == NormKind::rms_plus_one) weight = add_scalar(g, Tensor(weight), name + ".weight_plus_one");
  if (early) return mul(g, normed, std::move(weight), name + ".output");
  Tensor wide_weight = to(g, weight, DType::fp32, name + ".weight_fp32");
  Tensor weighted = mul(g, normed, std::move(wide_weight), name + ".weighted");
  return to(g, std::move(weighted), x.dtype, name + ".output");
}

Tensor run_litgpt_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                        const Tensor& x, LitgptBefore& before) {
  return LitgptRunner{g, a, layer, w, options, before}.run(x);
}

Bytes litgpt_buffers(const Architecture& a, std::int64_t sequence_tokens) {
  return 2 * bytes_of(a.runs.front().layer.mixer.rotary_dim * sequence_tokens, DType::fp32);
}

}  // namespace oomplan
