// Megatron-core's optimizer on the host, against what its own HybridDeviceOptimizer and DistributedOptimizer held
// (tests/data/executed_megatron_offload.jsonl, made by benchmarks/oracle/execute_megatron_offload.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "estimate/figures.hpp"
#include "training/megatron.hpp"
#include "training/megatron_host.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

/// Of one rank: dense parameters and experts.
HostShare share_of(const TrainingCase& c, std::size_t rank) {
  const Megatron& m = c.trainer.megatron;
  const MegatronParameters n = megatron_parameters(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0));
  HostShare out;
  for (const auto* tensors : {&n.dense_tensors, &n.expert_tensors}) {
    const HostShare s =
        host_shares(*tensors, {m.overlap_grad_reduce ? 40'000'000 : 0}, c.trainer.layout.data, m.host_fraction).at(rank);
    out.kept += s.kept;
    out.offloaded += s.offloaded;
    out.whole_kept += s.whole_kept;
    out.whole_offloaded += s.whole_offloaded;
    out.largest_kept = std::max(out.largest_kept, s.largest_kept);
  }
  return out;
}

TEST_CASE("megatron: an optimizer on the host takes the parameters that it took") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_offload.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["id"].get<std::string>());
    const TrainingCase c = read_training_case(row["job"].dump(), row["fields"].dump(), Catalog::builtin());
    const HostShare s = share_of(c, row["rank"].get<std::size_t>());
    const bool aware = c.trainer.megatron.precision_aware, wide = c.trainer.reduce == DType::fp32;
    const auto is = [&](const char* name, std::int64_t bytes) {
      CAPTURE(name);
      CHECK(bytes == row[name].get<std::int64_t>());
    };
    is("masters", 4 * (aware ? s.kept : s.kept + s.offloaded));
    is("copies", 4 * s.whole_kept);
    is("after_step", 8 * s.kept + (wide ? 0 : 4 * (aware ? s.kept : s.kept + s.offloaded)));
    is("after_zero_grad", 8 * s.kept + (wide || !aware ? 0 : 4 * s.kept));
    is("transient", wide || !aware ? 0 : 4 * s.largest_kept);  // copies to and from the host are not seen
    is("host_built", 4 * s.offloaded);
    is("host_copies", 4 * s.whole_offloaded);
    is("host", 16 * s.offloaded);
  }
  CHECK(rows == 31);
}

TEST_CASE("megatron: what a rank puts on the host, by hand") {
  // two ranks of one bucket: 1000 and 24 numbers, starts at multiples of 64, in reverse order, to 1152
  const std::vector<std::vector<MegatronTensor>> model{{{64, true, false}, {24, false, false}, {1000, true, false}}};
  const auto ranks = host_shares(model, {0}, 2, 0.5);
  REQUIRE(ranks.size() == 2);  // 576 numbers each: 576 of the large one; 424 of it, 24, and 64
  CHECK(ranks[0].kept == 0);
  CHECK(ranks[0].offloaded == 576);
  CHECK(ranks[1].kept == 88);
  CHECK(ranks[1].offloaded == 424);
  CHECK(ranks[1].largest == 424);
  // whole ones in the model's order, those without weight decay last: 64 and 1000 of 1088
  CHECK(ranks[0].whole_offloaded == 1064);
  CHECK(ranks[0].whole_kept == 24);
  // a gradient of 4 * 424 bytes takes 2048; 16-bit copies took blocks of 128, 2048 and 1024
  CHECK(ranks[1].pinned == 2048 + 128 + 1024);
  const HostShare fullest = fullest_share(ranks);
  CHECK(fullest.kept == 88);
  CHECK(fullest.offloaded == 500);
  CHECK(fullest.largest == 576);
}

/// A small model whose optimizer lies on the host to `fraction`.
TrainingCase on_host(const std::string& settings) {
  const std::string config =
      R"({"model_type":"llama","hidden_size":1024,"intermediate_size":2816,"num_hidden_layers":2,"num_attention_heads":16,)"
      R"("num_key_value_heads":4,"vocab_size":32000,"max_position_embeddings":4096,"tie_word_embeddings":false})";
  return read_training_case(
      R"({"framework":"torch","model":"llama","trainer":{"engine":"megatron","layout":"d4","sequences_per_micro_batch":1,)"
      R"("sequence_tokens":128,"micro_batches":2)" +
          settings + "}}",
      config, Catalog::builtin());
}

/// Highest levels of the host and of the GPU while the engine loads, and what stays on both behind two steps.
struct Levels {
  Bytes loading = 0, host_loading = 0, stays = 0, host_stays = 0;
};
Levels levels_of(const TrainingCase& c) {
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 2);
  PeakRecorder r;
  MegatronEngine<PeakRecorder> engine(r, stage, "");
  engine.load();
  Levels out{r.span().peak, r.span().host_peak, 0, 0};
  for (int step = 0; step < 2; ++step) {
    engine.passes(2, [](bool) {});
    engine.optimizer_step();
  }
  out.stays = r.span().net;
  out.host_stays = r.span().host_net;
  return out;
}

TEST_CASE("megatron: masters and states go from the GPU to the host") {
  const Levels plain = levels_of(on_host(R"(,"precision_aware_optimizer":false)"));
  const Levels host = levels_of(on_host(R"(,"precision_aware_optimizer":true,"optimizer_cpu_offload":true)"));
  const Levels masters = levels_of(on_host(R"(,"optimizer_cpu_offload":true)"));
  const Levels none =
      levels_of(on_host(R"(,"precision_aware_optimizer":true,"optimizer_cpu_offload":true,"optimizer_offload_fraction":0)"));
  const TrainingCase c = on_host("");
  const MegatronParameters all = megatron_parameters(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0));
  const std::int64_t share = all.dense / 4;
  CHECK(plain.stays - host.stays == 12 * share);
  CHECK(plain.stays - masters.stays == 8 * share);  // without the precision-aware optimizer masters stay
  CHECK(plain.stays == none.stays);
  CHECK(plain.host_stays == 0);
  CHECK(none.host_stays == 0);
  CHECK(host.host_stays >= 16 * share);  // pinned blocks are powers of two
  CHECK(host.host_stays < 22 * share);
  CHECK(none.loading - plain.loading == 4 * all.dense);  // copies of whole parameters
  CHECK(host.host_loading == 4 * all.dense + 4 * share);
}

}  // namespace
