// Preference losses, GRPO and reward models on one tiny Llama: what their heads hold by hand, and what they do not go with.
//
// Legend: B = 4 sequences, K = 64 tokens of one, C = K - 1 with a next token, V = 8192, 2 bytes a logit.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes B = 4, K = 64, C = K - 1, V = 8192;

TrainingCase tiny_policy(LossHead head, ReferencePass reference = ReferencePass::none) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2,
                      "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 8192, "model_type": "llama"})",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_sdpa;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::full;
  t.head = head;
  t.optimizer = OptimizerKind::sgd;
  t.reference = reference;
  t.sequences_per_micro_batch = B;
  t.sequence_tokens = K;
  t.tokens_per_micro_batch = B * K;
  t.wrap_embedding = t.wrap_head = false;
  c.engine = EngineKind::single;
  return c;
}

/// Levels of this size differ by a few numbers a token besides.
void near(Bytes got, Bytes want) {
  CHECK(got >= want);
  CHECK(got < want + 200 * B * K);
}

TEST_CASE("by hand: a preference loss holds its logits and a log_softmax of each sequence, and its backward a stack and zeros") {
  const TrainingFigures f = training_figures(tiny_policy(LossHead::trl_simpo));
  const Bytes own = f.parameters;
  const Bytes above = f.forward - own;
  near(above, 2 * B * K * V + 2 * B * C * V);
  CHECK(f.backward - own > 2 * B * C * V + 2 * B * K * V);
  CHECK(f.backward - own < 2 * B * C * V + 2 * B * K * V + 4 * V * 8 + 200 * B * K);
}

TEST_CASE("by hand: DPO's entropy copies the shifted logits; with a reference beside that one's logits") {
  const Bytes rows = 128;
  const TrainingFigures alone = training_figures(tiny_policy(LossHead::trl_dpo));
  const TrainingFigures beside = training_figures(tiny_policy(LossHead::trl_dpo, ReferencePass::model));
  near(alone.forward - alone.parameters, 2 * B * K * V + 2 * 2 * B * C * V + 3 * 2 * rows * V);
  CHECK(beside.parameters == 2 * alone.parameters);
  near(beside.forward - beside.parameters, 2 * 2 * B * K * V + 2 * 2 * B * C * V + 3 * 2 * rows * V);
  near(beside.backward - beside.parameters, alone.backward - alone.parameters);
}

TEST_CASE("by hand: under ZeRO a reference is cut in stage 3 and whole below") {
  const auto both = [](std::int64_t stage, ReferencePass reference) {
    TrainingCase c = tiny_policy(LossHead::trl_dpo, reference);
    c.engine = EngineKind::deepspeed;
    c.trainer.optimizer = OptimizerKind::adamw;
    c.trainer.layout.data = 8;
    c.trainer.zero.stage = stage;
    c.trainer.zero.persistence_threshold = 0;
    return training_figures(c);
  };
  const Bytes whole = training_figures(tiny_policy(LossHead::trl_dpo)).parameters;
  for (const std::int64_t stage : {1, 2, 3}) {
    const Bytes more = both(stage, ReferencePass::model).parameters - both(stage, ReferencePass::none).parameters;
    CHECK(more == (stage == 3 ? whole / 8 : whole));
  }
}

TEST_CASE("by hand: ORPO keeps the chosen half's log-probs as well, GRPO holds two tensors of logits") {
  const TrainingFigures orpo = training_figures(tiny_policy(LossHead::trl_orpo));
  near(orpo.forward - orpo.parameters, 2 * B * K * V + 2 * B * C * V + B * C * V);
  const TrainingFigures grpo = training_figures(tiny_policy(LossHead::trl_grpo));
  near(grpo.forward - grpo.parameters, 2 * B * K * V + 2 * 2 * B * C * V + 3 * 2 * 128 * V);
}

TEST_CASE("by hand: KTO copies the desirable completions' logits and the others', and either half once more") {
  TrainingCase c = tiny_policy(LossHead::trl_kto);
  const Bytes sequences = 16;
  c.trainer.sequences_per_micro_batch = sequences;
  const TrainingFigures f = training_figures(c);
  const Bytes above = f.forward - f.parameters, logits = 2 * sequences * K * V, shifted = 2 * sequences * C * V;
  CHECK(above >= logits + 2 * shifted + shifted / 2);
  CHECK(above < logits + 2 * shifted + shifted / 2 + 200 * sequences * K);
}

TEST_CASE("a reward model has a row in place of an output layer") {
  const TrainingFigures model = training_figures(tiny_policy(LossHead::trl_simpo));
  const TrainingFigures scores = training_figures(tiny_policy(LossHead::reward_pairs));
  CHECK(model.parameters - scores.parameters == 2 * (V - 1) * 8);
  CHECK(scores.forward < model.forward);
}

std::string refusal(const std::string& settings, const std::string& rest = "framework: torch\n") {
  const std::string job = "oomplan: 1\ngpus: 2 x A100-80GB\nmodel: qwen2.5-0.5b\n" + rest +
                          "trainer: {layout: d2, precision: {storage: bf16}, sequence_tokens: 2k, micro_batches: 1, " + settings +
                          "}\n";
  try {
    (void)estimate_quick(read({job, "job.yaml", {}, {}}).job);
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

TEST_CASE("what preference losses do not go with is refused by name") {
  const auto told = [](const std::string& why, const std::string& part) {
    CAPTURE(why);
    CAPTURE(part);
    CHECK(why.find(part) != std::string::npos);
  };
  const std::string pairs = "sequences_per_micro_batch: 2, ";
  CHECK(refusal(pairs + "head: trl_dpo, reference: model").empty());
  CHECK(refusal(pairs + "head: trl_dpo, reference: adapters_off, lora: {rank: 8}").empty());
  CHECK(refusal(pairs + "head: trl_kto, reference: model").empty());
  CHECK(refusal(pairs + "head: reward_pairs").empty());
  told(refusal(pairs + "head: trl_dpo, reference: adapters_off"), "without adapters the policy is no reference");
  told(refusal(pairs + "head: trl_simpo, reference: model"), "this loss has no reference inside of its step");
  told(refusal(pairs + "head: trl_grpo, reference: model"), "a role ref");
  told(refusal("sequences_per_micro_batch: 3, head: trl_orpo"), "a pair is two sequences");
  told(refusal("sequences_per_micro_batch: 3, head: trl_kto"), "half of the completions are taken as desirable");
  told(refusal("head: trl_dpo, tokens_per_micro_batch: 4k"), "TRL pads its batches");
  told(refusal(pairs + "head: trl_dpo, logits_to_keep: 64"), "asks for all logits");
  CHECK(refusal(pairs + "engine: fsdp1, head: trl_dpo, reference: model").empty());
  told(refusal(pairs + "engine: fsdp1, head: trl_dpo, reference: adapters_off, lora: {rank: 8}"), "under FSDP1");
  const std::string adapters = "lora: {rank: 8, format: storage}";
  for (const std::string stage : {"1", "2", "3"}) {
    const std::string zero = pairs + "engine: deepspeed, zero: {stage: " + stage + "}, ";
    for (const std::string head : {"trl_simpo", "trl_orpo", "trl_grpo", "reward_pairs", "trl_dpo, reference: model"})
      CHECK(refusal(zero + "head: " + head).empty());
    const std::string without = zero + "head: trl_dpo, reference: adapters_off, " + adapters + ", recompute: ";
    CHECK(refusal(without + "none").empty());
    if (stage == "3")
      told(refusal(without + "full"), "adapters beside a reference's pass and checkpoints");
    else
      CHECK(refusal(without + "full").empty());
  }
  told(refusal(pairs + "engine: deepspeed, zero: {stage: 3, offload_parameters: true, offload_optimizer: true}, head: trl_dpo, "
                       "reference: model"),
       "parameters on the host");
  told(refusal(pairs + "head: trl_dpo, reference: model, cpu_offload_policy: true"), "parameters on the host");
  told(refusal(pairs + "head: reward_pairs, lora: {rank: 8}"), "LoRA of a value model");
  told(refusal(pairs + "head: trl_dpo", "framework: verl 0.9.0\n"), "PyTorch's alone");
  for (const char* head : {"trl_fused", "liger_fused_dpo", "liger_fused_grpo"})
    told(refusal(pairs + "head: " + head), "not supported yet");
}

}  // namespace
