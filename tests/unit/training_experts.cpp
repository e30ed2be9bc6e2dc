// Implementations of the experts: what decides which one runs, and what each keeps, by hand.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "estimate/routing.hpp"
#include "layers/experts.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr std::int64_t kTokens = 509, kHidden = 64, kExperts = 16, kChosen = 4, kWidth = 256, kRows = kTokens * kChosen;

TrainingCase routed(Experts experts, const std::string& release = {}, const std::string& family = "qwen3_moe") {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": ")" + family + R"(", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64,
                      "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "num_experts": 16,
                      "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256, "n_group": 4, "topk_group": 2,
                      "n_shared_experts": 1, "first_k_dense_replace": 0, "q_lora_rank": 32, "kv_lora_rank": 32,
                      "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "topk_method": "greedy",
                      "max_position_embeddings": 512, "tie_word_embeddings": false})",
                  "routed"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_eager;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = kTokens;
  t.experts = experts;
  t.transformers_version = release;
  c.engine = EngineKind::single;
  return c;
}

/// Bytes that a layer keeps for backward.
Bytes kept(const TrainingCase& c) {
  const PassOptions pass = train_pass(c.trainer, c.engine, *c.architecture, false, kTokens, false);
  const PassCounts counts = pass_counts(c.trainer, kTokens, c.trainer.head, *c.architecture);
  Bytes all = 0;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, pass, 0)) all += site.bytes.value(counts.counts) * times;
  return all;
}

std::string refusal(const TrainingCase& c) {
  try {
    (void)training_figures(c);
  } catch (const InputError& e) {
    return e.problems.at(0).why;
  }
  return {};
}

TEST_CASE("rows are spread evenly, and none is lost") {
  FeedForward ff;
  ff.experts = kExperts;
  ff.experts_per_token = kChosen;
  const Spread spread(ff, kTokens);
  std::int64_t sum = 0;
  for (std::int64_t e = 0; e < spread.hit; ++e) sum += spread.of(e);
  CHECK(sum == kRows);
  CHECK(spread.of(0) == 128);  // 2036 = 16 * 127 + 4
  CHECK(spread.of(15) == 127);
  const Spread few(ff, 2);  // fewer rows than experts: the rest is not run
  CHECK(few.hit == 8);
  CHECK(few.of(7) == 1);
}

TEST_CASE("a copy of its expert's matrices for every row") {
  const Bytes grouped = kept(routed(Experts::grouped_mm)), batched = kept(routed(Experts::batched_mm));
  // 3 W H of two bytes a row, for what grouped_mm keeps of its order: permutations and their inverse, tokens, offsets, and
  // weights that are gathered
  CHECK(batched - grouped > kRows * 3 * kWidth * kHidden * 2 - kRows * 40);
  CHECK(batched - grouped < kRows * 3 * kWidth * kHidden * 2);
  CHECK(kept(routed(Experts::automatic)) == grouped);
}

TEST_CASE("the loop of release 4 goes through modules, that of release 5 through a stack") {
  const TrainingFigures stack = training_figures(routed(Experts::eager)),
                        modules = training_figures(routed(Experts::automatic, "4.57.1"));
  CHECK(modules.parameters == stack.parameters);
  // select's gradient is as large as the stack: two of gate and up stand at a time, or one and that of down
  CHECK(stack.backward > modules.backward);
  CHECK(kept(routed(Experts::eager, "4.57.1")) == kept(routed(Experts::automatic, "4.57.1")));
}

TEST_CASE("what of the experts is not described is refused by name") {
  CHECK(refusal(routed(Experts::automatic, "4.57.1", "deepseek_v2")).find("the loop over experts of transformers 4") == 0);
  TrainingCase adapted = routed(Experts::eager);
  adapted.trainer.lora.rank = 8;
  CHECK(refusal(adapted).find("LoRA of experts with this experts_implementation") == 0);
  adapted.trainer.lora.targets = {"q_proj", "v_proj"};
  CHECK(refusal(adapted).empty());
}

TEST_CASE("the estimate says how the routing was taken to be") {
  Role role;
  role.name = "trainer";
  const TrainingCase c = routed(Experts::eager);
  role.engine = EngineKind::single;
  role.trainer = c.trainer;
  role.architecture = c.architecture;
  CHECK(routing_assumption(role).find("128 of 2036 rows for each of 16") != std::string::npos);
  role.trainer.experts = Experts::grouped_mm;
  CHECK(routing_assumption(role).empty());
}

}  // namespace
