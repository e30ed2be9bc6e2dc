// fms-acceleration's fused operators and GPTQ bases on one tiny model, every tensor written out; executed steps are compared in
// training_oracle.cpp.
//
// Legend: T = 4 tokens of one sequence, h = 64 hidden, A = 64 (two query heads of d = 32), K = 32 (one key/value head), F = 96, V
// = 1000, r = 2.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "estimate/figures.hpp"
#include "job/validate_base.hpp"
#include "job/validate_foak.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 64, heads = 2, d = 32, A = heads * d, K = d, F = 96, V = 1000, r = 2, layers = 2;
constexpr Bytes kAdapters = layers * r * ((h + A) + 2 * (h + K) + (A + h));  // q_proj, k_proj, v_proj, o_proj
constexpr Bytes kUnpacked = 2 * V * h + h + layers * 2 * h;                  // embedding, output layer, norms

TrainingCase tiny(std::int64_t vocab = V, std::int64_t count = layers) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
                      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 64,
                      "tie_word_embeddings": false, "vocab_size": )" +
                      std::to_string(vocab) + ", \"num_hidden_layers\": " + std::to_string(count) + "}",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_flash;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = T;
  t.wrap_embedding = t.wrap_head = false;
  c.engine = EngineKind::single;
  return c;
}

/// With adapters of attention, fused.
TrainingCase fused(BaseFormat format) {
  TrainingCase c = tiny();
  Trainer& t = c.trainer;
  if (format == BaseFormat::gptq) t.storage = t.compute = t.reduce = DType::fp16;
  t.autocast = true;
  t.lora.rank = r;
  t.lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  t.lora.base.format = format;
  t.lora.base.double_quant = format == BaseFormat::nf4;
  t.lora.base.compute = DType::bf16;
  t.lora.base.group = 32;
  t.foak = {true, true, true};
  return c;
}

std::shared_ptr<const Tape> tape_of(const TrainingCase& c) {
  return make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
}

/// Bytes of the first site of that name, -1: there is none.
Bytes site(const Tape& tape, const std::string& name) {
  const auto at = std::find_if(tape.sites.begin(), tape.sites.end(), [&](const auto& s) { return s.name == name; });
  return at == tape.sites.end() ? Bytes{-1} : at->bytes.coefficient;
}

TEST_CASE("fms-acceleration's loss: no log-probabilities, a gradient in place of the logits' shifted copy") {
  TrainingCase c = tiny();
  c.trainer.head = LossHead::foak_ce;
  CHECK(site(*tape_of(c), "logits.shifted") == -1);  // of one sequence it is a view
  c.trainer.sequences_per_micro_batch = 2;
  const auto tape = tape_of(c);
  CHECK(site(*tape, "logits.shifted") == 4 * V);  // a token
  CHECK(site(*tape, "log_probs") == -1);
  CHECK(site(*tape, "nll_loss_backward") == -1);
  CHECK(site(*tape, "slice_backward") == 4 * V);
  CHECK(site(*tape, "logsumexp.parts") == -1);
  TrainingCase wide = tiny(70000);
  wide.trainer.head = LossHead::foak_ce;
  CHECK(site(*tape_of(wide), "logsumexp.parts") == 2 * 4);  // 65536 columns and the rest
}

TEST_CASE("a vocabulary makes the loss the peak: 10 bytes a logit, where transformers' takes 14") {
  constexpr std::int64_t kWide = 60000;
  TrainingCase c = tiny(kWide);
  c.trainer.transformers_version = "4.48.1";
  c.trainer.optimizer = OptimizerKind::sgd;
  c.trainer.sequences_per_micro_batch = 2;
  const auto above = [&](LossHead head) {
    c.trainer.head = head;
    TrainingCase less = tiny(kWide / 2);
    less.trainer = c.trainer;
    return training_figures(c).forward - training_figures(less).forward;
  };
  constexpr Bytes kHalf = kWide / 2, kWeights = 2 * 2 * kHalf * h;   // embedding and output layer grow as well
  CHECK(above(LossHead::foak_ce) == kWeights + 10 * 2 * T * kHalf);  // 16-bit logits, their fp32 copy and its shifted one
  CHECK(above(LossHead::hf_loss) == kWeights + 14 * 2 * T * kHalf);  // and log-probabilities
}

TEST_CASE("fms-acceleration's norm and rotary positions save what Liger's do and make nothing in backward") {
  TrainingCase c = tiny();
  c.trainer.foak = {true, true, false};
  const auto tape = tape_of(c);
  CHECK(site(*tape, "layer.input_layernorm.rstd") == 4);
  CHECK(site(*tape, "layer.input_layernorm.fp32") == -1);
  CHECK(site(*tape, "layer.input_layernorm.weight_gradients") == -1);
  CHECK(site(*tape, "layer.self_attn.q_rotary.rotated") == -1);
}

TEST_CASE("a base of GPTQ by hand: packed numbers and zeros, scales, the group of every input") {
  const auto one = [](Bytes in, Bytes out) { return in * out / 2 + in / 32 * (out / 2) + in / 32 * out * 2 + 4 * in; };
  const Bytes layer = one(h, A) + 2 * one(h, K) + one(A, h) + 2 * one(h, F) + one(F, h);
  CHECK(training_figures(fused(BaseFormat::gptq)).parameters == layers * layer + 2 * kUnpacked + 4 * kAdapters);
  TrainingCase whole = fused(BaseFormat::gptq);
  whole.trainer.lora.base.bits = 8;
  whole.trainer.lora.base.group = 0;
  const auto wide = [](Bytes in, Bytes out) { return in * out + out + 2 * out + 4 * in; };
  const Bytes all = wide(h, A) + 2 * wide(h, K) + wide(A, h) + 2 * wide(h, F) + wide(F, h);
  CHECK(training_figures(whole).parameters == layers * all + 2 * kUnpacked + 4 * kAdapters);
}

TEST_CASE("fused adapters unpack a matrix in forward and in backward, and write a gradient over their input") {
  const auto nf4 = tape_of(fused(BaseFormat::nf4)), gptq = tape_of(fused(BaseFormat::gptq));
  for (const auto& tape : {nf4, gptq}) {
    CHECK(site(*tape, "layer.self_attn.k.unpacked") == 2 * K * h);
    CHECK(site(*tape, "layer.self_attn.k.lora_A") == 2 * r);
    CHECK(site(*tape, "v.mm_backward") == 2 * h);
    CHECK(site(*tape, "q.kept") == h);
  }
  CHECK(site(*nf4, "layer.self_attn.k.absmax") == 4 * (K * h / 64));
  CHECK(site(*gptq, "layer.self_attn.k.absmax") == -1);
  CHECK(site(*nf4, "q.mm_backward") == -1);
  CHECK(site(*gptq, "q.mm_backward") == 2 * h);
}

TEST_CASE("FSDP1 ignores fused adapters: every rank has all of them") {
  TrainingCase c = fused(BaseFormat::gptq);
  c.engine = EngineKind::fsdp1;
  c.trainer.layout.data = 2;
  TrainTapes tapes;
  tapes.train = tape_of(c);
  const TrainPlan p = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
  CHECK(p.gradients == 4 * kAdapters);
  CHECK(p.optimizer == 2 * 4 * kAdapters);
  c.trainer.foak.lora = false;
  tapes.train = tape_of(c);
  CHECK(make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1).gradients == 4 * kAdapters / 2);
}

TEST_CASE("FSDP1 holds the inputs of frozen layers, and those gradients, behind reentrant checkpoints of older transformers") {
  constexpr std::int64_t kLayers = 6, kTokens = 4096;
  TrainingCase c = fused(BaseFormat::nf4);
  c.architecture = tiny(64, kLayers).architecture;
  c.engine = EngineKind::fsdp1;
  Trainer& t = c.trainer;
  t.layout.data = 2;
  t.sequence_tokens = kTokens;
  t.recompute = Recompute::full;
  t.reentrant = true;
  t.use_orig_params = true;
  t.transformers_version = "4.51.3";
  const Bytes inside = training_figures(c).backward;
  t.transformers_version = "4.52.0";
  // the first layer's backward pass: gradients of the inputs of all layers but itself and the next one
  const Bytes held = (kLayers - 2) * 2 * kTokens * h;
  CHECK(static_cast<double>(inside - training_figures(c).backward) == doctest::Approx(static_cast<double>(held)).epsilon(0.05));
}

TEST_CASE("what fms-acceleration's operators cannot be combined with is said by name") {
  const auto knobs = [](const Trainer& t, EngineKind engine) { return foak_problems(t, engine); };
  Trainer t = fused(BaseFormat::nf4).trainer;
  CHECK(knobs(t, EngineKind::single).empty());
  CHECK(knobs(t, EngineKind::fsdp1).empty());
  CHECK(knobs(t, EngineKind::fsdp2).size() == 1);
  t.lora.base.double_quant = false;
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t = fused(BaseFormat::nf4).trainer;
  t.lora.targets = {"q_proj", "v_proj"};
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t.lora.targets = {};  // every linear layer: its fused feed-forward block fails
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t.lora.targets = {"down_proj"};
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t = fused(BaseFormat::nf4).trainer;
  t.lora.base = {};
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t = fused(BaseFormat::nf4).trainer;
  t.autocast = false;
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t = fused(BaseFormat::nf4).trainer;
  t.liger.rope = true;
  CHECK(knobs(t, EngineKind::single).size() == 1);
  t.foak = {};
  CHECK(knobs(t, EngineKind::fsdp2).empty());

  t = fused(BaseFormat::gptq).trainer;
  CHECK(base_problems(t, EngineKind::single).empty());
  t.storage = DType::bf16;
  REQUIRE(base_problems(t, EngineKind::single).size() == 1);
  CHECK(base_problems(t, EngineKind::single)[0].knob == "precision.storage");
  t.storage = DType::fp16;
  t.lora.base.bits = 3;
  CHECK(base_problems(t, EngineKind::single)[0].knob == "lora.base_bits");
  TrainingCase other = tiny();
  other.trainer.foak.rope = true;
  Architecture qwen = *other.architecture;
  qwen.family = "qwen2";
  CHECK_FALSE(unsupported(qwen, train_pass(other.trainer, other.engine, qwen, false, T, false).kernels).empty());
}

}  // namespace
