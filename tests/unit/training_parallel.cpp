// Tensor parallelism and torchtitan's models, by hand: what one more layer adds to the level at the loss.
//
// Legend: T tokens of one sequence, h hidden, A = a*d query width of a heads, K key/value width, F feed-forward width, t ranks.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "layers/tape.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 8, h = 16, a = 4, d = 4, A = a * d, K = 2 * d, F = 24;
constexpr Bytes kMatrices = A * h + 2 * K * h + h * A + 3 * F * h;  // elements of q, k, v, o, gate, up, down
constexpr Bytes kNorms = 2 * h;

TrainingCase tiny(int layers) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": )" + std::to_string(layers) +
                      R"(, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
                      "vocab_size": 2000, "max_position_embeddings": 64, "tie_word_embeddings": false})",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.optimizer = OptimizerKind::sgd;
  t.head = LossHead::cross_entropy;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = T;
  t.recompute = Recompute::none;
  c.engine = EngineKind::single;
  return c;
}

/// The vocabulary is so large that forward is highest at the loss, where all layers' activations are alive.
Bytes added_by_a_layer(const std::function<void(Trainer&)>& change) {
  Bytes level[2];
  for (const int more : {0, 1}) {
    TrainingCase c = tiny(3 + more);
    change(c.trainer);
    level[more] = training_figures(c).forward;
  }
  return level[1] - level[0];
}

TEST_CASE("by hand: what one of t ranks keeps of a layer") {
  for (const Bytes t : {1, 2}) {
    CAPTURE(t);
    const Bytes norm = 4 * T * h + 4 * T + 2 * T * h;             // the input in fp32, rsqrt, the normed input
    const Bytes attention = 2 * T * (2 * A + 2 * K) + 4 * T * a;  // q, k, v, output; log-sum-exp
    const Bytes feed_forward = 4 * (2 * T * F);                   // gate, silu(gate), up, product
    const Bytes inputs = 2 * (2 * T * h);                         // of q, k, v and of gate, up: whole on every rank
    const Bytes kept = (2 * norm + attention + feed_forward) / t + inputs + 16;
    CHECK(added_by_a_layer([&](Trainer& trainer) { trainer.layout.tensor = t; }) == kept + 2 * (kMatrices / t + kNorms));
  }
}

TEST_CASE("by hand: what torchtitan's selective recomputation keeps of a layer") {
  for (const Bytes t : {1, 2}) {
    CAPTURE(t);
    const Bytes between = 2 * T * h / t;  // the layer's input
    const Bytes products =
        2 * T * A / t + 2 * T * K / t + 2 * T * F / t + 2 * T * h;   // first, third, fifth, seventh: q, v, gate, down
    const Bytes attention = 2 * T * A / t + 4 * T * a / t + 16 + 8;  // output, log-sum-exp, generator
    const Bytes reduced = t > 1 ? 2 * between : 0;                   // of o and of down
    const Bytes added = added_by_a_layer([&](Trainer& trainer) {
      trainer.kernels = Kernels::torchtitan;
      trainer.recompute = Recompute::selective;
      trainer.layout.tensor = t;
    });
    CHECK(added == between + products + attention + reduced + 2 * (kMatrices / t + kNorms));
  }
}

TEST_CASE("by hand: full recomputation of torchtitan's layers keeps their inputs alone") {
  const Bytes added = added_by_a_layer([&](Trainer& trainer) {
    trainer.kernels = Kernels::torchtitan;
    trainer.recompute = Recompute::full;
  });
  CHECK(added == 2 * T * h + 2 * (kMatrices + kNorms));
}

TEST_CASE("selective recomputation is torchtitan's alone") {
  TrainingCase c = tiny(3);
  c.trainer.recompute = Recompute::selective;
  CHECK_THROWS_AS(training_figures(c), InputError);
}

TEST_CASE("Liger's operators in split layers and in torchtitan's are refused by name") {
  for (const bool split : {true, false}) {
    TrainingCase c = tiny(3);
    c.trainer.kernels = split ? Kernels::hf_flash : Kernels::torchtitan;
    c.trainer.layout.tensor = split ? 2 : 1;
    CHECK_NOTHROW((void)training_figures(c));
    c.trainer.liger.rms_norm = true;
    CHECK_THROWS_AS((void)training_figures(c), InputError);
  }
}

}  // namespace
