// torchtitan's blocks under torch.compile, by hand: what the partitioner keeps of a layer, and what is refused.
//
// Legend: T tokens of one sequence, h hidden, A = h query width of a heads, K key/value width, F feed-forward width, V
// vocabulary.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes kT = 64, kH = 256, kHeads = 4, kA = kH, kK = 128, kF = 512, kV = 2000;
constexpr Bytes kLayer = 2 * kA * kH + 2 * kK * kH + 3 * kF * kH + 2 * kH;  // its parameters

TrainingCase compiled_llama(int layers) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": )" + std::to_string(layers) +
                      R"(, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
                      "vocab_size": 2000, "max_position_embeddings": 64, "tie_word_embeddings": false})",
                  "compiled"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::torchtitan;
  t.compile = true;
  t.rms_norm = RmsNorm::by_hand;
  t.repeat_kv = true;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.optimizer = OptimizerKind::sgd;
  t.head = LossHead::cross_entropy;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = kT;
  t.recompute = Recompute::none;
  c.engine = EngineKind::single;
  return c;
}

/// At the loss, where all layers' activations are alive.
Bytes added_by_a_compiled_layer(Recompute recompute) {
  Bytes level[2];
  for (const int more : {0, 1}) {
    TrainingCase c = compiled_llama(3 + more);
    c.trainer.recompute = recompute;
    level[more] = training_figures(c).forward;
  }
  return level[1] - level[0] - 2 * kLayer;
}

TEST_CASE("by hand: what a compiled layer keeps") {
  // attention's result and log-sum-exp
  const Bytes attention = 2 * kT * kA + 4 * kT * kHeads;
  CHECK(added_by_a_compiled_layer(Recompute::full) == 2 * kT * kH);
  // the layer's output (the next one's input), queries and values as multiplied, attention, the first product of the
  // feed-forward; not its last product, which eager mode keeps without need
  CHECK(added_by_a_compiled_layer(Recompute::selective) == 2 * kT * kH + 2 * kT * kA + 2 * kT * kK + attention + 2 * kT * kF);
  // a number a row of both norms, both normed inputs, queries, keys and values of all heads, the output projection, three of the
  // feed-forward's width, the output
  CHECK(added_by_a_compiled_layer(Recompute::none) ==
        2 * (4 * kT) + 2 * (2 * kT * kH) + 3 * (2 * kT * kA) + attention + 2 * kT * kH + 3 * (2 * kT * kF) + 2 * kT * kH);
}

TEST_CASE("by hand: a compiled loss writes no logits in fp32") {
  TrainingCase c = compiled_llama(2);
  const Bytes plain = training_figures(c).forward;
  c.trainer.head = LossHead::cross_entropy_compiled;
  const Bytes compiled = training_figures(c).forward;
  CHECK(plain - compiled == 8 * kT * kV - 2 * 4 * kT);  // logits in fp32 and log-probs; two numbers a row
}

TEST_CASE("by hand: torchtitan's loop of June 2024 keeps fp32 logits through backward") {
  TrainingCase c = compiled_llama(2);
  c.trainer.compile = false;
  const TrainingFigures plain = training_figures(c);
  c.trainer.keep_outputs = true;
  const TrainingFigures kept = training_figures(c);
  CHECK(kept.backward - plain.backward == 4 * kT * kV);
  // the output before, the 16-bit one and the next: as much as two fp32 ones and the 16-bit one, but for the loss itself
  CHECK(plain.forward - kept.forward == 8);
  c.trainer.head = LossHead::cross_entropy_chunked;
  CHECK_THROWS_AS((void)training_figures(c), InputError);
}

/// At the loss, as above, with a sequence of kT tokens on every one of so many ranks.
Bytes added_in_a_ring(Recompute recompute, std::int64_t ranks) {
  Bytes level[2];
  for (const int more : {0, 1}) {
    TrainingCase c = compiled_llama(3 + more);
    c.trainer.layout.context = ranks;
    c.trainer.sequence_tokens = ranks * kT;
    c.trainer.recompute = recompute;
    level[more] = training_figures(c).forward;
  }
  return level[1] - level[0] - 2 * kLayer;
}

TEST_CASE("by hand: what a compiled layer keeps under context parallelism") {
  for (const std::int64_t ranks : {2, 4, 8}) {
    CHECK(added_in_a_ring(Recompute::full, ranks) == 2 * kT * kH);
    // the output, queries as multiplied, keys and values of all heads as the first step has them, those of all ranks as they were
    // gathered, attention's result and log-sum-exp, the first product of the feed-forward
    CHECK(added_in_a_ring(Recompute::selective, ranks) == 2 * kT * kH + 2 * kT * kA + 2 * (2 * kT * kA) +
                                                              ranks * 2 * (2 * kT * kA) + 2 * kT * kA + 4 * kT * kHeads +
                                                              2 * kT * kF);
  }
}

TEST_CASE("context parallelism of torchtitan that is not described is refused by name") {
  const auto refuses = [](const std::function<void(TrainingCase&)>& change) {
    TrainingCase c = compiled_llama(2);
    c.trainer.layout.context = 2;
    CHECK_NOTHROW((void)training_figures(c));
    change(c);
    try {
      (void)training_figures(c);
    } catch (const InputError& e) {
      return std::string(e.what()).find("context parallelism") != std::string::npos;
    }
    return false;
  };
  CHECK(refuses([](TrainingCase& c) { c.trainer.compile = false; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.layout.context = 3; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.layout.tensor = 2; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.rms_norm = RmsNorm::fused; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.float8 = Float8::rowwise; }));
}

TEST_CASE("torch.compile of what is not described is refused by name") {
  const auto refuses = [](const std::function<void(TrainingCase&)>& change) {
    TrainingCase c = compiled_llama(2);
    CHECK_NOTHROW((void)training_figures(c));
    change(c);
    try {
      (void)training_figures(c);
    } catch (const InputError& e) {
      return std::string(e.what()).find("torch.compile") != std::string::npos;
    }
    return false;
  };
  CHECK(refuses([](TrainingCase& c) { c.trainer.kernels = Kernels::hf_flash; }));
  CHECK(refuses([](TrainingCase& c) {
    c.trainer.layout.tensor = 2;
    c.trainer.head = LossHead::cross_entropy;
    c.trainer.repeat_kv = false;
  }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.repeat_kv = false; }));  // and the norm written out: no release has both
  CHECK(refuses([](TrainingCase& c) { c.trainer.storage = c.trainer.compute = c.trainer.reduce = DType::fp32; }));
}

}  // namespace
