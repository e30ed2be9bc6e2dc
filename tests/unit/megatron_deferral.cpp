// Gradients of the output layer that wait for the end of a step's passes (defer_embedding_wgrad_compute), by hand; tests of
// Megatron-LM with it are among tests/data/golden_megatron.jsonl.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "job/knobs.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

const Json kConfig{{"model_type", "megatron_gpt"},
                   {"num_hidden_layers", 4},
                   {"hidden_size", 512},
                   {"intermediate_size", 2048},
                   {"num_attention_heads", 8},
                   {"num_key_value_heads", 8},
                   {"head_dim", 64},
                   {"vocab_size", 32768},
                   {"max_position_embeddings", 1024},
                   {"position_embedding_type", "learned_absolute"},
                   {"rotary_percent", 1.0},
                   {"normalization", "LayerNorm"},
                   {"swiglu", false},
                   {"qk_layernorm", false},
                   {"add_bias_linear", true},
                   {"tie_word_embeddings", false},
                   {"hidden_dropout", 0.1},
                   {"attention_dropout", 0.1}};

struct Asked {
  int stage = 2, micro_batches = 8;  ///< the first stage is 1
  bool defers = true;
  std::string limit = "auto";
  bool sequence_parallel = false;
};
TrainingCase case_of(const Asked& asked) {
  const Json trainer{{"engine", "megatron"},
                     {"layout", "d1t2p2"},
                     {"sequence_parallel", asked.sequence_parallel},
                     {"sequences_per_micro_batch", 2},
                     {"sequence_tokens", 1024},
                     {"micro_batches", asked.micro_batches},
                     {"recompute", "none"},
                     {"defer_embedding_wgrad_compute", asked.defers},
                     {"wgrad_deferral_limit", asked.limit}};
  const Json job{{"framework", "torch"}, {"model", "megatron_gpt"}, {"trainer", trainer}, {"apart", {{"stage", asked.stage}}}};
  return read_training_case(job.dump(), kConfig.dump(), Catalog::builtin());
}
TrainingFigures figures_of(const Asked& asked) { return training_figures(case_of(asked)); }

/// Two sequences of 1024 tokens: gradients of 16384 words on the rank, and hidden states of 512.
constexpr Bytes kHidden = 2 * 2 * 1024 * 512, kOne = 2 * 2 * 1024 * 16384 + kHidden;
/// With what the stage received, the leaf of the graph, and its gradient.
constexpr Bytes kWaits = kOne + 2 * kHidden;

TEST_CASE("megatron: deferred gradients wait beside the later micro-batches") {
  const TrainingFigures without = figures_of({.defers = false});
  CHECK(figures_of({.limit = "1"}).backward - without.backward == kWaits);
  CHECK(figures_of({.limit = "2"}).backward - without.backward == 2 * kWaits);
  CHECK(figures_of({.limit = "2"}).optimizer == without.optimizer);
  // the passes before the last one wait when its loss is highest; the schedule names the last gradient anyway
  CHECK(figures_of({}).backward - without.backward == 7 * kWaits - kHidden);
  CHECK(figures_of({.limit = "100"}).backward == figures_of({}).backward);
  // micro-batches that are not played one by one wait all the same
  CHECK(figures_of({.micro_batches = 100}).backward - without.backward == 99 * kWaits - kHidden);
  CHECK(figures_of({.micro_batches = 100, .limit = "60"}).backward - without.backward == 60 * kWaits);
}

TEST_CASE("megatron: the first stage defers nothing") {
  CHECK(figures_of({.stage = 1}).peak == figures_of({.stage = 1, .defers = false}).peak);
}

TEST_CASE("megatron: deferred gradients gather their inputs in two more buffers") {
  const auto gathered = [](const Asked& asked) {
    const TrainingCase c = case_of(asked);
    return make_megatron_stage(*c.architecture, c.trainer, c.stage, asked.micro_batches).gathered;
  };
  constexpr Bytes kWhole = 2 * 2 * 1024 * 512;
  CHECK(gathered({.defers = false, .sequence_parallel = true}) == kWhole);
  CHECK(gathered({.limit = "1", .sequence_parallel = true}) == 2 * kWhole);
  CHECK(gathered({.sequence_parallel = true}) == 3 * kWhole);
  CHECK(gathered({.stage = 1, .sequence_parallel = true}) == 0);
}

}  // namespace
