#include "frontends/megatron/model.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "frontends/megatron/flag_table.hpp"

namespace oomplan::megatron {
namespace {

constexpr const char* kNotYet = "not supported yet";

class ModelReader {
 public:
  ModelReader(const Arguments& a, const Run& r, const Catalog& catalog, Complaints& out)
      : a_(a), r_(r), catalog_(catalog), out_(out) {}

  std::shared_ptr<const Architecture> run() {
    auto model = std::make_shared<Architecture>();
    model->model_type = model->family = "megatron_gpt";
    model->hidden = a_.whole_or("hidden_size", 0);
    model->tied = !a_.on("untie_embeddings_and_output_weights");
    model->max_positions = a_.whole_or("max_position_embeddings", 0);
    model->final_norm = norm();
    model->attention_dropout = a_.number("attention_dropout");
    model->hidden_dropout = model->embedding_dropout = a_.number("hidden_dropout");
    if (!rotary() && a_.text("position_embedding_type") == "learned_absolute") model->position_rows = model->max_positions;
    const std::string kind = a_.text("position_embedding_type");
    if (!rotary() && kind != "learned_absolute" && kind != "none")
      not_yet("position_embedding_type", kind, "rope, learned_absolute or none", "other positions");
    model->vocab = vocabulary();
    add_layers(*model);
    model->name = fmt::format("GPTModel of {} x {}", r_.layers, model->hidden);
    return model;
  }

 private:
  void not_yet(std::string_view name, const std::string& found, std::string expected, std::string_view what) {
    out_.add(a_.place(name), found, std::move(expected), fmt::format("{}: {}", kNotYet, what));
  }
  NormKind norm() const { return a_.text("normalization") == "RMSNorm" ? NormKind::rms : NormKind::layer; }
  /// --use-rotary-position-embeddings is the old spelling.
  bool rotary() const { return a_.on("use_rotary_position_embeddings") || a_.text("position_embedding_type") == "rope"; }

  Mixer attention() {
    Mixer m;
    m.kind = MixerKind::attention;
    m.heads = a_.whole_or("num_attention_heads", 0);
    m.kv_heads = a_.on("group_query_attention") ? a_.whole_or("num_query_groups", 1) : m.heads;
    m.head_dim = a_.whole_or("kv_channels", m.heads > 0 ? a_.whole_or("hidden_size", 0) / m.heads : 0);
    if (rotary()) m.rotary_dim = static_cast<std::int64_t>(static_cast<double>(m.head_dim) * a_.number("rotary_percent"));
    // validate_args: biases of all linear layers include those of queries, keys and values
    m.q_bias = m.k_bias = m.v_bias = a_.on("add_qkv_bias") || a_.on("add_bias_linear");
    m.out_bias = a_.on("add_bias_linear");
    m.qk_norm = a_.on("qk_layernorm") ? QkNorm::head : QkNorm::none;
    m.fused_qkv = true;
    return m;
  }
  /// MLASelfAttention; its latents are normed where --qk-layernorm says so (gpt_layer_specs.py).
  Mixer latent_attention() {
    Mixer m;
    m.kind = MixerKind::mla;
    m.heads = m.kv_heads = a_.whole_or("num_attention_heads", 0);
    m.q_lora_rank = a_.whole_or("q_lora_rank", 0);
    m.kv_lora_rank = a_.whole_or("kv_lora_rank", 0);
    m.nope_head_dim = a_.whole_or("qk_head_dim", 0);
    m.rope_head_dim = m.rotary_dim = a_.whole_or("qk_pos_emb_head_dim", 0);
    m.head_dim = m.nope_head_dim + m.rope_head_dim;
    m.value_head_dim = a_.whole_or("v_head_dim", 0);
    if (!a_.on("qk_layernorm")) not_yet("qk_layernorm", "nothing", "the flag", "latent attention without norms of its latents");
    m.out_bias = a_.on("add_bias_linear");  // no other product has one
    return m;
  }

  /// quick_gelu (megatron/core/fusions/fused_bias_geglu.py) is one compiled kernel that keeps its input, as GELU is.
  Activation function() const {
    return a_.on("swiglu") ? Activation::silu : a_.on("squared_relu") ? Activation::relu_squared : Activation::gelu;
  }
  bool gated() const { return a_.on("swiglu") || a_.on("quick_geglu"); }
  FeedForward dense() {
    FeedForward f;
    f.kind = gated() ? FeedForwardKind::gated : FeedForwardKind::plain;
    f.activation = function();
    f.fused_gate_up = gated();
    f.width = width();
    f.bias = a_.on("add_bias_linear");
    return f;
  }
  /// validate_args: 4 h, of a gated block two thirds of it, down to a multiple of 64.
  std::int64_t width() const {
    if (const auto given = a_.whole("ffn_hidden_size")) return *given;
    const std::int64_t hidden = a_.whole_or("hidden_size", 0);
    return a_.on("swiglu") ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
  }

  FeedForward experts() {
    FeedForward f;
    f.kind = FeedForwardKind::moe;
    f.activation = function();
    f.experts = a_.whole_or("num_experts", 0);
    f.experts_per_token = a_.whole_or("moe_router_topk", 2);
    f.expert_width = a_.whole_or("moe_ffn_hidden_size", width());
    f.shared_width = a_.whole_or("moe_shared_expert_intermediate_size", 0);
    f.score = a_.text("moe_router_score_function") == "sigmoid" ? RouterScore::sigmoid
              : a_.on("moe_router_pre_softmax")                 ? RouterScore::softmax
                                                                : RouterScore::softmax_of_top_k;
    f.router_groups = a_.whole_or("moe_router_num_groups", 0);
    f.router_top_groups = a_.whole_or("moe_router_group_topk", 0);
    f.correction_bias = a_.on("moe_router_enable_expert_bias");
    f.normalise_top_k = f.score != RouterScore::softmax;
    f.experts_gated = gated();
    f.expert_bias = f.router_bias = a_.on("add_bias_linear");
    f.shared_gate = f.shared_width > 0 && a_.on("moe_shared_expert_gate");
    return f;
  }

  /// Layers with experts: every n-th from the first one, or a list (gpt_layer_specs.py).
  std::vector<bool> with_experts() const {
    std::vector<bool> out(static_cast<std::size_t>(std::min<std::int64_t>(r_.layers, 65536)), false);
    if (!a_.on("num_experts")) return out;
    const auto& pattern = a_.value("moe_layer_freq");
    const std::int64_t every = pattern.is_number_integer() ? std::max<std::int64_t>(1, pattern.get<std::int64_t>()) : 1;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = pattern.is_array() ? i < pattern.size() && pattern[i] == 1 : static_cast<std::int64_t>(i) % every == 0;
    return out;
  }

  void add_layers(Architecture& model) {
    Layer layer;
    layer.norm = norm();
    layer.mixer = a_.on("multi_latent_attention") ? latent_attention() : attention();
    const std::vector<bool> kinds = with_experts();
    const bool any = std::find(kinds.begin(), kinds.end(), true) != kinds.end();
    const bool none = std::find(kinds.begin(), kinds.end(), false) == kinds.end();
    if (a_.on("quick_geglu") && a_.on("disable_jit_fuser"))
      not_yet("disable_jit_fuser", "the flag", "nothing beside --quick-geglu", "quick GEGLU that is not compiled");
    const FeedForward routed = any ? experts() : FeedForward(), plain = none ? FeedForward() : dense();
    for (const bool expert : kinds) {
      layer.feed_forward = expert ? routed : plain;
      if (model.runs.empty() || model.runs.back().layer != layer) model.runs.push_back({layer, 0});
      ++model.runs.back().count;
    }
  }

  /// Rows before they are padded to 128 x t, which the plan does (megatron/training/tokenizer/tokenizer.py).
  std::int64_t vocabulary() {
    if (const auto padded = a_.whole("padded_vocab_size")) return *padded;
    const std::string kind = a_.has("tokenizer_type") ? a_.text("tokenizer_type") : "GPT2BPETokenizer";  // of pretrain_gpt.py
    const auto stated = a_.whole("vocab_size");
    if (kind == "NullTokenizer" && stated) return *stated + 1;  // its end of document comes on top
    if (stated) return *stated;
    if (kind == "GPT2BPETokenizer") {
      constexpr std::int64_t kGpt2 = 50257;
      return kGpt2;
    }
    const std::string tokenizer = a_.text("tokenizer_model");
    try {
      const auto found = catalog_.model(tokenizer);
      out_.note(Note::Level::warning, a_.place("tokenizer_model"),
                fmt::format("rows of the vocabulary are taken from {}: {}; --padded-vocab-size says them exactly", found.id,
                            found.architecture->vocab));
      return found.architecture->vocab;
    } catch (const InputError&) {
      out_.add(a_.place("vocab_size"), "nothing", "the rows of the vocabulary, as --vocab-size or --padded-vocab-size",
               "they are in the tokenizer's files, which are not read");
      return 1;
    }
  }

  const Arguments& a_;
  const Run& r_;
  const Catalog& catalog_;
  Complaints& out_;
};

}  // namespace

std::shared_ptr<const Architecture> model_of(const Arguments& a, const Run& r, const Catalog& catalog, Complaints& out) {
  return ModelReader(a, r, catalog, out).run();
}

std::shared_ptr<const Architecture> named_model(const std::string& name, const Arguments& a, const Catalog& catalog,
                                                Complaints& out) {
  auto model = std::make_shared<Architecture>(*catalog.model(name).architecture);
  const Layer& last = model->runs.back().layer;
  const auto agree = [&](std::string_view argument, std::int64_t own) {
    const auto said = a.given(argument) ? a.whole(argument) : std::nullopt;
    if (said && *said != own)
      out.add(a.place(argument), fmt::format("{}", *said), fmt::format("{}, as {} has it", own, name),
              "the arguments describe another model");
  };
  agree("num_layers", model->layers());
  agree("hidden_size", model->hidden);
  agree("num_attention_heads", last.mixer.heads);
  if (last.mixer.kind == MixerKind::attention) agree("num_query_groups", last.mixer.kv_heads);
  if (last.feed_forward.kind == FeedForwardKind::moe) {
    agree("num_experts", last.feed_forward.experts);
    agree("moe_router_topk", last.feed_forward.experts_per_token);
  } else {
    agree("ffn_hidden_size", last.feed_forward.width);
  }
  model->attention_dropout = a.number("attention_dropout");
  model->hidden_dropout = model->embedding_dropout = a.number("hidden_dropout");
  return model;
}

}  // namespace oomplan::megatron
