#include "layers/operators.hpp"

#include <algorithm>
#include <utility>

#include "catalog/facts.hpp"
#include "layers/heads.hpp"
#include "layers/liger.hpp"
#include "layers/mlp.hpp"
#include "layers/norms.hpp"
#include "layers/operators_layer.hpp"
#include "layers/operators_megatron.hpp"
#include "layers/operators_moe.hpp"
#include "layers/operators_preference.hpp"
#include "layers/operators_setup.hpp"
#include "layers/operators_tiled.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

using Setup = OperatorSetup;
using Forward = OperatorSetup::Forward;

GatedLeaves mlp_weights(const Setup& s) {
  const std::int64_t hidden = s.size("hidden"), width = s.size("width");
  GatedLeaves w;
  w.gate = s.weight("gate_proj.weight", {width, hidden});
  w.up = s.weight("up_proj.weight", {width, hidden});
  w.down = s.weight("down_proj.weight", {hidden, width});
  return w;
}

/// transformers' MLP of a shard.
Eager::Function plain_body(const Setup& s, const GatedLeaves& w) {
  return [&g = s.g, w, hidden = s.size("hidden"), width = s.size("width")](const Tensor& part) {
    return gated_mlp(g, part, {part.shape[0]}, hidden, width, w, "");
  };
}

/// LigerTiledSwiGLUMLP has names for gate and up.
Eager::Function liger_body(const Setup& s, const GatedLeaves& w) {
  return [&g = s.g, w, hidden = s.size("hidden"), width = s.size("width")](const Tensor& part) {
    const Dim rows = part.shape[0];
    const Tensor gate = linear(g, part, w.gate, -1, rows, {rows, width}, "gate");
    const Tensor up = linear(g, part, w.up, -1, rows, {rows, width}, "up");
    Tensor product = liger::gated(g, gate, up, "product");
    return linear(g, std::move(product), w.down, -1, rows, {rows, hidden}, "down");
  };
}

Forward mlp(const Setup& s) {
  const std::int64_t hidden = s.size("hidden"), width = s.size("width"), tokens = s.size("tokens");
  const GatedLeaves w = mlp_weights(s);
  if (s.is("liger_tiled") || s.is("deepspeed_tiled")) {
    const Tensor x = s.input("x", {tokens, hidden}, s.call.dtype);
    const auto body = s.is("liger_tiled") ? liger_body(s, w) : plain_body(s, w);
    return [&g = s.g, x, body, shards = s.size("shards")] { return tiled(g, x, shards, body); };
  }
  const Tensor x = s.input("x", {1, tokens, hidden}, s.call.dtype);
  return [&g = s.g, x, w, hidden, width, tokens, kernels = s.kernels()] {
    return gated_mlp(g, x, {1, tokens}, hidden, width, w, "", kernels);
  };
}

Forward rms(const Setup& s) {
  const std::int64_t hidden = s.size("hidden");
  const int weight = s.weight("weight", {hidden});
  const Tensor x = s.input("x", {s.size("tokens"), hidden}, s.call.dtype);
  if (s.is("torch")) return [&g = s.g, x, weight] { return fused_rms_norm(g, x, weight, "norm"); };
  if (s.is("liger")) {
    const liger::Norm norm{s.size("in_place") != 0, false, s.multiprocessors, s.code};
    return [&g = s.g, x, weight, norm] { return liger::rms_norm(g, x, weight, norm, "norm"); };
  }
  return [&g = s.g, x, weight] { return run_norm(g, NormCode::rms, x, {weight, -1}, "norm"); };
}

Forward layer_norm(const Setup& s) {
  const std::int64_t hidden = s.size("hidden");
  const NormLeaf leaf{s.weight("weight", {hidden}), s.weight("bias", {hidden})};
  const Tensor x = s.input("x", {s.size("tokens"), hidden}, s.call.dtype);
  if (s.is("liger")) {
    using enum liger::LayerNormSum;
    const auto before = [&](std::string_view release) { return compare_versions(s.release(), release) < 0; };
    const auto sum = before("0.6.1") ? parts : before("0.6.4") ? in_place : parts_in_fp32;
    return [&g = s.g, x, leaf, sum, n = s.multiprocessors] {
      return liger::layer_norm(g, x, leaf.weight, leaf.bias, sum, n, "norm");
    };
  }
  return [&g = s.g, x, leaf] { return run_norm(g, NormCode::layer, x, leaf, "norm"); };
}

Tensor labels_of(const Setup& s) { return s.g.make("labels", {s.size("tokens")}, DType::int64, Category::inputs); }

Forward loss(const Setup& s) {
  const Tensor logits = s.input("logits", {s.size("tokens"), s.size("vocab")}, s.call.dtype);
  const Tensor labels = labels_of(s);
  if (s.is("liger")) return [&g = s.g, logits, labels] { return liger::cross_entropy(g, logits, labels); };
  return [&g = s.g, logits, labels] { return cross_entropy(g, logits, labels); };
}

Forward head(const Setup& s) {
  const std::int64_t hidden = s.size("hidden"), vocab = s.size("vocab"), tokens = s.size("tokens");
  const int weight = s.weight("lm_head.weight", {vocab, hidden});
  const Tensor x = s.input("x", {tokens, hidden}, s.call.dtype);
  const Tensor labels = labels_of(s);
  if (s.is("liger")) {
    const std::int64_t rows = liger::fused_head_rows(tokens, hidden, vocab);
    const auto chunks = static_cast<int>(ceil_div(tokens, rows));
    const std::int64_t left = tokens - (chunks - 1) * rows;
    const liger::FusedHead fused{tokens, std::min(rows, tokens), left, hidden, vocab, weight, chunks, [](int) {}, s.code};
    return [&g = s.g, x, labels, fused] { return liger::fused_linear_cross_entropy(g, x, fused); };
  }
  const bool wide = s.is("huggingface");
  return [&g = s.g, x, labels, weight, tokens, vocab, wide] {
    Tensor logits = linear(g, x, weight, -1, tokens, {tokens, vocab}, "logits", Category::logits);
    if (!wide) return cross_entropy(g, logits, labels);
    Tensor full = to(g, logits, DType::fp32, "logits_fp32");
    return cross_entropy(g, full, labels);
  };
}

struct Row {
  OperatorRow row;
  Forward (*prepare)(const Setup&);
  bool loss = false, multiplies_forward = false, multiplies_backward = false;
  bool gradient_stays = false;  ///< a held gradient of the output is the same in all calls
};

const OperatorSize kTokens{"tokens", "tokens of the call", 0}, kHidden{"hidden", "width of the model", 0},
    kWidth{"width", "width of the feed-forward block", 0}, kVocab{"vocab", "vocabulary", 0},
    kSequences{"sequences", "sequences of the call", 0}, kEach{"tokens", "tokens of a sequence", 0};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {{"rms_norm",
        "RMSNorm; torch: nn.RMSNorm's fused kernel",
        {"huggingface", "liger", "torch"},
        {kTokens, kHidden, {"in_place", "liger: the gradient of x is written into the output's one (1) or not (0)", 1}}},
       rms,
       false,
       false,
       false,
       true},
      {{"layer_norm", "LayerNorm with weight and bias", {"torch", "liger"}, {kTokens, kHidden}}, layer_norm},
      {{"swiglu",
        "gated MLP: down(silu(gate(x)) * up(x)); geglu is the same with another activation",
        {"huggingface", "liger", "liger_tiled", "deepspeed_tiled"},
        {kTokens, kHidden, kWidth, {"shards", "of a tiled MLP", 4}}},
       mlp,
       false,
       true,
       true},
      {{"cross_entropy", "loss of logits that are there; dtype is theirs", {"torch", "liger"}, {kTokens, kVocab}}, loss, true},
      {{"fused_linear_cross_entropy",
        "output layer and loss; huggingface: on fp32 logits, torch: on logits as they are",
        {"liger", "huggingface", "torch"},
        {kTokens, kHidden, kVocab}},
       head,
       true,
       true,
       true},
      {{"rope",
        "rotary positions of queries and keys; gradients are the caller's",
        {"huggingface", "liger"},
        {kTokens, kHidden, {"heads", "query heads", 0}, {"key_heads", "key heads", 0}}},
       rope_operator,
       false,
       true},
      {{"fused_add_rms_norm",
        "a residual's sum and its RMSNorm, both of which go on; liger_rms_norm: Liger's norm between torch's sum and product",
        {"liger", "huggingface", "liger_rms_norm"},
        {kTokens, kHidden}},
       add_rms_norm_operator},
      {{"gated_activation",
        "silu(gate) * up of one tensor, whose gradient goes with each call; megatron: fused_bias_swiglu",
        {"liger", "liger_in_place", "torch", "megatron"},
        {kTokens, {"width", "width of gate and of up on this rank", 0}}},
       gated_activation_operator,
       true},
      {{"vocab_parallel_cross_entropy",
        "losses of logits on one rank, whose gradient goes with each call; megatron: without cross_entropy_loss_fusion",
        {"liger", "megatron"},
        {kTokens, {"vocab", "vocabulary on this rank", 0}}},
       vocab_parallel_loss_operator,
       true},
      {{"fused_moe",
        "experts of a layer; huggingface: the loop over experts, which makes gradients of all experts' weights for each of them",
        {"liger", "huggingface"},
        {kTokens,
         kHidden,
         {"width", "width of an expert", 0},
         {"experts", "experts of the layer", 0},
         {"top_k", "experts of a token", 0},
         {"from_leaves", "the weights are parameters (1) or products of parameters and a number (0)", 1}}},
       fused_moe_operator,
       false,
       true,
       true},
      {{"fused_linear_preference",
        "output layer and a loss of pairs (CPO, SimPO, ORPO); huggingface: as in TRL's trainers, liger: compiled, pair after "
        "pair",
        {"liger", "huggingface"},
        {kSequences, kEach, kHidden, kVocab, {"nll", "liger: with the likelihood loss of the chosen (1) or without (0)", 1}}},
       preference_operator,
       true,
       true,
       true},
      {{"fused_linear_grpo",
        "output layers of policy and reference, and GRPO's loss; liger: compiled, sequence after sequence",
        {"liger", "torch"},
        {kSequences, kEach, kHidden, kVocab}},
       grpo_operator,
       true,
       true,
       true},
      {{"fused_linear_jsd",
        "output layers of student and teacher, and the Jensen-Shannon divergence of the two",
        {"liger", "torch"},
        {kTokens, kHidden, kVocab}},
       jsd_operator,
       true,
       true,
       true},
  };
  return all;
}

const Row& row_of(std::string_view name) {
  return *std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return r.row.name == name; });
}

/// The output's gradient as the caller makes it: like the inputs.
Tensor gradient_of(Eager& g, const Tensor& out, const OperatorCall& call, const Row& row) {
  if (row.loss) return g.make("loss.gradient", {}, DType::fp32, Category::temporaries);
  return g.make("output.gradient", out.shape, call.dtype, Category::temporaries);
}

/// backward() casts what it is given to the format of the output, and holds the cast until it returns.
void go_back(Eager& g, const Tensor& out, Tensor gradient) {
  if (gradient.dtype == out.dtype) return g.backward(out, std::move(gradient));
  const Tensor cast = g.make("output.gradient_cast", out.shape, out.dtype, Category::temporaries);
  g.backward(out, cast);
}

/// One call; the output's gradient is the caller's, or made for the call.
void call_once(Eager& g, const Forward& forward, const OperatorCall& call, const Row& row, Tensor& stays) {
  Tensor out = forward();
  if (call.pass == OperatorPass::forward) return;
  Tensor gradient = stays ? stays : gradient_of(g, out, call, row);
  if (row.gradient_stays && call.gradient_held) stays = gradient;
  const Tensor held = call.gradient_held ? gradient : Tensor();
  go_back(g, out, std::move(gradient));
}

}  // namespace

std::string_view without_release(std::string_view by) { return by.substr(0, by.find(' ')); }

const std::vector<OperatorRow>& operator_rows() {
  static const std::vector<OperatorRow> all = [] {
    std::vector<OperatorRow> out;
    for (const Row& row : rows()) out.push_back(row.row);
    return out;
  }();
  return all;
}

void run_operator(OperatorRun& run, const OperatorCall& call, std::int64_t multiprocessors) {
  const Row& row = row_of(call.name);
  const auto space = call.by.find(' ');
  const auto code = liger_code(space == std::string::npos ? std::string_view{} : std::string_view(call.by).substr(space + 1));
  Eager& g = run.eager;
  run.multiplies_forward = row.multiplies_forward;
  // the fused head has made its products in forward; a benchmark's forward calls come behind others that went back
  run.multiplies_backward = row.multiplies_backward;
  const Setup setup{g, call, multiprocessors, code.value_or(LigerCode{})};
  {
    const Forward forward = row.prepare(setup);
    if (call.pass == OperatorPass::backward) {
      g.retain_graph = true;
      Tensor out = forward();
      const Tensor gradient = gradient_of(g, out, call, row);
      run.first_call = g.events.size();
      go_back(g, out, gradient);
      run.later_call = g.events.size();
      go_back(g, out, gradient);
      run.end = g.events.size();
    } else {
      g.retain_graph = call.retain_graph;
      Tensor stays;
      run.first_call = g.events.size();
      call_once(g, forward, call, row, stays);
      run.later_call = g.events.size();
      call_once(g, forward, call, row, stays);
      run.end = g.events.size();
    }
  }
}

}  // namespace oomplan
