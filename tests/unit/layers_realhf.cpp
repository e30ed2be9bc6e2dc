// The model of AReaL's realhf trainer: stages against what its own modules did (tests/data/executed_realhf.jsonl, made by
// benchmarks/oracle/execute_realhf.py), and its partition of layers.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "training/megatron.hpp"
#include "training/megatron_plan.hpp"
#include "training/megatron_realhf.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

std::vector<Json> rows(const char* key) {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_realhf.jsonl");
  REQUIRE(in.good());
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);)
    if (Json row = Json::parse(line); row.contains(key)) out.push_back(std::move(row));
  return out;
}

Architecture model_of(const Json& row) {
  const bool qk = row["qk_norm"], bias = row["bias"];
  const Json config{{"architectures", {qk ? "Qwen3ForCausalLM" : bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
                    {"model_type", qk ? "qwen3" : bias ? "qwen2" : "llama"},
                    {"hidden_size", row["hidden"]},
                    {"num_attention_heads", row["heads"]},
                    {"num_key_value_heads", row["kv"]},
                    {"head_dim", row["head"]},
                    {"intermediate_size", row["ffn"]},
                    {"vocab_size", row["vocab"]},
                    {"num_hidden_layers", row["layers"]},
                    {"max_position_embeddings", 32768},
                    {"tie_word_embeddings", row.value("tied", false)}};
  return read_config(config.dump(), "executed");
}

Trainer trainer_of(const Json& row) {
  Trainer t;
  t.framework = Framework::areal;
  t.framework_version = "0.3.0";
  t.megatron.impl = TransformerImpl::realhf;
  t.megatron.loss = MegatronLoss::areal_whole;
  t.megatron.deallocate_outputs = false;
  t.megatron.gradient_accumulation_fusion = false;
  t.layout.tensor = row["tensor"];
  t.layout.pipeline = row["pipe"];
  t.megatron.sequence_parallel = t.layout.tensor > 1;
  t.kernels = Kernels::transformer_engine;
  t.reduce = DType::fp32;
  t.recompute = row["checkpoints"].get<bool>() ? Recompute::full : Recompute::none;
  t.tokens_per_micro_batch = row["tokens"];
  t.kernel_internals = false;  // fake kernels have no insides
  return t;
}

struct Played {
  Bytes forward = 0, backward = 0, stays = 0;
  std::int64_t parameters = 0;
};

/// Highest levels of the second step, above what stays between steps.
Played play(const Json& row) {
  const Architecture a = model_of(row);
  const Trainer t = trainer_of(row);
  const std::string asks = row["asks"];
  const MegatronUse use{.trains = asks != "log_probs",
                        .log_probs = asks == "log_probs",
                        .supervised = asks == "sft",
                        .critic = asks == "critic",
                        .sequence = row["tokens"].get<std::int64_t>() - row["tokens"].get<std::int64_t>() / 2};
  const MegatronStage stage = make_megatron_stage(a, t, row["stage"], 2 * t.layout.pipeline, use);
  Played out;
  const MegatronParameters n = megatron_parameters(a, megatron_chunks(a, t, row["stage"], use));
  out.parameters = n.dense + n.experts;
  PeakRecorder r;
  MegatronEngine<PeakRecorder> engine(r, stage, "");
  Bytes level = 0;
  Bytes* highest = nullptr;
  const auto cut = [&](Bytes* next) {
    if (highest != nullptr) *highest = std::max(*highest, level + r.span().peak);
    level += r.span().net;
    r = PeakRecorder();
    highest = next;
  };
  engine.load();
  cut(nullptr);
  const Bytes loaded = level;
  Bytes begun = 0;
  for (const bool second : {false, true}) {
    if (asks == "log_probs") {
      cut(second ? &out.forward : nullptr);
      engine.forward_passes(2);
    } else {
      engine.passes(played_micro_batches(stage.micro_batches, stage.stages, std::ssize(stage.chunks), stage.group),
                    [&](bool backward) { cut(!second ? nullptr : backward ? &out.backward : &out.forward); });
    }
    cut(nullptr);
    if (!second) begun = level;
  }
  out.stays = begun - loaded;
  for (Bytes* figure : {&out.forward, &out.backward}) *figure = std::max<Bytes>(0, *figure - begun);
  return out;
}

TEST_CASE("realhf: stages hold what its own modules held") {
  int judged = 0;
  for (const Json& row : rows("asks")) {
    CAPTURE(row.dump());
    const Played got = play(row);
    CHECK(got.parameters == row["parameters"].get<std::int64_t>());
    const auto compare = [&](Bytes figure, const char* key) {
      if (!row.contains(key)) return;
      const double want = row[key].get<double>();
      CAPTURE(key);
      CAPTURE(figure);
      if (std::getenv("OOMPLAN_SHOW") != nullptr)
        std::printf("%s t%d p%d s%d h%d v%d ck%d %s %.4f %ld\n", row["asks"].get<std::string>().c_str(), row["tensor"].get<int>(), row["pipe"].get<int>(),
                    row["stage"].get<int>(), row["hidden"].get<int>(), row["vocab"].get<int>(), row["checkpoints"].get<bool>() ? 1 : 0, key, static_cast<double>(figure) / want, static_cast<long>(figure - row[key].get<Bytes>()));
      CHECK(static_cast<double>(figure) == doctest::Approx(want).epsilon(0.01));
    };
    compare(got.forward, "forward");
    compare(got.backward, "backward");
    ++judged;
  }
  CHECK(judged == 45);
}

TEST_CASE("realhf: layers go to stages as its own function deals them out") {
  int judged = 0;
  for (const Json& row : rows("spans")) {
    CAPTURE(row.dump());
    const auto spans = row["spans"].get<std::vector<std::vector<std::int64_t>>>();
    std::vector<std::int64_t> want;
    for (const auto& span : spans) want.push_back(span[1] - span[0]);
    want.front() -= 1;  // the embedding
    want.back() -= 1;   // the head
    const auto got = realhf_stage_layers(model_of(row), row["pipe"]);
    CHECK((spans.size() == 1 ? got.empty() : got == want));
    ++judged;
  }
  CHECK(judged == 20);
}

}  // namespace
