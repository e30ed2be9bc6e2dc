// LitGPT's models on one tiny Llama, every tensor written out, and what its kernel sets do not go with.
//
// Legend: T = 256 tokens of one sequence, h = 8 hidden, A = 16 (four query heads of d = 4), K = 8 (two key/value heads), F = 12,
// V = 1000, r = 2.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "job/litgpt_rules.hpp"
#include "layers/litgpt.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 256, h = 8, heads = 4, A = 16, K = 8, F = 12, V = 1000, r = 2, layers = 2;

TrainingCase tiny_litgpt(const char* family = "llama") {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(std::string(R"({"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4,
                                  "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 512,
                                  "tie_word_embeddings": true, "vocab_size": 1000, "model_type": ")") +
                      family + "\"}",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::litgpt;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::litgpt;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = t.tokens_per_micro_batch = T;
  t.wrap_embedding = t.wrap_head = false;
  t.lora.rank = r;
  t.lora.targets = {"q_proj", "v_proj"};
  t.lora.format = AdapterFormat::storage;
  t.lora.dropout = 0.05;
  c.engine = EngineKind::single;
  return c;
}

Bytes kept_of_layer(const TrainingCase& c) {
  const PassOptions o = train_pass(c.trainer, c.engine, *c.architecture, false, T, false);
  const PassCounts pass = pass_counts(c.trainer, T, o.head, *c.architecture);
  Bytes out = 0;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, o, 0)) out += site.bytes.value(pass.counts) * times;
  return out;
}

constexpr Bytes kNorms = 2 * T * (4 * h + 4);  // the fp32 copy and one number a row, twice
constexpr Bytes kAttention =
    T * (8 * A + 4 * heads) + 24;  // q, k, v for all heads, the output, log-sum-exp; the generator's state
constexpr Bytes kMlp = 6 * T * F;  // gate, its activation, up

TEST_CASE("by hand: what LitGPT keeps of a layer with adapters beside queries and values") {
  const Bytes adapters = T * (h + 2 * h + 2 * 2 * r + 2 * (A + K));  // mask, dropped input, the low product, what is padded
  const Bytes weights = 2 * 4 * h;                                   // the norms' weights in fp32
  TrainingCase c = tiny_litgpt();
  CHECK(kept_of_layer(c) == kNorms + kAttention + kMlp + adapters + weights);
  c.trainer.kernels = Kernels::litgpt_0_4_5;
  CHECK(kept_of_layer(c) == kNorms + kAttention + kMlp + adapters);
}

TEST_CASE("by hand: LitGPT ties no output layer, and its loop holds the fp32 logits") {
  const TrainingCase c = tiny_litgpt();
  const TrainingFigures f = training_figures(c);
  const Bytes layer = 2 * h + (A + 2 * K) * h + A * h + 3 * F * h, pair = 2 * r * h + r * (A + K);
  const Bytes parameters = 2 * (2 * V * h + layers * (layer + pair) + h);
  const Bytes tables = 2 * 4 * T * 4;                   // cosines and sines of four numbers, fp32
  CHECK(f.backward > parameters + tables + 8 * T * V);  // logits and log-probs, both fp32
  CHECK(f.backward < parameters + tables + 8 * T * V + 8 * 128 * V + 100 * layers * T * (h + A + F));
  CHECK(litgpt_chunk_rows(true, 3) == 3 * 128);
  CHECK(litgpt_chunk_rows(false, 3) == 128);
}

TrainingCase tiny_packed() {
  TrainingCase c = tiny_litgpt();
  c.trainer.lora.base.format = BaseFormat::nf4;
  c.trainer.lora.base.compute = DType::bf16;
  c.trainer.lora.base.version = "0.42.0";
  return c;
}

TEST_CASE("by hand: LitGPT packs every matrix, its output layer among them, and leaves norms and the embedding") {
  TrainingCase c = tiny_packed();
  const TrainingFigures packed = training_figures(c), plain = training_figures(tiny_litgpt());
  const Bytes matrices = V * h + layers * ((A + 2 * K) * h + A * h + 3 * F * h);
  const auto statistics = [](Bytes elements) { return 4 * ceil_div(elements, 64) + 64; };  // a scale for 64, and the codes
  const Bytes scales = statistics(V * h) + layers * (statistics((A + 2 * K) * h) + statistics(A * h) + 3 * statistics(F * h));
  // in forward unpacking is over when the logits are made fp32; what stays are the layers' inputs: the first layer's has no
  // gradient
  const Bytes inputs = 2 * T * ((A + h + F) + (h + A + h + F) + h);
  CHECK(packed.forward - plain.forward == matrices / 2 + scales + inputs - 2 * matrices);
}

TEST_CASE("by hand: what a batch before leaves of itself until its successor's logits are there") {
  TrainingCase c = tiny_packed();
  const Bytes alone = training_figures(c).forward;
  c.trainer.keep_outputs = true;
  const Bytes inputs = 2 * T * ((A + h + F) + (h + A + h + F));
  // three times the logits, new ones in 16 bits and in fp32 and old ones in fp32, where alone two of fp32 and the loss are
  // highest
  CHECK(training_figures(c).forward - alone == 2 * T * V + inputs - 8);
}

TEST_CASE("by hand: under autocast every 128 tokens have a 16-bit copy of LitGPT's frozen output layer of their own") {
  TrainingCase c = tiny_litgpt();
  c.trainer.storage = c.trainer.compute = c.trainer.reduce = DType::fp32;
  c.trainer.autocast = true;
  const auto copies = [&](std::int64_t tokens) {
    c.trainer.sequence_tokens = c.trainer.tokens_per_micro_batch = tokens;
    const auto tape = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, tokens, false));
    Bytes out = 0;
    for (const auto& site : tape->sites)
      if (site.name == "logits.weight_copies" || site.name == "lm_head.weight.bf16") out += site.bytes.coefficient;
    return out / (2 * V * h);
  };
  CHECK(copies(128) == 1);
  CHECK(copies(129) == 2);
  CHECK(copies(1000) == 8);
}

TEST_CASE("LitGPT's packed models go without what peft does to a base") {
  Role role;
  role.engine = EngineKind::single;
  role.trainer = tiny_packed().trainer;
  CHECK(litgpt_clashes(role).empty());
  role.trainer.lora.base.prepare_kbit = true;
  REQUIRE(litgpt_clashes(role).size() == 1);
  CHECK(litgpt_clashes(role)[0].knob == "lora.prepare_kbit");
  role.trainer.lora.base.prepare_kbit = false;
  role.trainer.lora.dora = true;
  REQUIRE(litgpt_clashes(role).size() == 1);
  CHECK(litgpt_clashes(role)[0].knob == "lora.dora");
}

TEST_CASE("LitGPT's models that are not described are refused by name") {
  const auto why = [](const TrainingCase& c) {
    try {
      (void)training_figures(c);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(why(tiny_litgpt("qwen3")).find("LitGPT's model of 'qwen3' is not supported yet") != std::string::npos);
  TrainingCase c = tiny_litgpt();
  c.trainer.head = LossHead::hf_loss;
  CHECK(why(c).find("without each other") != std::string::npos);
  c = tiny_litgpt();
  c.trainer.liger.rms_norm = true;
  CHECK(why(c).find("Liger") != std::string::npos);
  c = tiny_packed();
  c.trainer.autocast = true;
  CHECK(why(c).find("packed models under autocast") != std::string::npos);
  c = tiny_litgpt();
  c.trainer.autocast = true;
  c.trainer.lora.targets = {"q_proj", "o_proj"};
  CHECK(why(c).find("under autocast are not supported yet") != std::string::npos);
}

}  // namespace
