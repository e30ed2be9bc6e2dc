// Weights and cache of a rank, by hand on a tiny model: 4 layers, h = 8, 4 heads of 2, 2 key/value heads, F = 16, V = 100.
#include <doctest/doctest.h>

#include <oomplan/units/errors.hpp>

#include "inference/cache.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;

Layer dense_layer() {
  Layer layer;
  layer.mixer.kind = MixerKind::attention;
  layer.mixer.heads = 4;
  layer.mixer.kv_heads = 2;
  layer.mixer.head_dim = 2;
  layer.mixer.rotary_dim = 2;
  layer.feed_forward.kind = FeedForwardKind::gated;
  layer.feed_forward.width = 16;
  return layer;
}

Architecture tiny(bool tied = false) {
  Architecture a;
  a.name = "tiny";
  a.model_type = "llama";
  a.family = "llama";
  a.hidden = 8;
  a.vocab = 100;
  a.max_positions = 64;
  a.tied = tied;
  a.runs = {{dense_layer(), 4}};
  return a;
}

ServerFacts plain_facts() {
  ServerFacts f;
  f.engine = EngineKind::vllm;
  f.budget = BudgetRule::only_growth_counts;
  f.total = 64 * kMiB;
  f.sms = 4;
  f.fraction = 0.5;
  f.page_tokens = 16;
  f.batched_tokens = 32;
  f.max_running = 8;
  f.context = kMiB;
  return f;
}

TEST_CASE("every matrix of a dense layer is cut by tp, norms are not, embedding rows are padded to 64") {
  const ServerModel m = server_model(tiny(), EngineKind::vllm);
  REQUIRE(m.kinds.size() == 1);
  const ServerFacts f = plain_facts();
  const Stage one = stage_of(m, f, 1, 1, 1, 0);
  CHECK(one.embedding == 128 * 8 * 2);  // 100 rows become 128
  CHECK(one.head == 128 * 8 * 2);
  CHECK(one.mixers == 4 * (8 * 8 + 2 * 4 * 8 + 8 * 8) * 2);  // q, k and v, o
  CHECK(one.feed_forwards == 4 * 3 * 8 * 16 * 2);
  CHECK(one.norms + one.outside == (4 * 2 * 8 + 8) * 2);
  const Stage two = stage_of(m, f, 2, 1, 1, 0);
  CHECK(two.embedding == 64 * 8 * 2);
  CHECK(two.mixers == one.mixers / 2);
  CHECK(two.feed_forwards == one.feed_forwards / 2);
  CHECK(two.norms == one.norms);
  const Stage four = stage_of(m, f, 4, 1, 1, 0);  // more ranks than key/value heads: one head on each
  CHECK(four.mixers == 4 * ((8 * 8 + 8 * 8) / 4 + 2 * 2 * 8) * 2);
  CHECK(four.buckets[0].token == 2 * 2 * 2);
}

TEST_CASE("a tied head is the embedding: once on one stage, twice on two") {
  const ServerModel m = server_model(tiny(true), EngineKind::vllm);
  const ServerFacts f = plain_facts();
  CHECK(stage_of(m, f, 1, 1, 1, 0).head == 0);
  CHECK(stage_of(m, f, 1, 2, 1, 0).embedding == 128 * 8 * 2);
  CHECK(stage_of(m, f, 1, 2, 1, 1).embedding == 128 * 8 * 2);
  CHECK(stage_of(m, f, 1, 3, 1, 1).embedding == 0);
}

TEST_CASE("experts are cut by width without expert parallelism and by number with it") {
  Architecture a = tiny();
  FeedForward& ff = a.runs[0].layer.feed_forward;
  ff = {};
  ff.kind = FeedForwardKind::moe;
  ff.experts = 6;
  ff.experts_per_token = 2;
  ff.expert_width = 4;
  const ServerModel m = server_model(a, EngineKind::vllm);
  const ServerFacts f = plain_facts();
  const Bytes expert = 3 * 8 * 4 * 2;
  CHECK(stage_of(m, f, 1, 1, 1, 0).experts == 4 * 6 * expert);
  CHECK(stage_of(m, f, 2, 1, 1, 0).experts == 4 * 6 * expert / 2);
  CHECK(stage_of(m, f, 4, 1, 4, 0).experts == 4 * 2 * expert);       // 6 experts on 4 ranks: two at most
  CHECK(stage_of(m, f, 1, 1, 1, 0).feed_forwards == 4 * 6 * 8 * 2);  // the router, on every rank
  CHECK(stage_of(m, f, 2, 1, 1, 0).feed_forwards == 4 * 6 * 8 * 2);
}

TEST_CASE("layers of an uneven pipeline go where each engine puts them") {
  const auto counts = [](std::int64_t layers, std::int64_t stages, ExtraLayers rule) {
    std::vector<std::int64_t> out;
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < stages; ++i) {
      const StageLayers s = stage_layers(layers, stages, i, rule);
      CHECK(s.first == next);
      next += s.count;
      out.push_back(s.count);
    }
    CHECK(next == layers);
    return out;
  };
  using Counts = std::vector<std::int64_t>;
  CHECK(counts(22, 4, ExtraLayers::before_last) == Counts{5, 6, 6, 5});
  CHECK(counts(23, 4, ExtraLayers::before_last) == Counts{6, 6, 6, 5});
  CHECK(counts(22, 4, ExtraLayers::last_all) == Counts{5, 5, 5, 7});
  CHECK(counts(22, 4, ExtraLayers::last_ones) == Counts{5, 5, 6, 6});
  CHECK(counts(32, 4, ExtraLayers::before_last) == Counts{8, 8, 8, 8});
}

TEST_CASE("quantised linears carry their scales") {
  CHECK(linear_bytes(1024, 8, DType::bf16) == 2048);
  CHECK(linear_bytes(1024, 8, DType::fp8) == 1024 + 8 * 4);
  CHECK(linear_bytes(1024, 8, DType::int4) == 512 + 8 * 20 / 8);  // groups of 128: 16-bit scale, 4-bit zero point
  CHECK(linear_bytes(1024, 8, DType::mxfp4) == 512 + 32);
  CHECK(linear_bytes(1024, 8, DType::nvfp4) == 512 + 64);
  const ServerModel fp8 = server_model(tiny(), EngineKind::vllm, DType::fp8);
  CHECK(fp8.row == 8 * 2);  // embedding and head stay in 16 bits
  CHECK(fp8.kinds[0].feed_forward == 2 * (8 * 16 + 16 * 4) + (8 * 16 + 8 * 4));
  CHECK_THROWS_AS(server_model(tiny(), EngineKind::vllm, DType::int64), InputError);
  CHECK_THROWS_AS(server_model(tiny(), EngineKind::fsdp2), InputError);
}

TEST_CASE("sliding-window layers make groups in vLLM and a second pool in SGLang") {
  Architecture a = tiny();
  Layer sliding = dense_layer();
  sliding.mixer.span = AttentionSpan::sliding;
  sliding.mixer.window = 32;
  a.runs = {{sliding, 5}, {dense_layer(), 1}, {sliding, 5}, {dense_layer(), 1}};
  const ServerModel m = server_model(a, EngineKind::vllm);
  ServerFacts f = plain_facts();
  const Stage s = stage_of(m, f, 1, 1, 1, 0);
  REQUIRE(s.bucket_count == 2);
  // token: 2 heads * (2 + 2) * 2 B = 16 B; page 256 B; 10 sliding and 2 full layers: groups of 2, 5 + 1 of them
  const CachePool pool = vllm_pool(s, f, {60 * 256 * 2, 64, 8, 32});
  CHECK(pool.pages == 60);
  CHECK(pool.tokens == 60 / 6 * 16);
  CHECK(pool.request == ((64 / 16) + 5 * ((32 - 1 + 32 + 15) / 16 + 1)) * 256 * 2);
  f.page_tokens = 1;
  f.swa_ratio = 0.5;
  // full 2 * 16, sliding 10 * 16 at half the tokens: 112 B a token
  const CachePool two = sglang_pool(s, f, {1120, 64, 8, 32});
  CHECK(two.tokens == 8);
  CHECK(two.kv == (8 + 1) * 32 + (4 + 1) * 160);
}

TEST_CASE("a latent cache is the same on every rank") {
  Architecture a = tiny();
  Mixer& x = a.runs[0].layer.mixer;
  x = {};
  x.kind = MixerKind::mla;
  x.heads = 4;
  x.kv_lora_rank = 16;
  x.rope_head_dim = 4;
  x.nope_head_dim = 2;
  x.value_head_dim = 2;
  const ServerModel m = server_model(a, EngineKind::vllm);
  const ServerFacts f = plain_facts();
  CHECK(stage_of(m, f, 1, 1, 1, 0).buckets[0].token == (16 + 4) * 2);
  CHECK(stage_of(m, f, 4, 1, 1, 0).buckets[0].token == (16 + 4) * 2);
  // vLLM has views of a kv_b in 16 bits, and a copy in 16 bits of another; SGLang always a copy
  const Bytes copy = 4 * 4 * 16 * (2 + 2) * 2;
  CHECK(stage_of(m, f, 1, 1, 1, 0).absorbed == 0);
  CHECK(stage_of(server_model(a, EngineKind::vllm, DType::fp8), f, 1, 1, 1, 0).absorbed == copy);
  CHECK(stage_of(server_model(a, EngineKind::sglang), f, 1, 1, 1, 0).absorbed == copy);
}

TEST_CASE("a rank has at least one of Mamba-2's groups") {
  Architecture a = tiny();
  Mixer& x = a.runs[0].layer.mixer;
  x = {};
  x.kind = MixerKind::mamba2;
  x.linear_value_heads = 4;
  x.linear_value_dim = 4;
  x.inner = 16;
  x.state_size = 8;
  x.groups = 1;
  x.conv_kernel = 4;
  const ServerModel m = server_model(a, EngineKind::vllm);
  const ServerFacts f = plain_facts();
  const Stage one = stage_of(m, f, 1, 1, 1, 0), two = stage_of(m, f, 2, 1, 1, 0);
  CHECK(one.buckets[0].conv == 3 * (16 + 2 * 8) * 2);
  CHECK(two.buckets[0].conv == 3 * (16 / 2 + 2 * 8) * 2);
  const Bytes groups = 4 * 2 * 8 * (8 + 4) * 2;  // four layers: rows of the input projection (h = 8) and the convolution (4)
  CHECK(two.mixers - groups == (one.mixers - groups) / 2);
}

TEST_CASE("scales of rows are whole where a matrix is cut along its columns") {
  const ServerModel m = server_model(tiny(), EngineKind::vllm, DType::int8);
  const ServerFacts f = plain_facts();
  const Stage one = stage_of(m, f, 1, 1, 1, 0), two = stage_of(m, f, 2, 1, 1, 0);
  const Bytes whole = 4 * 8 * 4;  // four layers: eight rows of down, 4 bytes each
  CHECK(two.feed_forwards - whole == (one.feed_forwards - whole) / 2);
}

}  // namespace
