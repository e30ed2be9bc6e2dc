// Weights as the caching allocator holds them, as kernels pad them, and as host memory or other ranks share them.
#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "inference/cache.hpp"
#include "inference/layer_tensors.hpp"
#include "inference/server.hpp"
#include "inference/weight_blocks.hpp"
#include "program/allocator.hpp"

namespace {

using namespace oomplan;

constexpr Bytes quarters(std::int64_t n) { return n * kMiB / 4; }

TEST_CASE("a block keeps what is left of its segment up to 1 MiB and gives more to the next request that fits") {
  WeightBlocks blocks(quarters(6));
  blocks.take(35 * kMiB);  // one of 36: nothing is cut off
  CHECK(blocks.totals().counted == 36 * kMiB);
  blocks.take(quarters(49));  // 12.25 of 14: a rest of 1.75
  CHECK(blocks.totals().counted == 36 * kMiB + quarters(49));
  blocks.take(quarters(6));  // 1.5 of that rest, whole
  CHECK(blocks.totals().counted == 36 * kMiB + quarters(49 + 7));
  CHECK(blocks.totals().reserved == 50 * kMiB);
  blocks.take(8 * kMiB);  // 20 MiB for all of less than 10
  blocks.take(8 * kMiB);
  CHECK(blocks.totals().reserved == 70 * kMiB);
  blocks.take(4 * kMiB);
  CHECK(blocks.totals().reserved == 70 * kMiB);
  CHECK(blocks.totals().asked == 35 * kMiB + quarters(49 + 6) + 20 * kMiB);
}

TEST_CASE("above max_split_size nothing is cut off") {
  WeightBlocks cut(kMiB), whole(kMiB, 20 * kMiB);
  for (WeightBlocks* blocks : {&cut, &whole}) blocks->take(quarters(259));  // 64.75 of 66
  CHECK(cut.totals().counted == quarters(259));
  CHECK(whole.totals().counted == 66 * kMiB);
}

/// Sizes of weights, from a generator that is written down here.
std::vector<Bytes> some_layer(std::uint64_t seed) {
  std::vector<Bytes> out;
  for (int i = 0; i < 9; ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    out.push_back(kMiB + 512 * (1 + static_cast<Bytes>((seed >> 33) % (seed % 3 == 0 ? 100000U : 20000U))));
  }
  return out;
}

TEST_CASE("layers of weights are what the replayed allocator makes of them") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const Bytes max_split : {Bytes{0}, 20 * kMiB}) {
      CAPTURE(seed);
      CAPTURE(max_split);
      const std::vector<Bytes> first = some_layer(seed), second = some_layer(seed + 1000);
      Bytes least = first[0];
      for (const auto* layer : {&first, &second})
        for (const Bytes tensor : *layer) least = std::min(least, tensor);
      WeightBlocks blocks(least, max_split);
      AllocatorSettings settings;
      if (max_split > 0) settings.max_split_size = max_split;
      CachingAllocator replayed(settings);
      blocks.layers(first, 7);
      blocks.layers(second, 13);
      for (int i = 0; i < 20; ++i)
        for (const Bytes tensor : i < 7 ? first : second) REQUIRE(replayed.allocate(tensor) != nullptr);
      CHECK(blocks.totals().asked == replayed.counters().requested);
      CHECK(blocks.totals().counted == replayed.counters().allocated);
      CHECK(blocks.totals().reserved == replayed.counters().reserved);
    }
  }
}

double gib_of(Bytes bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

ServerFigures served(const char* model, EngineKind engine, const Server& s, const char* gpu) {
  const Catalog& catalog = Catalog::builtin();
  return serve(*catalog.model(model).architecture, engine, s, catalog.gpu(gpu), catalog.facts());
}

Server of_version(const char* version, std::int64_t tensor = 1) {
  Server s;
  s.version = version;
  s.layout.tensor = tensor;
  return s;
}

TEST_CASE("vLLM logs whole blocks: 75 and 175 MiB of Phi-4 count as 76 and 176 in each of 40 layers") {
  CHECK(gib_of(served("microsoft/phi-4", EngineKind::vllm, of_version("0.19.0"), "H100-80GB").weights) ==
        doctest::Approx(27.39).epsilon(0.0003));
}

TEST_CASE("mxfp4 experts are padded by the kernel, on every rank") {
  const char* const big = "openai/gpt-oss-120b";
  // logged on H100: Marlin up to 0.10, Triton from 0.11 on, which keeps the loaded scales beside its swizzled ones
  CHECK(gib_of(served(big, EngineKind::vllm, of_version("0.10.1"), "H100-80GB").weights) ==
        doctest::Approx(65.97).epsilon(0.003));
  CHECK(gib_of(served(big, EngineKind::vllm, of_version("0.14.1"), "H100-80GB").weights) ==
        doctest::Approx(64.38).epsilon(0.003));
  ServerModel m;
  m.weights = DType::mxfp4;
  m.hidden = 2880;
  ServerLayer l;
  l.experts = 128;
  l.expert_width = 2880;
  const ExpertTensors marlin = expert_tensors(m, l, ServerFacts{}, {8, 1});  // 360 columns of a rank become 384, 2880 rows 3072
  CHECK(marlin.up == 128 * 2 * 384 * 3072 / 2);
  CHECK(marlin.down == 128 * 3072 * 384 / 2);
  CHECK(marlin.up_scales + marlin.down_scales == (marlin.up + marlin.down) / 16);
  CHECK(marlin.left == 0);
}

TEST_CASE("SGLang 0.4.6 stores DeepSeek V3's shared expert once for every rank") {
  const auto weights = [](const char* version) {
    return served("deepseek-ai/DeepSeek-R1", EngineKind::sglang, of_version(version, 8), "MI300X-192GB").weights;
  };
  CHECK(gib_of(weights("0.4.6")) == doctest::Approx(81.66).epsilon(0.006));
  // 58 layers, seven eighths of an expert of 3 * 7168 * 2048 and its scales more than with one
  const double more = 58 * 3.0 * 7168 * 2048 * (1 + 4.0 / 128 / 128) * 7 / 8;
  CHECK(static_cast<double>(weights("0.4.6") - weights("0.4.7")) == doctest::Approx(more).epsilon(0.05));
}

TEST_CASE("SGLang keeps Gemma's whole embedding on every rank") {
  const auto model = Catalog::builtin().model("google/gemma-3-4b-it");
  const Architecture& a = *model.architecture;
  ServerFacts f;
  CHECK(stage_of(server_model(a, EngineKind::sglang), f, 2, 1, 1, 0).embedding == Bytes{262208} * 2560 * 2);
  CHECK(stage_of(server_model(a, EngineKind::vllm), f, 2, 1, 1, 0).embedding == Bytes{262208} * 2560);
}

TEST_CASE("Gemma 4's table of positions is as wide as a head where a part of it is turned, and values have rows of their own") {
  const auto model = Catalog::builtin().model("google/gemma-4-31B");
  const Architecture& a = *model.architecture;
  const ServerModel m = server_model(a, EngineKind::sglang);
  CHECK(m.rope_elements == Bytes{262144} * (256 + 512));
  for (const ServerLayer& layer : m.kinds)
    if (layer.kv_heads == 4)
      CHECK(layer.kv_head == Bytes{2} * 512 * 5376 * 2);  // full attention: one projection in the checkpoint
}

TEST_CASE("weights of the first layers lie in host memory until the budget is reached") {
  Server s = of_version("0.23.0");
  s.kv_cache_bytes = kGiB;
  const ServerFigures all = served("Qwen/Qwen3-8B", EngineKind::vllm, s, "H100-80GB");
  s.offloaded_weights = 4 * kGiB;
  const ServerFigures some = served("Qwen/Qwen3-8B", EngineKind::vllm, s, "H100-80GB");
  const Bytes gone = all.weights - some.weights;
  CHECK(gone >= 4 * kGiB);
  CHECK(gone < 4 * kGiB + 2 * 4096 * 12288 * 2);  // one parameter more at most: the two halves of a feed-forward block
  s.offloaded_weights = 100 * kGiB;
  const ServerFigures none = served("Qwen/Qwen3-8B", EngineKind::vllm, s, "H100-80GB");
  CHECK(none.weights > 2 * Bytes{151936} * 4096 * 2);  // embedding and head stay
  CHECK(none.weights < 2 * Bytes{151936} * 4096 * 2 + 100 * kMiB);
}

TEST_CASE("what is left on the host is pinned there") {
  const Catalog& catalog = Catalog::builtin();
  const auto model = catalog.model("Qwen/Qwen3-8B");
  Server s = of_version("0.23.0");
  s.offloaded_weights = kGiB;
  s.memory_fraction = 0.5;
  s.max_model_len = 8192;
  const ServerModel m = server_model(*model.architecture, EngineKind::vllm, s);
  const ServerPlan p = plan(m, resolve(catalog.facts(), EngineKind::vllm, s, catalog.gpu("H100-80GB"), m), point_of(s));
  PeakRecorder recorder;
  const ServerSites sites = make_sites(recorder, p);
  record(recorder, p, sites, ServerPhase::load);
  const Span held = recorder.span();
  CHECK(held.host_net >= kGiB);
  CHECK(held.host_net < kGiB + 2 * 4096 * 12288 * 2);
  s.offloaded_weights = 0;
  const ServerPlan all = plan(m, resolve(catalog.facts(), EngineKind::vllm, s, catalog.gpu("H100-80GB"), m), point_of(s));
  CHECK(all.weights - p.weights == held.host_net);
}

TEST_CASE("ranks that share the tokens of the cache hold as many times more") {
  Server s = of_version("0.12.0", 8);
  s.kv_cache_bytes = 50251117363;  // 46.8 GiB
  s.max_model_len = 262144;
  const ServerFigures alone = served("moonshotai/Kimi-K2-Instruct", EngineKind::vllm, s, "H200-141GB");
  s.decode_context = 8;
  const ServerFigures shared = served("moonshotai/Kimi-K2-Instruct", EngineKind::vllm, s, "H200-141GB");
  CHECK(alone.kv_tokens == 715088);  // logged: 715,072 and 5,721,088
  CHECK(shared.kv_tokens == 8 * 715088);
  CHECK(shared.request_bytes == alone.request_bytes / 8);
  s.decode_context = 3;
  CHECK(served("moonshotai/Kimi-K2-Instruct", EngineKind::vllm, s, "H200-141GB").refusal != "");
  Server dense = of_version("0.12.0", 8);  // 8 key/value heads on 8 ranks: nobody holds the same
  dense.decode_context = 2;
  CHECK(served("meta-llama/Llama-3.1-70B-Instruct", EngineKind::vllm, dense, "H200-141GB").refusal != "");
}

}  // namespace
