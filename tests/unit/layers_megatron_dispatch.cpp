// Megatron-core's allgather dispatcher against what it saved and kept when it
// ran (tests/data/executed_megatron_dispatch.jsonl, made by
// benchmarks/oracle/execute_megatron_dispatch.py).
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

/// A model of one layer whose dispatcher has the sizes of the row.
TrainingCase case_of(const Json& row) {
  const Json config{{"model_type", "qwen3_moe"},
                    {"hidden_size", row["hidden"]},
                    {"intermediate_size", 512},
                    {"moe_intermediate_size", 128},
                    {"num_experts", row["experts"]},
                    {"num_experts_per_tok", row["top"]},
                    {"num_hidden_layers", 1},
                    {"num_attention_heads", 4},
                    {"num_key_value_heads", 4},
                    {"head_dim", 64},
                    {"vocab_size", 1024},
                    {"norm_topk_prob", true},
                    {"decoder_sparse_step", 1},
                    {"mlp_only_layers", Json::array()},
                    {"max_position_embeddings", 4096}};
  const auto ranks = row["ranks"].get<int>(), splits = row["splits"].get<int>();
  const Json trainer{
      {"engine", "megatron"},
      {"layout", splits == 1 ? fmt::format("d{0}e{0}", ranks) : fmt::format("attn:d{0}t{1}|ffn:t{1}e{0}", ranks, splits)},
      {"sequence_parallel", splits > 1},
      {"sequences_per_micro_batch", 1},
      {"sequence_tokens", row["tokens"].get<int>() * splits},
      {"micro_batches", 1},
      {"recompute", "none"},
      {"dispatcher", "allgather"},
      {"permute_fusion", false},
      {"router_dtype", row["router"]}};
  const Json job{{"framework", "torch"}, {"model", "qwen3_moe"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config.dump(), Catalog::builtin());
}

TEST_CASE(
    "megatron: the allgather dispatcher saves and keeps what it saved "
    "and kept") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_dispatch.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    const TrainingCase c = case_of(row);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    std::map<Bytes, std::int64_t> want, got;
    for (const auto& tensor : row["saved"]) want[tensor[0].get<Bytes>()] += tensor[1].get<std::int64_t>();
    for (const auto& site : saved_of_chunk_layer(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0).front(), 0))
      if (site.name.find("permutation.") != std::string::npos)  // indices, probabilities and mask
        ++got[site.bytes.value(stage.counts)];
    CHECK(want == got);
    // where nothing is gathered the map is the router's own, which the row does
    // not count
    const Bytes map = row["ranks"] == 1 ? row["tokens"].get<Bytes>() * row["experts"].get<Bytes>() : 0;
    Bytes maps = 0;
    const LastRouting& last = stage.permutations.at(0);
    for (std::size_t i = 0; i < last.maps.size(); ++i) maps += last.units[i] * last.maps[i];
    CHECK(stage.routing + maps == row["kept"].get<Bytes>() + map);
    const std::int64_t all = row["ranks"].get<std::int64_t>() * row["splits"].get<std::int64_t>();
    const Bytes gathered = all == 1 ? 0 : 2 * row["tokens"].get<Bytes>() * all * row["hidden"].get<Bytes>();
    CHECK(stage.gathered == gathered);
  }
  CHECK(rows == 5);
}

}  // namespace
