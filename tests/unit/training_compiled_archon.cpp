// Archon's blocks under torch.compile, by hand: what the partitioner keeps of a layer, which of inductor's orders is taken, and
// what is refused.
//
// Legend: T tokens, h hidden, A query width of a heads, K key/value width of g heads, d head dim, F feed-forward width, P
// positions.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "layers/compiled_order.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes kT = 512, kH = 256, kA = 512, kHeads = 8, kK = 128, kGroups = 2, kD = 64, kF = 640, kPositions = 1024;

std::shared_ptr<const Architecture> model(const std::string& family, int layers, const std::string& more = "") {
  const std::string head = family == "qwen2" ? "32" : "64";
  return std::make_shared<const Architecture>(read_config(
      R"({"model_type": ")" + family + R"(", "num_hidden_layers": )" + std::to_string(layers) + R"(, "head_dim": )" + head +
          R"(, "hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 8, "num_key_value_heads": 2,
                      "vocab_size": 2048, "max_position_embeddings": 1024, "tie_word_embeddings": false)" +
          more + "}",
      "compiled"));
}

TrainingCase compiled(const std::string& family, int layers) {
  TrainingCase c;
  c.architecture = model(family, layers);
  Trainer& t = c.trainer;
  t.framework = Framework::areal;
  t.kernels = Kernels::archon;
  t.compile = true;
  t.kernel_internals = false;
  t.storage = t.compute = DType::bf16;
  t.reduce = DType::fp32;
  t.optimizer = OptimizerKind::sgd;
  t.head = LossHead::areal_eager;
  t.tokens_per_micro_batch = kT;
  t.wrap_embedding = t.wrap_head = t.wrap_norm = true;
  c.engine = EngineKind::archon;
  return c;
}

/// At the loss, where all layers' activations are alive; with the layer's parameters.
Bytes of_a_layer(const std::string& family, Recompute recompute, Bytes tokens = kT) {
  Bytes level[2];
  for (const int more : {0, 1}) {
    TrainingCase c = compiled(family, 3 + more);
    c.trainer.recompute = recompute;
    c.trainer.tokens_per_micro_batch = tokens;
    level[more] = training_figures(c).forward;
  }
  return level[1] - level[0];
}

TEST_CASE("by hand: what a compiled layer of Archon keeps") {
  const Bytes table = 2 * kPositions * 2 * kD;
  // beside the layer's output (the next one's input) and its copy of the table of positions, which a full checkpoint keeps:
  const Bytes full = of_a_layer("qwen3", Recompute::full);
  // attention's result and log-sum-exp, queries and values as multiplied, the first product of the feed-forward
  const Bytes attention = 2 * kT * kA + 4 * kT * kHeads;
  CHECK(of_a_layer("qwen3", Recompute::selective) - full == attention + 2 * kT * kA + 2 * kT * kK + 2 * kT * kF);
  // a number a row of both norms and a head of both others, both normed inputs, queries and keys before and behind norm and
  // rotation, values, the output projection, three of the feed-forward's width; the table's rows in place of the table
  const Bytes rows = 2 * kT * 2 * kD;
  CHECK(of_a_layer("qwen3", Recompute::none) - full == 2 * (4 * kT) + 4 * kT * (kHeads + kGroups) + 2 * (2 * kT * kH) +
                                                           2 * (2 * kT * kA) + 3 * (2 * kT * kK) + attention + 2 * kT * kH +
                                                           3 * (2 * kT * kF) + rows - table);
  // with as many tokens as positions the table is no larger than its rows
  const Bytes twice = of_a_layer("qwen3", Recompute::none, kPositions) - of_a_layer("qwen3", Recompute::full, kPositions);
  CHECK(twice == 2 * (of_a_layer("qwen3", Recompute::none) - full + table - rows));
}

TEST_CASE("by hand: Archon's Qwen2 keeps no queries, keys or values of selective checkpoints") {
  // queries are as wide as hidden states: attention's result and log-sum-exp, the stream behind attention, the gate
  CHECK(of_a_layer("qwen2", Recompute::selective) - of_a_layer("qwen2", Recompute::full) ==
        2 * kT * kH + 4 * kT * kHeads + 2 * kT * kH + 2 * kT * kF);
}

TEST_CASE("gradients of matrices come late where tokens are fewer than hidden states are wide") {
  const std::shared_ptr<const Architecture> held = model("qwen3", 2);
  const Architecture& a = *held;
  CHECK(archon_order(a, Recompute::none, DType::bf16, {1, 4 * kH}) !=  // the table is kept
        archon_order(a, Recompute::none, DType::bf16, {1, 2 * kH}));
  CHECK(archon_order(a, Recompute::none, DType::bf16, {1, 2 * kH}) == 0);
  CHECK(archon_order(a, Recompute::none, DType::bf16, {1, kH / 4}) > 1);
  CHECK(archon_order(a, Recompute::full, DType::bf16, {1, 4 * kH}) == 0);
  CHECK(find_archon_graph("qwen3", Recompute::full, 99) == nullptr);
  CHECK(find_archon_graph("llama", Recompute::full, 0) == nullptr);
  CHECK(find_archon_inference("qwen3_moe") == nullptr);
}

TEST_CASE("torch.compile of Archon that is not described is refused by name") {
  const auto refuses = [](const std::function<void(TrainingCase&)>& change) {
    TrainingCase c = compiled("qwen3", 2);
    CHECK_NOTHROW((void)training_figures(c));
    change(c);
    try {
      (void)training_figures(c);
    } catch (const InputError& e) {
      return std::string(e.what()).find("torch.compile") != std::string::npos;
    }
    return false;
  };
  CHECK(refuses([](TrainingCase& c) { c.trainer.layout.tensor = 2; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.layout.context = 2; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.tree_training = true; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.float8 = Float8::blockwise; }));
  CHECK(refuses([](TrainingCase& c) { c.trainer.storage = c.trainer.compute = DType::fp32; }));
  CHECK(refuses([](TrainingCase& c) {
    c.architecture = model("qwen3_moe", 2, R"(, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
                           "decoder_sparse_step": 1, "mlp_only_layers": [])");
  }));
}

}  // namespace
