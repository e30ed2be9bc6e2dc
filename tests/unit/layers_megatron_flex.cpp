// Megatron-core's flex dispatcher with DeepEP against what it saved and kept when it ran
// (tests/data/executed_megatron_flex.jsonl, made by benchmarks/oracle/execute_megatron_flex.py), the tokens that come to a rank
// against all ways to choose, and DeepEP's buffers against its formulas by hand.
#include <doctest/doctest.h>

#include <bit>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "eager_levels.hpp"
#include "estimate/deepep.hpp"
#include "estimate/figures.hpp"
#include "layers/megatron_flex.hpp"
#include "layers/ops.hpp"
#include "megatron_dispatcher_case.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

using Sizes = std::map<Bytes, std::int64_t>;
Sizes sizes_of(const Json& pairs) {
  Sizes out;
  for (const auto& pair : pairs) out[pair[0].get<Bytes>()] += pair[1].get<std::int64_t>();
  return out;
}

bool of_dispatcher(const std::string& name) {
  for (const char* part : {"permutation.", "multihot.", "token_probabilities."})
    if (name.find(part) != std::string::npos) return true;
  return false;
}

TEST_CASE("megatron: the flex dispatcher saves and keeps what it saved and kept") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_flex.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    const TrainingCase c = dispatcher_case(row, "flex");
    const FeedForward& f = c.architecture->runs.front().layer.feed_forward;
    const Megatron& m = c.trainer.megatron;
    const Layout& l = c.trainer.layout;
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    TokenCounts counts = stage.counts;
    const auto received = row["received"].get<std::int64_t>(), remote = row["remote"].get<std::int64_t>();
    // what was drawn is near what is expected
    CHECK(static_cast<double>(counts.d) == doctest::Approx(static_cast<double>(received)).epsilon(0.05));
    if (remote > 0) CHECK(static_cast<double>(counts.r) == doctest::Approx(static_cast<double>(remote)).epsilon(0.05));
    counts.d = received;
    counts.r = remote;
    Sizes got;
    for (const auto& site : saved_of_chunk_layer(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0).front(), 0))
      if (of_dispatcher(site.name)) ++got[site.bytes.value(counts)];
    CHECK(sizes_of(row["saved"]) == got);
    const std::int64_t of_experts = counts.b * counts.s * f.experts_per_token * l.expert_tensor;
    const auto kept = [&](bool graph) { return kept_by_flex(f, m, l, counts, of_experts, graph); };
    Bytes handle = 0;
    for (const auto& [bytes, count] : sizes_of(row["handle"])) handle += bytes * count;
    CHECK(kept(true).maps - kept(false).maps == handle);
    CHECK(kept(true).always + kept(true).maps == row["kept"].get<Bytes>());
    const KeptByFlex expected = kept_by_flex(f, m, l, stage.counts, of_experts, true);
    CHECK(stage.routing == expected.always);
    CHECK(stage.permutations.at(0).maps.at(0) == expected.maps);
  }
  CHECK(rows == 10);
}

/// Someone else's, that wants its gradient and lets it go.
Tensor outside(Eager& g, Shape shape, DType dtype) {
  Tensor out = g.scalar(dtype);
  out.shape = std::move(shape);
  out.grad_fn = std::make_shared<Node>();
  out.grad_fn->apply = [](const Gradients&) { return Gradients{}; };
  return out;
}
/// Rows in, rows out; saves nothing.
Tensor stand_in(Eager& g, const RoutedRows& in) {
  Tensor out = g.make("experts", in.tokens.shape, DType::bf16);
  g.record(out, "Experts", {&in.tokens, &in.weights},
           [&g, rows = in.tokens.shape, weights = in.weights.shape, dtype = in.weights.dtype](Gradients) {
             Gradients grads;
             grads.push_back(ops::gradient(g, "experts_backward", rows, DType::bf16));
             grads.push_back(ops::gradient(g, "experts_backward.probabilities", weights, dtype));
             return grads;
           });
  return out;
}

TEST_CASE("megatron: the flex dispatcher reaches the levels that it reached") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_flex.jsonl");
  REQUIRE(in.good());
  for (std::string line; std::getline(in, line);) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    const TrainingCase c = dispatcher_case(row, "flex");
    const FeedForward& f = c.architecture->runs.front().layer.feed_forward;
    const ChunkOptions o = megatron_chunks(*c.architecture, c.trainer, 0).front();
    TokenCounts counts;
    counts.s = row["tokens"].get<std::int64_t>();
    counts.d = row["received"].get<std::int64_t>();
    counts.r = row["remote"].get<std::int64_t>();
    const RoutedSizes s = routed_sizes(*c.architecture, f, o);
    Eager g;
    const Tensor x = outside(g, {axis::S, axis::B, Dim(s.hidden)}, DType::bf16);
    Tensor probabilities = outside(g, {s.tokens, Dim(s.experts)}, o.settings.router);
    Tensor out =
        exchange_megatron(g, s, o, x, std::move(probabilities), [&](const RoutedRows& rows) { return stand_in(g, rows); });
    g.in_backward = true;
    g.backward(out, g.make("gradient", out.shape, DType::bf16));
    const Levels levels = levels_of(g, counts);
    // the dispatcher's own part is a resident of the engine; the map was given to what was run
    const Bytes rows_of_experts = counts.s * f.experts_per_token * c.trainer.layout.expert_tensor;
    const Bytes own = kept_by_flex(f, c.trainer.megatron, c.trainer.layout, counts, rows_of_experts, true).always;
    const Bytes map = counts.s * f.experts;
    CHECK(levels.forward + own - map == row["highest"][0].get<Bytes>());
    const Bytes given = bytes_of(counts.s * s.hidden, DType::bf16);  // who calls backward() has a name for the gradient
    CHECK(levels.backward + own + given == row["highest"][1].get<Bytes>());
  }
}

/// Of all sets of `top` experts that fall into `groups` chosen ones, every choice of those as likely: how many have one of the
/// first `local` ones.
double counted(const FeedForward& f, unsigned local) {
  const auto experts = static_cast<unsigned>(f.experts), top = static_cast<unsigned>(f.experts_per_token);
  const unsigned groups = f.router_groups > 1 ? static_cast<unsigned>(f.router_groups) : 1U;
  const int chosen = f.router_groups > 1 ? static_cast<int>(f.router_top_groups) : 1;
  const unsigned size = experts / groups, own = (1U << local) - 1U;
  double share = 0, choices = 0;
  for (unsigned of_groups = 0; of_groups < 1U << groups; ++of_groups) {
    if (std::popcount(of_groups) != chosen) continue;
    unsigned reached = 0;
    for (unsigned group = 0; group < groups; ++group)
      if ((of_groups >> group & 1U) != 0) reached |= ((1U << size) - 1U) << group * size;
    double hit = 0, all = 0;
    for (unsigned set = 0; set < 1U << experts; ++set) {
      if (static_cast<unsigned>(std::popcount(set)) != top || (set & ~reached) != 0) continue;
      ++all;
      if ((set & own) != 0) ++hit;
    }
    share += hit / all;
    ++choices;
  }
  return share / choices;
}

TEST_CASE("the part of tokens that come to a rank is that of all ways to choose experts") {
  FeedForward f;
  f.kind = FeedForwardKind::moe;
  f.experts = 12;
  for (const std::int64_t top : {1, 2, 4})
    for (const std::int64_t local : {1, 2, 3, 4, 6, 12}) {
      f.experts_per_token = top;
      f.router_groups = f.router_top_groups = 0;
      CHECK(share_with_expert(f, local) == doctest::Approx(counted(f, static_cast<unsigned>(local))));
      f.router_groups = 4;
      f.router_top_groups = 2;
      CHECK(share_with_expert(f, local) == doctest::Approx(counted(f, static_cast<unsigned>(local))));
    }
  CHECK(share_with_expert(f, 24) == doctest::Approx(1));
}

TEST_CASE("a token comes once to a rank, whatever part of an expert that has; a stated imbalance is bounded by all tokens") {
  FeedForward f;
  f.kind = FeedForwardKind::moe;
  f.experts = 256;
  f.experts_per_token = 8;
  Megatron m;
  Layout l;
  l.expert = 8;
  CHECK(flex_tokens(f, m, l, 1024).received == 1);  // of other dispatchers nothing is asked
  m.dispatcher = TokenDispatcher::flex;
  CHECK(flex_tokens(f, m, l, 1024).received == 5422);  // 8 * 1024 * (1 - C(224, 8) / C(256, 8))
  CHECK(flex_tokens(f, m, l, 1024).remote == 1);
  l.expert_tensor = 2;
  CHECK(flex_tokens(f, m, l, 1024).received == 10843);
  CHECK(flex_tokens(f, m, l, 1024).remote == 2041);  // four of eight ranks' experts are on a machine
  m.expert_imbalance = 100;
  CHECK(flex_tokens(f, m, l, 1024).received == 16 * 1024);
}

TEST_CASE("DeepEP's buffers are those of its own formulas") {
  const Catalog& catalog = Catalog::builtin();
  // eight ranks: 10 channels * 8 * (5 counters + 256 slots of 7168 * 2 + 8 + 128 * 16)
  const DeepEpBuffers eight = deepep_buffers(7168, 8, 20, catalog);
  CHECK(eight.nvl == round_up(80 * (5 * 4 + 256 * (14336 + 8 + 2048)), 128));
  CHECK(eight.rdma == 0);
  const DeepEpBuffers sixteen = deepep_buffers(7168, 16, 24, catalog);
  CHECK(sixteen.nvl == round_up(12 * 8 * (7 * 4 + 288 * (14336 + 8 + 2048)), 128));
  CHECK(sixteen.rdma == round_up(12 * 2 * 2 * (18 * 4 + 140 * (14336 + 8 + 2048 + 16)), 128));
  for (const std::int64_t ranks : {2, 4, 8, 16, 32, 64, 128, 144, 160}) CHECK(deepep_buffers(2048, ranks, 20, catalog).nvl > 0);
}

}  // namespace
