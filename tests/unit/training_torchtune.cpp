// torchtune's models on one tiny Llama, every tensor written out, and what its kernel sets do not go with.
//
// Legend: T = 256 tokens of one sequence, h = 8 hidden, four query heads and two key/value heads of d = 2, F = 12, V = 1000.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "job/torchtune_rules.hpp"
#include "layers/tape.hpp"
#include "layers/torchtune.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 256, h = 8, heads = 4, d = 2, F = 12, V = 1000;

TrainingCase tiny_torchtune(const char* family = "llama") {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(std::string(R"({"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4,
                                  "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": true,
                                  "vocab_size": 1000, "model_type": ")") +
                      family + "\"}",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::torchtune;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::torchtune;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = t.tokens_per_micro_batch = T;
  t.wrap_embedding = t.wrap_head = false;
  c.engine = EngineKind::single;
  return c;
}

Bytes kept_by_torchtune(const TrainingCase& c) {
  const PassOptions o = train_pass(c.trainer, c.engine, *c.architecture, false, T, false);
  const PassCounts pass = pass_counts(c.trainer, T, o.head, *c.architecture);
  Bytes out = 0;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, o, 0)) out += site.bytes.value(pass.counts) * times;
  return out;
}

TEST_CASE("by hand: what torchtune keeps of a layer, and packed samples' rows of the table of positions") {
  const Bytes norms = 2 * T * (4 * h + 4 + 2 * h + 2 * h);   // the fp32 copy, one number a row, before and behind the weight
  const Bytes attention = T * (4 * 2 * h + 4 * heads) + 24;  // q, k and v for all heads, the output; log-sum-exp, the generator
  const Bytes feed_forward = 8 * T * F;                      // both projections, the activation, their product
  TrainingCase c = tiny_torchtune();
  CHECK(kept_by_torchtune(c) == norms + attention + feed_forward);
  c.trainer.kernels = Kernels::torchtune_packed;
  CHECK(kept_by_torchtune(c) == norms + attention + feed_forward + 2 * 4 * T * d);  // for queries and for keys, fp32
}

TEST_CASE("by hand: torchtune's losses hold fp32 logits of all tokens, or of an eighth of every sequence") {
  TrainingCase c = tiny_torchtune();
  const Bytes whole = training_figures(c).forward;
  c.trainer.head = LossHead::torchtune_chunked;
  const Bytes chunked = training_figures(c).forward;
  // fp32 logits and log-probs against 16-bit logits, log-probs and one part's fp32 logits
  const Bytes difference = 8 * T * V - (6 * T * V + 4 * (T / 8) * V);
  CHECK(whole - chunked <= difference);
  CHECK(whole - chunked > difference - 100);
}

TEST_CASE("torchtune's models go without what its recipes do not do") {
  const auto clash = [](const TrainingCase& c, EngineKind engine = EngineKind::single) {
    Role role;
    role.engine = engine;
    role.trainer = c.trainer;
    const auto found = torchtune_clashes(role);
    return found.empty() ? std::string() : found[0].knob;
  };
  TrainingCase c = tiny_torchtune();
  CHECK(clash(c).empty());
  CHECK(clash(c, EngineKind::fsdp2) == "engine");
  c.trainer.head = LossHead::hf_loss;
  CHECK(clash(c) == "head");
  c = tiny_torchtune();
  c.trainer.storage = DType::fp32;
  CHECK(clash(c) == "precision.storage");
  c = tiny_torchtune();
  c.trainer.sequences_per_micro_batch = 0;
  CHECK(clash(c) == "sequences_per_micro_batch");
  c = tiny_torchtune();
  c.trainer.lora.rank = 2;
  c.trainer.lora.format = AdapterFormat::fp32;
  CHECK(clash(c) == "lora.format");
  c.trainer.lora.format = AdapterFormat::storage;
  c.trainer.lora.base.format = BaseFormat::nf4;
  CHECK(clash(c) == "lora.base");
  CHECK_THROWS_WITH_AS(training_figures(tiny_torchtune("qwen2")),
                       doctest::Contains("torchtune's model of 'qwen2' is not supported yet"), InputError);
}

}  // namespace
