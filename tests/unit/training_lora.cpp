// LoRA on one tiny model, every tensor written out; executed steps are compared in training_oracle.cpp.
//
// Legend: T = 4 tokens of one sequence, h = 8 hidden, A = 8 (two query heads of d = 4), K = 4 (one key/value head), F = 12, V =
// 1000, r = 2.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 8, heads = 2, d = 4, A = heads * d, K = d, F = 12, V = 1000, r = 2, layers = 2, experts = 4;

TrainingCase tiny(const std::string& family = "llama") {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": ")" + family +
                      R"(", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2,
                      "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 1000, "max_position_embeddings": 64,
                      "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": true,
                      "tie_word_embeddings": false})",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_flash;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.optimizer_form = OptimizerForm::foreach;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = T;
  t.wrap_embedding = t.wrap_head = false;
  t.lora.rank = r;
  c.engine = EngineKind::single;
  return c;
}

// ---- in elements
constexpr Bytes kFrozen = layers * (2 * A * h + 2 * K * h + 3 * F * h + 2 * h) + 2 * V * h + h;
constexpr Bytes kAdapters = layers * r * (2 * (h + A) + 2 * (h + K) + 3 * (h + F));
constexpr Bytes kBuffers = 2 * (d / 2) * 4;  // inv_freq and its original

Bytes saved_bytes(const TrainingCase& c) {
  const PassOptions o = train_pass(c.trainer, c.engine, *c.architecture, false, T, false);
  const PassCounts pass = pass_counts(c.trainer, T, o.head, *c.architecture);
  Bytes out = 0;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, o, 0)) out += site.bytes.value(pass.counts) * times;
  return out;
}

constexpr Bytes kKept = 2 * (4 * T * h + 4 * T)                    // both norms: the input in fp32 and its inverse root
                        + 2 * T * (A + K) + 2 * T * K + 2 * T * A  // q, k, v, output
                        + 4 * T * heads + 16                       // log-sum-exp, state of the generator
                        + 3 * (2 * T * F);                         // gate, silu(gate), up
constexpr Bytes kInputs = T * (5 * h + A + F);                     // of q, k, v, gate, up; of o; of down

TEST_CASE("LoRA by hand: frozen layers keep what gradients of activations need, adapters their inputs") {
  TrainingCase c = tiny();
  CHECK(saved_bytes(c) == kKept + 4 * kInputs + 7 * (4 * T * r));
  c.trainer.lora.dropout = 0.05;  // a dropped copy in place of the cast, and a mask
  CHECK(saved_bytes(c) == kKept + 5 * kInputs + 7 * (4 * T * r));
}

TEST_CASE("LoRA by hand: adapters of the storage format share what they read") {
  TrainingCase c = tiny();
  c.trainer.lora.format = AdapterFormat::storage;
  const Bytes read = 2 * (2 * T * h)  // the two norms' outputs; o reads the attention's output, which is kept already
                     + 2 * T * F;     // the product
  CHECK(saved_bytes(c) == kKept + read + 7 * (2 * T * r));
  c.trainer.lora.targets = {"q_proj", "v_proj"};
  CHECK(saved_bytes(c) == kKept + 2 * T * h + 2 * (2 * T * r));
}

TEST_CASE("LoRA by hand: under ZeRO stage 3 linear layers keep their inputs, frozen or not") {
  TrainingCase c = tiny();
  c.trainer.lora.format = AdapterFormat::storage;
  c.trainer.lora.targets = {"q_proj", "v_proj"};
  c.engine = EngineKind::deepspeed;
  const Bytes rows = 2 * (2 * T * r);
  c.trainer.zero.stage = 2;
  CHECK(saved_bytes(c) == kKept + 2 * T * h + rows);
  c.trainer.zero.stage = 3;
  CHECK(saved_bytes(c) == kKept + 2 * (2 * T * h) + 2 * T * F + rows);  // gate and up, and down read what nothing else keeps
}

TEST_CASE("LoRA by hand: gradients and states belong to the adapters alone") {
  TrainingCase c = tiny();
  const TrainingFigures f = training_figures(c);
  CHECK(f.parameters == 2 * kFrozen + 4 * kAdapters);
  CHECK(f.states == 2 * 4 * kAdapters);
  c.trainer.lora.format = AdapterFormat::storage;
  CHECK(training_figures(c).parameters == 2 * (kFrozen + kAdapters));
  CHECK(training_figures(c).states == 2 * 2 * kAdapters);
}

TEST_CASE("LoRA by hand: two ranks of FSDP2 store adapters in fp32 and gather them with the rest") {
  TrainingCase c = tiny();
  c.engine = EngineKind::fsdp2;
  c.trainer.layout.data = 2;
  c.trainer.reduce = DType::fp32;
  TrainTapes tapes;
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
  const TrainPlan p = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
  CHECK(p.resident == (2 * kFrozen + 4 * kAdapters) / 2);
  CHECK(p.gradients == 4 * kAdapters / 2);
  CHECK(p.root.reduce_input == 0);  // nothing in it is trained
  CHECK(p.root.gradient == 0);
  std::size_t layer = 0;
  while (tapes.train->stations[layer].place != StationPlace::layers) ++layer;
  CHECK(p.units[layer].reduce_input == 4 * kAdapters / layers);
  CHECK(p.units[layer].cast == 2 * kAdapters / layers / 2);  // only what is not stored in 16 bits
  CHECK_FALSE(p.units[layer].casts_reduced);                 // fp32 reduced, fp32 kept
}

TEST_CASE("LoRA: a checkpoint, or an RL framework, wants a gradient at the embedding's output") {
  TrainingCase c = tiny();
  const auto wants = [&] { return train_pass(c.trainer, c.engine, *c.architecture, false, T).kernels.adapters.input_gradients; };
  CHECK_FALSE(wants());
  c.trainer.recompute = Recompute::full;
  CHECK(wants());
  c.trainer.recompute = Recompute::none;
  const Bytes without = training_figures(c).forward;
  c.trainer.loop.embedding_gradient = true;
  CHECK(wants());
  // the embedding's output itself; and the first norm keeps what every other norm does
  CHECK(training_figures(c).forward == without + 2 * T * h + 4 * T * h + 4 * T);
}

TEST_CASE("LoRA: a target that no layer has, and what peft refuses of fused experts, are refused by name") {
  TrainingCase c = tiny();
  c.trainer.lora.targets = {"kv_b_proj"};
  CHECK_THROWS_AS((void)training_figures(c), InputError);
  TrainingCase moe = tiny("qwen3_moe");
  moe.trainer.lora.targets = {"gate_proj"};  // its other half is in the same parameter
  CHECK_THROWS_AS((void)training_figures(moe), InputError);
  moe.trainer.lora.targets.clear();
  moe.trainer.lora.dropout = 0.1;  // peft cannot drop the input of what it folds
  CHECK_THROWS_AS((void)training_figures(moe), InputError);
}

TEST_CASE("LoRA by hand: experts and routers of fused models are adapted as parameters") {
  TrainingCase c = tiny("qwen3_moe");
  const Bytes attention = r * (2 * (h + A) + 2 * (h + K)), router = r * (h + experts);
  const Bytes both = 2 * r * experts * (h + 2 * F), down = r * experts * (F + h);  // gate and up are one matrix: twice the rank
  CHECK(training_figures(c).states == 2 * 4 * layers * (attention + router + both + down));
  c.trainer.lora.targets = {"q_proj", "v_proj"};
  CHECK(training_figures(c).states == 2 * 4 * layers * r * (h + A + h + K));
}

}  // namespace
