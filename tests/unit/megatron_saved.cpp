// What one layer of Megatron-core saves for backward: tensors by format, shape and number against steps that were executed on
// fake tensors (tests/data/executed_megatron.jsonl, made by benchmarks/oracle/compact_megatron.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "estimate/figures.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

using Lengths = std::vector<std::int64_t>;

/// Are they one shape, but for neighbouring axes that are one axis in one of them? A view is saved as what it is a view of, and
/// kernels see rows where modules see sequences and tokens: where axes end must divide one another.
bool same_shape(const Lengths& one, const Lengths& other) {
  std::set<std::int64_t> ends;
  for (const Lengths* shape : {&one, &other}) {
    std::int64_t inner = 1;
    for (auto length = shape->rbegin(); length != shape->rend(); ++length) ends.insert(inner *= *length);
  }
  std::int64_t inner = 1;
  for (const std::int64_t end : ends)
    if (end % std::exchange(inner, end) != 0) return false;
  return true;
}

/// By format and number of elements: the shape of every tensor.
using SavedTensors = std::map<std::pair<std::string, std::int64_t>, std::vector<Lengths>>;

SavedTensors saved_tensors(const std::vector<TapeSite>& sites, const TokenCounts& counts) {
  SavedTensors out;
  for (const TapeSite& site : sites) {
    Lengths shape;
    for (const Dim& axis : site.shape) shape.push_back(axis.value(counts));
    out[{std::string(name(site.dtype)), elements(site.shape).value(counts)}].push_back(shape);
  }
  return out;
}
SavedTensors saved_tensors(const Json& row) {
  SavedTensors out;
  for (const auto& tensor : row["saved"]) {
    const auto shape = tensor[1].get<Lengths>();
    const std::int64_t all = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    auto& same = out[{tensor[0].get<std::string>(), all}];
    same.insert(same.end(), tensor[2].get<std::size_t>(), shape);
  }
  return out;
}

/// The rows' stand-in for Transformer Engine keeps the joint latent, of which its norm is given a view. Transformer Engine itself
/// copies the view (pytorch/module/base.py: prepare_forward, 2.17.1), which executed_megatron_model.jsonl has.
void copy_latent(SavedTensors& want, const Mixer& m) {
  if (m.kind != MixerKind::mla) return;
  for (auto kind = want.begin(); kind != want.end(); ++kind) {
    Lengths shape = kind->second.front();
    if (shape.back() != m.kv_lora_rank + m.rope_head_dim) continue;
    want.erase(kind);
    shape.back() = m.kv_lora_rank;
    const std::int64_t all = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    want[{"bf16", all}].push_back(shape);
    return;
  }
  FAIL("no joint latent");
}

/// Is there a tensor of its shape for every one of them?
bool covers(const std::vector<Lengths>& some, const std::vector<Lengths>& others) {
  return std::ranges::all_of(some, [&](const Lengths& one) {
    return std::ranges::any_of(others, [&](const Lengths& other) { return same_shape(one, other); });
  });
}

TEST_CASE("megatron: shapes are compared but for axes that are merged") {
  CHECK(same_shape({6, 4, 5}, {24, 5}));
  CHECK(same_shape({6, 20}, {24, 5}));
  CHECK_FALSE(same_shape({4, 6, 5}, {5, 24}));
  CHECK_FALSE(same_shape({8, 15}, {20, 6}));
}

TEST_CASE("megatron: a layer saves the tensors that were saved") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron.jsonl");
  REQUIRE(in.good());
  std::map<std::string, std::string> configs;
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    if (row.contains("fields")) configs[row["config"]] = row["fields"].dump();
    if (!row.contains("saved")) continue;
    CAPTURE(row["id"].get<std::string>());
    const TrainingCase made = read_training_case(row["job"].dump(), configs.at(row["config"]), Catalog::builtin());
    const MegatronStage stage = make_megatron_stage(*made.architecture, made.trainer, made.stage, made.micro_batches);
    const auto chunks = megatron_chunks(*made.architecture, made.trainer, made.stage);
    const auto saved = saved_of_chunk_layer(*made.architecture, chunks.front(), chunks.front().layers.size() - 1);
    SavedTensors want = saved_tensors(row);
    const SavedTensors got = saved_tensors(saved, stage.counts);
    copy_latent(want, made.architecture->runs.back().layer.mixer);
    REQUIRE(want.size() == got.size());
    for (const auto& [kind, shapes] : want) {
      CAPTURE(kind.first);
      CAPTURE(kind.second);
      REQUIRE(got.count(kind) == 1);
      CHECK(got.at(kind).size() == shapes.size());
      CHECK(covers(shapes, got.at(kind)));
      CHECK(covers(got.at(kind), shapes));
    }
    ++compared;
  }
  CHECK(compared >= 118);
}

}  // namespace
