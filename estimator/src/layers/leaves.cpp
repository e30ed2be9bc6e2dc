// Parameters of a decoder layer, in the order in which its modules register them.
#include <algorithm>
#include <string>
#include <string_view>

#include "catalog/names.hpp"
#include "layers/decoder.hpp"
#include "layers/families.hpp"
#include "layers/vectors.hpp"

namespace oomplan {
namespace {

/// What the functions here share.
struct Declarer {
  Eager& g;
  const FamilyCode& code;
  std::int64_t h;
  DType dtype;
  LayerLeaves& w;
  const AdapterOptions& adapters;
  const Names& names;  ///< of the family's own modules
  bool expert_modules = false;

  /// The weight of a linear layer, and the adapters that this layer gets.
  int matrix(const char* name, std::int64_t out, std::int64_t in) const {
    const int weight = g.parameter(name, code.conv1d ? Shape{in, out} : Shape{out, in}, dtype);
    if (g.packed.any()) pack(g, weight);
    if (adapters.rank > 0 && is_target(name)) add_pair(weight, name, out, in);
    return weight;
  }
  void add_pair(int weight, std::string module, std::int64_t out, std::int64_t in) const {
    if (adapters.kind != AdapterKind::lora) return add_vectors(g, weight, module, out, in, adapters);
    g.add_low_rank(weight, adapters.rank, in, out, adapters.dtype);
    if (!adapters.dora) return;
    module.resize(module.size() - std::string_view(".weight").size());
    const int magnitude = g.parameter(module + ".lora_magnitude_vector.weight", {out}, adapters.dtype);
    g.leaves[static_cast<std::size_t>(weight)].magnitude = magnitude;
  }
  bool is_target(std::string_view name) const {
    if (adapters.by_module)
      return adapters.modules.beside(adapters.layer,
                                     std::string(name.substr(0, name.size() - std::string_view(".weight").size())));
    if (adapters.targets.empty()) return !of_experts(name);
    name.remove_suffix(std::string_view(".weight").size());
    return std::any_of(adapters.targets.begin(), adapters.targets.end(), [&](const std::string& target) {
      return name.ends_with("." + target) || target == own_word(name.substr(name.rfind('.') + 1));
    });
  }
  /// A job may state what the family's modules are called: LFM2's w1 is the gate's projection.
  std::string_view own_word(std::string_view word) const {
    if (!code.own_words) return word;
    const std::pair<std::string_view, std::string_view> words[] = {
        {"gate_proj", names.gate}, {"up_proj", names.up},  {"down_proj", names.down}, {"fc1", names.up},
        {"fc2", names.down},       {"q_proj", names.q},    {"k_proj", names.k},       {"v_proj", names.v},
        {"o_proj", names.out},     {"qkv_proj", names.qkv}};
    for (const auto& [ours, own] : words)
      if (word == ours) return own;
    return word;
  }
  /// What peft takes for the experts' matrices of a model whose experts transformers 5 fused, wherever it stands.
  bool of_experts(std::string_view name) const {
    if (!code.adapts_experts) return false;
    return name.ends_with(".gate_proj.weight") || name.ends_with(".up_proj.weight") || name.ends_with(".down_proj.weight");
  }
  /// Whether a pair is folded into an expert's stack or a router's matrix.
  bool folds(const char* leaf) const {
    if (adapters.rank == 0 || !code.adapts_experts) return false;
    return adapters.by_module ? adapters.modules.beside(adapters.layer, leaf) : adapters.targets.empty();
  }
  int vector(const char* name, std::int64_t width) const { return g.parameter(name, {width}, dtype); }

  void output(const Mixer& m) const {
    w.o = matrix("self_attn.o_proj.weight", h, m.out_width());
    if (m.out_bias) w.o_bias = vector("self_attn.o_proj.bias", h);
  }

  void attention(const Mixer& m) const {
    if (m.sinks) w.sinks = vector("self_attn.sinks", m.heads);
    if (m.fused_qkv) {
      const bool out_first = code.fused_qkv == FusedQkv::slices;
      if (out_first) output(m);
      const std::int64_t width = m.q_width() + m.k_width() + m.v_width();
      w.qkv = matrix("self_attn.qkv_proj.weight", width, h);
      if (m.q_bias) w.qkv_bias = vector("self_attn.qkv_proj.bias", width);
      if (!out_first) output(m);
      return;
    }
    const std::int64_t queries = m.q_width() * (m.output_gate && !code.gate_apart ? 2 : 1);
    w.q = matrix("self_attn.q_proj.weight", queries, h);
    if (m.q_bias) w.q_bias = vector("self_attn.q_proj.bias", queries);
    if (!m.shared_kv) w.k = matrix("self_attn.k_proj.weight", m.k_width(), h);
    if (m.k_bias && !m.shared_kv) w.k_bias = vector("self_attn.k_proj.bias", m.k_width());
    if (!m.shared_kv && !m.key_is_value) w.v = matrix("self_attn.v_proj.weight", m.v_width(), h);
    if (m.v_bias && !m.shared_kv && !m.key_is_value) w.v_bias = vector("self_attn.v_proj.bias", m.v_width());
    output(m);
    if (m.output_gate && code.gate_apart) w.attention_gate = matrix("self_attn.gate_proj.weight", m.q_width(), h);
    if (m.qk_norm == QkNorm::none || m.qk_norm == QkNorm::unweighted) return;
    const bool by_head = m.qk_norm == QkNorm::head;
    w.q_norm.weight = vector("self_attn.q_norm.weight", by_head ? m.head_dim : m.q_width());
    if (!m.shared_kv) w.k_norm.weight = vector("self_attn.k_norm.weight", by_head ? m.head_dim : m.k_width());
    for (const int leaf : {w.q_norm.weight, w.k_norm.weight})
      if (leaf >= 0) g.leaves[static_cast<std::size_t>(leaf)].replicated = by_head;
  }

  void latent_attention(const Mixer& m) const {
    if (m.q_lora_rank == 0) {
      w.q = matrix("self_attn.q_proj.weight", m.q_width(), h);
    } else {
      w.q_a = matrix("self_attn.q_a_proj.weight", m.q_lora_rank, h);
      if (m.q_bias) w.q_a_bias = vector("self_attn.q_a_proj.bias", m.q_lora_rank);
      w.q_a_norm.weight = vector("self_attn.q_a_layernorm.weight", m.q_lora_rank);
      w.q = matrix("self_attn.q_b_proj.weight", m.q_width(), m.q_lora_rank);
    }
    w.kv_a = matrix("self_attn.kv_a_proj_with_mqa.weight", m.kv_lora_rank + m.rope_head_dim, h);
    if (m.k_bias) w.kv_a_bias = vector("self_attn.kv_a_proj_with_mqa.bias", m.kv_lora_rank + m.rope_head_dim);
    w.kv_a_norm.weight = vector("self_attn.kv_a_layernorm.weight", m.kv_lora_rank);
    w.kv_b = matrix("self_attn.kv_b_proj.weight", m.heads * (m.nope_head_dim + m.value_head_dim), m.kv_lora_rank);
    output(m);
    if (m.index_heads > 0) indexer(m);
  }

  /// It runs without gradients: its parameters want some and get none.
  void indexer(const Mixer& m) const {
    const auto frozen = [&](const char* name, Shape shape) { return g.parameter(name, std::move(shape), dtype, false); };
    w.index_q = frozen("self_attn.indexer.wq_b.weight", {m.index_heads * m.index_head_dim, m.q_lora_rank});
    w.index_k = frozen("self_attn.indexer.wk.weight", {m.index_head_dim, h});
    w.index_k_norm.weight = frozen("self_attn.indexer.k_norm.weight", {m.index_head_dim});
    w.index_k_norm.bias = frozen("self_attn.indexer.k_norm.bias", {m.index_head_dim});
    w.index_weights = frozen("self_attn.indexer.weights_proj.weight", {m.index_heads, h});
  }

  void gated_delta(const Mixer& m) const {
    StateLeaves& s = w.state;
    const std::int64_t keys = m.linear_key_heads * m.linear_key_dim, values = m.linear_value_heads * m.linear_value_dim;
    const auto rest = [&] {
      s.norm = vector("linear_attn.norm.weight", m.linear_value_dim);
      s.out = matrix("linear_attn.out_proj.weight", h, values);
    };
    // parameters of the module itself come first
    s.dt_bias = vector("linear_attn.dt_bias", m.linear_value_heads);
    s.a_log = vector("linear_attn.A_log", m.linear_value_heads);
    s.conv = g.parameter("linear_attn.conv1d.weight", {2 * keys + values, 1, m.conv_kernel}, dtype);
    if (code.delta_apart) {
      rest();
      s.in = matrix("linear_attn.in_proj_qkv.weight", 2 * keys + values, h);
      s.in_z = matrix("linear_attn.in_proj_z.weight", values, h);
      s.in_b = matrix("linear_attn.in_proj_b.weight", m.linear_value_heads, h);
      s.in_a = matrix("linear_attn.in_proj_a.weight", m.linear_value_heads, h);
      return;
    }
    s.in = matrix("linear_attn.in_proj_qkvz.weight", 2 * keys + 2 * values, h);
    s.in_ba = matrix("linear_attn.in_proj_ba.weight", 2 * m.linear_value_heads, h);
    rest();
  }

  void lightning(const Mixer& m) const {
    w.state.norm = vector("self_attn.norm.weight", m.q_width());
    w.qkv = matrix("self_attn.qkv_proj.weight", 3 * m.q_width(), h);
    w.o = matrix("self_attn.out_proj.weight", h, m.q_width());
    w.attention_gate = matrix("self_attn.output_gate.weight", m.q_width(), h);
  }

  void short_conv(const Mixer& m) const {
    StateLeaves& s = w.state;
    s.conv = g.parameter("conv.conv.weight", {h, 1, m.conv_kernel}, dtype);
    if (m.conv_bias) s.conv_bias = vector("conv.conv.bias", h);
    s.in = matrix("conv.in_proj.weight", 3 * h, h);
    if (m.q_bias) s.in_bias = vector("conv.in_proj.bias", 3 * h);
    s.out = matrix("conv.out_proj.weight", h, h);
    if (m.out_bias) s.out_bias = vector("conv.out_proj.bias", h);
  }

  void mamba(const Mixer& m) const {
    StateLeaves& s = w.state;
    s.a_log = g.parameter("mixer.A_log", {m.inner, m.state_size}, dtype);
    s.d = vector("mixer.D", m.inner);
    s.conv = g.parameter("mixer.conv1d.weight", {m.inner, 1, m.conv_kernel}, dtype);
    if (m.conv_bias) s.conv_bias = vector("mixer.conv1d.bias", m.inner);
    s.in = matrix("mixer.in_proj.weight", 2 * m.inner, h);
    if (m.q_bias) s.in_bias = vector("mixer.in_proj.bias", 2 * m.inner);
    s.x = matrix("mixer.x_proj.weight", m.dt_rank + 2 * m.state_size, m.inner);
    s.dt = matrix("mixer.dt_proj.weight", m.inner, m.dt_rank);
    s.dt_proj_bias = vector("mixer.dt_proj.bias", m.inner);
    s.out = matrix("mixer.out_proj.weight", h, m.inner);
    if (m.out_bias) s.out_bias = vector("mixer.out_proj.bias", h);
    if (!m.ssm_norms || code.norms_scan) return;
    s.dt_norm = vector("mixer.dt_layernorm.weight", m.dt_rank);
    s.b_norm = vector("mixer.b_layernorm.weight", m.state_size);
    s.c_norm = vector("mixer.c_layernorm.weight", m.state_size);
  }

  void mamba2(const Mixer& m) const {
    StateLeaves& s = w.state;
    const std::int64_t convolved = m.inner + 2 * m.groups * m.state_size, heads = m.linear_value_heads;
    s.dt_bias = vector("mixer.dt_bias", heads);
    s.a_log = vector("mixer.A_log", heads);
    s.d = vector("mixer.D", heads);
    s.conv = g.parameter("mixer.conv1d.weight", {convolved, 1, m.conv_kernel}, dtype);
    if (m.conv_bias) s.conv_bias = vector("mixer.conv1d.bias", convolved);
    s.in = matrix("mixer.in_proj.weight", m.inner + convolved + heads, h);
    if (m.q_bias) s.in_bias = vector("mixer.in_proj.bias", m.inner + convolved + heads);
    s.norm = vector("mixer.norm.weight", m.inner);
    s.out = matrix("mixer.out_proj.weight", h, m.inner);
    if (m.out_bias) s.out_bias = vector("mixer.out_proj.bias", h);
  }

  void dense(const FeedForward& ff) const {
    const auto bias = [&](const char* name, std::int64_t width) { return ff.bias ? vector(name, width) : -1; };
    if (ff.kind == FeedForwardKind::plain) {
      w.up = matrix("mlp.fc1.weight", ff.width, h);
      w.up_bias = bias("mlp.fc1.bias", ff.width);
    } else if (ff.fused_gate_up && code.shared == SharedPlace::apart) {
      w.gate_up = matrix("shared_mlp.input_linear.weight", 2 * ff.width, h);
      w.down = matrix("shared_mlp.output_linear.weight", h, ff.width);
      return;
    } else if (ff.fused_gate_up) {
      w.gate_up = matrix("mlp.gate_up_proj.weight", 2 * ff.width, h);
    } else {
      w.gate = matrix("mlp.gate_proj.weight", ff.width, h);
      w.gate_bias = bias("mlp.gate_proj.bias", ff.width);
      w.up = matrix("mlp.up_proj.weight", ff.width, h);
      w.up_bias = bias("mlp.up_proj.bias", ff.width);
    }
    w.down = matrix("mlp.down_proj.weight", h, ff.width);
    w.down_bias = bias("mlp.down_proj.bias", h);
    if (ff.activation != Activation::xielu) return;
    w.alpha_p = vector("mlp.act_fn.alpha_p", 1);
    w.alpha_n = vector("mlp.act_fn.alpha_n", 1);
  }

  void router(const FeedForward& ff) const {
    // a parameter of the router's own module in transformers 5: no linear layer
    const bool wide = g.wide_routers;
    w.router = g.parameter("mlp.gate.weight", {ff.experts, h}, wide ? DType::fp32 : dtype);
    g.leaves[static_cast<std::size_t>(w.router)].stored_as_is = wide;
    if (folds("mlp.gate")) g.add_low_rank(w.router, adapters.rank, h, ff.experts, adapters.dtype);
    if (ff.router_bias) w.router_bias = vector("mlp.gate.bias", ff.experts);
  }

  void experts(const FeedForward& ff) const {
    const std::int64_t e = ff.experts, width = ff.expert_width;
    if (code.router_first) router(ff);
    if (code.own == OwnCode::dbrx) {  // three stacks of rows
      w.gate = g.parameter("ffn.experts.mlp.w1", {e * width, h}, dtype);
      w.up = g.parameter("ffn.experts.mlp.v1", {e * width, h}, dtype);
      w.down = g.parameter("ffn.experts.mlp.w2", {e * width, h}, dtype);
      return;
    }
    if (expert_modules) {
      modules(ff);
      if (!code.router_first) router(ff);
      shared(ff);
      return;
    }
    const std::int64_t in = ff.latent_width > 0 ? ff.latent_width : h;
    const char* name = ff.experts_gated ? "mlp.experts.gate_up_proj" : "mlp.experts.up_proj";
    const std::int64_t wide = (ff.experts_gated ? 2 : 1) * width;
    w.experts_gate_up = g.parameter(name, code.every_expert ? Shape{e, in, wide} : Shape{e, wide, in}, dtype);
    // two matrices in one: twice the rank
    if (folds(name)) g.add_low_rank(w.experts_gate_up, 2 * adapters.rank * e, h, 2 * width, adapters.dtype);
    if (ff.expert_bias) w.experts_gate_up_bias = g.parameter("mlp.experts.gate_up_proj_bias", {e, 2 * width}, dtype);
    w.experts_down = g.parameter("mlp.experts.down_proj", code.every_expert ? Shape{e, width, in} : Shape{e, in, width}, dtype);
    if (folds("mlp.experts.down_proj")) g.add_low_rank(w.experts_down, adapters.rank * e, width, h, adapters.dtype);
    if (ff.expert_bias) w.experts_down_bias = g.parameter("mlp.experts.down_proj_bias", {e, h}, dtype);
    if (!code.router_first) router(ff);
    if (ff.correction_bias && code.correction_is_parameter)
      w.correction = g.parameter("mlp.expert_bias", {ff.experts}, dtype, false);
    shared(ff);
    if (ff.latent_width == 0) return;
    w.latent_in = matrix("mlp.fc1_latent_proj.weight", ff.latent_width, h);
    w.latent_out = matrix("mlp.fc2_latent_proj.weight", h, ff.latent_width);
  }

  /// Gemma 4: a router with scales and norms around the experts, beside the dense block.
  void scaled_experts(const FeedForward& ff) const {
    w.router_scale = vector("router.scale", h);
    w.expert_scales = vector("router.per_expert_scale", ff.experts);
    w.router = matrix("router.proj.weight", ff.experts, h);
    w.experts_gate_up = g.parameter("experts.gate_up_proj", {ff.experts, 2 * ff.expert_width, h}, dtype);
    w.experts_down = g.parameter("experts.down_proj", {ff.experts, h, ff.expert_width}, dtype);
    const auto norm = [&](const char* name) { return declare_norm(g, NormKind::rms, name, h, dtype); };
    w.after_dense = norm("post_feedforward_layernorm_1");
    w.after_experts = norm("post_feedforward_layernorm_2");
    w.before_experts = norm("pre_feedforward_layernorm_2");
  }

  void alternating(const Layer& layer) const {
    const std::int64_t n = layer.altup_inputs;
    LayerLeaves::AltUp& u = w.altup;
    u.output_scale = vector("altup.correct_output_scale", h);
    u.correction = matrix("altup.correction_coefs.weight", n, n);
    u.prediction = matrix("altup.prediction_coefs.weight", n * n, n);
    u.router = matrix("altup.modality_router.weight", n, h);
    u.router_norm = declare_norm(g, NormKind::rms, "altup.router_norm", h, dtype);
    u.left = matrix("laurel.linear_left.weight", layer.laurel_rank, h);
    u.right = matrix("laurel.linear_right.weight", h, layer.laurel_rank);
    u.after_right = declare_norm(g, NormKind::rms, "laurel.post_laurel_norm", h, dtype);
  }

  /// Gemma 3n, 4: what joins the layer's own input.
  void layer_input(std::int64_t width) const {
    w.layer_input_gate = matrix("per_layer_input_gate.weight", width, h);
    w.layer_projection = matrix("per_layer_projection.weight", h, width);
    w.after_layer_input = declare_norm(g, NormKind::rms, "post_per_layer_input_norm", h, dtype);
  }

  /// Release 4: a module for each expert.
  void modules(const FeedForward& ff) const {
    for (std::int64_t e = 0; e < ff.experts; ++e) {
      const std::string at = "mlp.experts." + std::to_string(e) + ".";
      LayerLeaves::Expert one;
      one.gate = g.parameter(at + "gate_proj.weight", {ff.expert_width, h}, dtype);
      one.up = g.parameter(at + "up_proj.weight", {ff.expert_width, h}, dtype);
      one.down = g.parameter(at + "down_proj.weight", {h, ff.expert_width}, dtype);
      w.expert_modules.push_back(one);
    }
  }

  void shared(const FeedForward& ff) const {
    if (ff.shared_width == 0) return;
    if (code.shared == SharedPlace::apart) {
      w.shared_up = matrix("shared_mlp.input_linear.weight", 2 * ff.shared_width, h);
      w.shared_down = matrix("shared_mlp.output_linear.weight", h, ff.shared_width);
      return;
    }
    if (ff.experts_gated) w.shared_gate = matrix("mlp.shared_expert.gate_proj.weight", ff.shared_width, h);
    w.shared_up = matrix("mlp.shared_expert.up_proj.weight", ff.shared_width, h);
    w.shared_down = matrix("mlp.shared_expert.down_proj.weight", h, ff.shared_width);
    if (ff.shared_gate) w.shared_router = matrix("mlp.shared_expert_gate.weight", 1, h);
  }

  void mixer(const Mixer& m) const {
    if (m.kind == MixerKind::mla)
      latent_attention(m);
    else if (m.kind == MixerKind::gated_delta)
      gated_delta(m);
    else if (m.kind == MixerKind::mamba1)
      mamba(m);
    else if (m.kind == MixerKind::mamba2)
      mamba2(m);
    else if (m.kind == MixerKind::lightning)
      lightning(m);
    else if (m.kind == MixerKind::short_conv)
      short_conv(m);
    else if (m.kind != MixerKind::none)
      attention(m);
  }

  void feed_forward(const FeedForward& ff) const {
    if (ff.router_scales) {
      FeedForward beside = ff;
      beside.kind = FeedForwardKind::gated;
      dense(beside);
      scaled_experts(ff);
    } else if (ff.kind == FeedForwardKind::moe) {
      experts(ff);
    } else if (ff.kind != FeedForwardKind::none) {
      dense(ff);
    }
  }
};

/// Norms of a layer, in the order of its parameters.
void declare_norms(Eager& g, const Architecture& a, const Layer& layer, DType dtype, LayerLeaves& w, bool of_attention,
                   bool of_feed_forward) {
  const NormPlace place = layer.norm_place;
  const bool after = place == NormPlace::pre_and_post || place == NormPlace::post;
  const auto norm = [&](const char* name) { return declare_norm(g, layer.norm, name, a.hidden, dtype); };
  if (of_attention && place != NormPlace::post) w.before_attention = norm("input_layernorm");
  if (of_attention && after) w.after_attention = norm("post_attention_layernorm");
  if (of_feed_forward && (place == NormPlace::pre || place == NormPlace::pre_and_post || place == NormPlace::parallel_two))
    w.before_feed_forward = norm("pre_feedforward_layernorm");
  if (of_feed_forward && after) w.after_feed_forward = norm("post_feedforward_layernorm");
}

}  // namespace

LayerLeaves declare_layer(Eager& g, const Architecture& a, const Layer& layer, DType dtype, const AdapterOptions& adapters,
                          bool expert_modules) {
  LayerLeaves w;
  const FamilyCode& code = family_code(a.family);
  const Declarer declare{g, code, a.hidden, dtype, w, adapters, names_of(a.model_type, a.family), expert_modules};
  const auto norms = [&](NormOrder order, bool of_attention, bool of_feed_forward) {
    if (code.norm_order == order) declare_norms(g, a, layer, dtype, w, of_attention, of_feed_forward);
  };
  norms(NormOrder::first, true, true);
  norms(NormOrder::before, true, false);
  declare.mixer(layer.mixer);
  norms(NormOrder::after, true, false);
  norms(NormOrder::before, false, true);
  declare.feed_forward(layer.feed_forward);
  if (layer.altup_inputs > 0) declare.alternating(layer);
  if (layer.per_layer_input > 0) declare.layer_input(layer.per_layer_input);
  norms(NormOrder::after, false, true);
  norms(NormOrder::last, true, true);
  return w;
}

}  // namespace oomplan
