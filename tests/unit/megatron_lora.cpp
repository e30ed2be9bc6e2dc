// Adapters under Megatron: peaks that Megatron-Bridge published of Qwen3 8B on H100 (NVIDIA-NeMo/Megatron-Bridge 067f987d,
// skills/nemo-mbridge-perf-memory-tuning/card.yaml), what is refused, and what a layer keeps.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <oomplan/units/errors.hpp>

#include "estimate/figures.hpp"
#include "estimate_jobs.hpp"
#include "job/knobs.hpp"
#include "layers/megatron_lora.hpp"
#include "layers/ops.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

const std::string kQwen =
    "oomplan: 1\nframework: torch\ngpus: 2 x H100-80GB\nmodel: Qwen/Qwen3-8B\ntrainer: {engine: megatron, layout: d1t2, "
    "sequence_parallel: true, sequences_per_micro_batch: 1, sequence_tokens: 8k, micro_batches: 1, te_release: '2.14', "
    "cross_entropy: native, activation_fusion: false, distributed_optimizer: false, recompute: none, lora: {rank: 32, format: "
    "storage}}\n";

double highest(const Job& job) {
  Bytes out = 0;
  for (const auto& gpu : estimate(job).gpus)
    for (const auto& moment : gpu.phases) out = std::max(out, moment.usage.allocated);
  return static_cast<double>(out) / 1e9;
}

TEST_CASE("megatron: published peaks with adapters") {
  Job job = job_of(kQwen);
  const double kept = highest(job);
  set(job, "trainer.sequence_parallel_input_regather", "true");
  const double gathered = highest(job);
  CHECK(std::abs(kept / 47.545 - 1) < 0.003);
  CHECK(std::abs(gathered / 42.814 - 1) < 0.003);
  // all inputs of 36 layers' two products, but what the first one had kept otherwise and the buffer that they are gathered in
  CHECK(std::abs(kept - gathered - 4.731) < 0.002);
}

TEST_CASE("megatron: adapters are what is trained") {
  const Job job = job_of(kQwen);
  const Role& role = job.roles.front();
  const auto chunks = megatron_chunks(*role.architecture, role.trainer, 0);
  const MegatronParameters n = megatron_parameters(*role.architecture, chunks);
  // rank 32 on two ranks: [16, h] and [3072, 32], [32, 2048] and [2048, 32], [16, h] and [12288, 32], [32, 6144] and [2048, 32]
  const std::int64_t layer = 16 * 4096 + 3072 * 32 + 32 * 2048 + 2048 * 32 + 16 * 4096 + 12288 * 32 + 32 * 6144 + 2048 * 32;
  CHECK(n.dense == 36 * layer);
  CHECK(n.experts == 0);
  std::int64_t frozen = 0;
  for (const auto& tensor : n.frozen) frozen += tensor.elements;
  // embedding and output layer, matrices and norms of the layers, the last norm
  const std::int64_t base =
      (std::int64_t{2} * 152064 * 4096 + std::int64_t{36} * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)) / 2 +
      36 * (2 * 4096 + 2 * 128) + 4096;
  CHECK(frozen == base);
}

std::map<Bytes, int> kept_by_a_layer(const Job& job) {
  const Role& role = job.roles.front();
  const auto chunks = megatron_chunks(*role.architecture, role.trainer, 0);
  const MegatronStage stage = make_megatron_stage(*role.architecture, role.trainer, 0, 1);
  std::map<Bytes, int> out;
  for (const auto& site : saved_of_chunk_layer(*role.architecture, chunks.front(), 1)) ++out[site.bytes.value(stage.counts)];
  return out;
}

TEST_CASE("megatron: a layer keeps what its adapters need") {
  constexpr Bytes kPart = Bytes{4096} * 4096 * 2, kWhole = 2 * kPart;  // of the hidden states
  Job job = job_of(kQwen);
  set(job, "trainer.lora.targets", "[linear_qkv]");
  const auto attention = kept_by_a_layer(job);
  CHECK(attention.at(kWhole) == 1);  // the gathered input of one product
  set(job, "trainer.sequence_parallel_input_regather", "true");
  const auto regathered = kept_by_a_layer(job);
  CHECK(regathered.count(kWhole) == 0);
  CHECK(attention.at(kPart) == regathered.at(kPart));  // the part stays with the norm's module in either case
  set(job, "trainer.lora.targets", "[linear_proj]");
  CHECK(kept_by_a_layer(job).at(kPart) == attention.at(kPart) - 1);  // a frozen module without an adapter clears it
  const Bytes product = Bytes{8192} * 12288 * 2;
  CHECK(attention.at(product) == 1);
  CHECK(attention.at(product / 2) == 2);  // silu's result and the other half with its offset; the activation itself is not kept
  set(job, "trainer.activation_fusion", "true");
  CHECK(kept_by_a_layer(job).count(product / 2) == 0);
}

/// A tensor that somebody else made and whose gradient somebody else takes.
Tensor from_outside(Eager& g, const Shape& shape) {
  auto node = std::make_shared<Node>();
  node->name = "Source";
  node->sequence = kAccumulates;
  node->apply = [](Gradients) { return Gradients{}; };
  Tensor out = g.scalar(DType::bf16);
  out.shape = shape;
  out.grad_fn = std::move(node);
  return out;
}

/// Highest level between two events, above what lived before the first of all.
Bytes highest_of(const Eager& g, const TokenCounts& counts, std::size_t first, std::size_t last) {
  Bytes level = 0, out = 0;
  for (std::size_t i = 0; i < last; ++i) {
    const EagerEvent& e = g.events[i];
    if (e.kind == EagerEvent::Kind::gradient) continue;
    const Storage& s = g.storages[static_cast<std::size_t>(e.storage)];
    const Bytes bytes = (elements(s.shape) * Dim(row(s.dtype).bits / 8)).value(counts);
    level += e.kind == EagerEvent::Kind::alloc ? bytes : -bytes;
    if (i >= first) out = std::max(out, level);
  }
  return out;
}

TEST_CASE("megatron: adapters save and hold what they saved and held") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_lora.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const Json want = Json::parse(line);
    const auto number = [&](const char* key) { return want[key].get<std::int64_t>(); };
    const std::string layer = want["layer"];
    const bool of_experts = layer.starts_with("experts."), sequence = want["sequence_parallel"];
    const bool beside_row = layer.ends_with("linear_proj") || layer.ends_with("linear_fc2");
    TeOptions o;
    o.tensor = number("ranks");
    o.sequence_parallel = sequence;
    o.fused_gradients = false;
    MegatronAdapters a{.rank = number("rank"), .qkv = true, .proj = true, .fc1 = true, .fc2 = true};
    a.regathers = want["regathers"].get<bool>();
    const Dim whole = o.whole(), part = axis::S;
    const std::int64_t columns = number("columns"), hidden = number("hidden");
    Eager g;
    const Dim of_input(beside_row ? columns / o.tensor : hidden), of_output(beside_row ? hidden : columns / o.tensor);
    const auto shape = [&](Dim tokens, Dim width) { return of_experts ? Shape{tokens, width} : Shape{tokens, axis::B, width}; };
    const Tensor x = from_outside(g, shape(a.regathers ? part : whole, of_input));
    const Tensor own = from_outside(g, shape(beside_row ? part : whole, of_output));
    TokenCounts counts;
    counts.s = sequence ? number("tokens") / o.tensor : number("tokens");
    counts.b = 1;
    Tensor out;
    if (of_experts) {
      out = adapted_experts(g, own, x, o, a, layer);
    } else {
      const Tensor beside =
          beside_row ? row_adapter(g, x, hidden, o, a, "adapter") : column_adapter(g, x, columns / o.tensor, o, a, "adapter");
      out = ops::add(g, own, beside, "with_adapter");
    }
    const std::size_t forward = g.events.size();
    std::map<Bytes, std::int64_t> saved, wanted;
    for (const auto& tensor : want["saved"]) wanted[tensor[0].get<Bytes>()] += tensor[1].get<std::int64_t>();
    for (const Storage& s : g.storages)
      if (s.saved) ++saved[(elements(s.shape) * Dim(row(s.dtype).bits / 8)).value(counts)];
    CHECK(saved == wanted);
    g.in_backward = true;
    Tensor gradient = g.make("gradient", out.shape, DType::bf16);
    const Tensor held = gradient;
    g.backward(out, std::move(gradient));
    const auto level = [&](std::size_t first, std::size_t last) { return highest_of(g, counts, first, last); };
    CHECK(level(0, forward) == want["highest"][0].get<Bytes>());
    CHECK(level(forward, g.events.size()) == want["highest"][1].get<Bytes>());
  }
  CHECK(rows == 9);
}

TEST_CASE("megatron: adapters that are not described") {
  const auto problem = [](const std::string& key, const std::string& value) {
    try {
      (void)job_of(kQwen, {"trainer." + key + "=" + value});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(problem("lora.format", "fp32").find("in the format of the model") != std::string::npos);
  CHECK(problem("lora.dropout", "0.1").find("not supported yet") != std::string::npos);
  CHECK(problem("lora.targets", "[q_proj]").find("Megatron's linear layers") != std::string::npos);
  CHECK(problem("lora.rank", "33").find("evenly") != std::string::npos);
  CHECK(problem("recompute", "selective").find("not supported yet") != std::string::npos);
  CHECK(problem("recompute", "full").empty());
  CHECK(problem("mtp_layers", "1").find("not supported yet") != std::string::npos);
  CHECK(problem("lora.alpha", "16").empty());
}

}  // namespace
