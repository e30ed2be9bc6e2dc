// What older releases of transformers held in the loss, in multiples of T V bytes of 16-bit logits: the vocabulary is so large
// that nothing else shows.
#include <doctest/doctest.h>

#include <memory>

#include "estimate/figures.hpp"
#include "layers/transformers_code.hpp"

namespace {

using namespace oomplan;

constexpr Bytes kTokens = 512, kVocab = 200'000;

TrainingFigures with_release(const char* version, bool keep_outputs, std::int64_t sequences = 2) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8,
                      "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 200000,
                      "max_position_embeddings": 512, "tie_word_embeddings": false})",
                  "wide"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_sdpa;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.optimizer = OptimizerKind::sgd;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = sequences;
  t.sequence_tokens = kTokens / sequences;
  t.wrap_embedding = t.wrap_head = false;
  t.transformers_version = version;
  t.keep_outputs = keep_outputs;
  c.engine = EngineKind::single;
  return training_figures(c);
}

double multiples(Bytes level, const TrainingFigures& f) {
  return static_cast<double>(level - f.parameters) / static_cast<double>(kTokens * kVocab);
}

TEST_CASE("the loss of transformers 4.37 widens the logits and copies them without the last token") {
  // fp32 logits, their shifted copy, log-probs
  const TrainingFigures old = with_release("4.37.2", false);
  CHECK(multiples(old.forward, old) == doctest::Approx(12).epsilon(0.01));
  // log-probs, nll_loss's gradient, log_softmax's; the fp32 logits too when the loop holds the output
  const TrainingFigures kept = with_release("4.37.2", true);
  CHECK(multiples(kept.backward, kept) - multiples(old.backward, old) == doctest::Approx(4).epsilon(0.02));
  // of one sequence the logits without the last token lie as a block: no copy
  const TrainingFigures one = with_release("4.37.2", false, 1);
  CHECK(multiples(one.forward, one) == doctest::Approx(8).epsilon(0.01));
  // 4.46: 16-bit logits beside the three
  const TrainingFigures inside = with_release("4.46.3", false);
  CHECK(multiples(inside.forward, inside) == doctest::Approx(14).epsilon(0.01));
  // 4.49: labels are shifted instead
  const TrainingFigures labels = with_release("4.49.0", false);
  CHECK(multiples(labels.forward, labels) == doctest::Approx(10).epsilon(0.01));
  CHECK(labels.forward == with_release("", false).forward);
}

TEST_CASE("releases of transformers: one row a change") {
  CHECK_FALSE(transformers_code("4.36.2").has_value());
  CHECK(transformers_code("4.45.2")->widens_logits);
  CHECK_FALSE(transformers_code("4.46.0")->widens_logits);
  CHECK(transformers_code("4.48.3")->copies_shifted);
  CHECK_FALSE(transformers_code("4.49.0")->copies_shifted);
  CHECK(transformers_code("4.47.1")->expands_keys);
  CHECK(*transformers_code("") == TransformersCode{});
}

}  // namespace
