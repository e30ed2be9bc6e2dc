// A search over a server's settings: what it may change, in which order candidates come, and that they say themselves.
#include <doctest/doctest.h>

#include <algorithm>

#include <oomplan/oomplan.hpp>

#include "search/serving.hpp"
#include "search/serving_rate.hpp"

namespace {

using namespace oomplan;

Job job_of_server(const std::string& server, const std::string& more = {}, const char* gpus = "2 x H100-80GB") {
  Source source;
  source.text = std::string("oomplan: 1\ngpus: ") + gpus + "\nmodel: meta-llama/Llama-3.1-8B-Instruct\n" + more + "server: {" +
                server + "}\n";
  source.name = "server.yaml";
  return read(source).job;
}

}  // namespace

TEST_CASE("candidates of a server come best first, and every one fits as it is read back") {
  const Job job = job_of_server("engine: vllm 0.19.1, layout: t2, concurrency: 128", "prompt_tokens: 1k\nresponse_tokens: 2k\n");
  REQUIRE(serves_alone(job));
  const Found found = search(job, {}, 5);
  REQUIRE(found.best.size() >= 2);
  CHECK(found.best[0].relative_throughput == 1);
  for (const Candidate& c : found.best) {
    CHECK(c.relative_throughput <= 1 + 1e-9);
    CHECK(c.estimate.fits());
    const Server& s = c.job.roles[0].server;
    CHECK_FALSE(s.kv);  // numerics were not allowed
    CHECK(s.layout.world() == 2);
    Source again;
    again.text = c.job_file;
    again.name = "candidate.yaml";
    CHECK(estimate_quick(read(again).job).servers.at(0).kv_tokens == estimate_quick(c.job).servers.at(0).kv_tokens);
  }
  // two replicas read all weights on both GPUs in every step, two tensor ranks half of them, and 64 small all-reduces take less
  CHECK(found.best[0].job.roles[0].server.layout.tensor == 2);
}

TEST_CASE("formats change only where numerics may") {
  const Job job = job_of_server("engine: vllm 0.19.1", {}, "1 x H100-80GB");
  Space space;
  space.allow = Effect::numerics;
  const Found found = search(job, space, 20);
  const auto has = [&](auto&& what) { return std::any_of(found.best.begin(), found.best.end(), what); };
  CHECK(has([](const Candidate& c) { return c.job.roles[0].server.kv == DType::fp8; }));
  CHECK(has([](const Candidate& c) { return c.job.roles[0].server.weights == DType::fp8; }));
  CHECK(found.best[0].job.roles[0].server.weights == DType::fp8);  // half the bytes to read
}

TEST_CASE("what is fixed stays") {
  const Job job = job_of_server("engine: sglang 0.5.10, layout: t2, mem_fraction_static: 0.7");
  Space space;
  space.fixed = {"layout", "mem_fraction_static"};
  for (const Candidate& c : search(job, space, 5).best) {
    CHECK(c.job.roles[0].server.layout.tensor == 2);
    CHECK(c.job.roles[0].server.memory_fraction == 0.7);
  }
}

TEST_CASE("a model with experts has candidates with whole experts on a rank, and with ranks that share them") {
  for (const char* const engine : {"vllm 0.19.1", "sglang 0.5.10"}) {
    Source source;
    source.text = std::string("oomplan: 1\ngpus: 4 x H100-80GB\nmodel: qwen3-30b-a3b\nserver: {max_model_len: 8k, engine: ") +
                  engine + "}\n";
    source.name = "server.yaml";
    const Found found = search(read(source).job, {}, 60);
    const auto has = [&](auto&& what) {
      return std::any_of(found.best.begin(), found.best.end(), [&](const Candidate& c) { return what(c.job.roles[0].server); });
    };
    CHECK(
        has([](const Server& s) { return s.layout.expert == s.layout.tensor && s.layout.tensor > 1 && s.attention_data == 1; }));
    CHECK(has([](const Server& s) { return s.attention_data > 1 && s.layout.expert > 1; }));
    CHECK(has([](const Server& s) { return s.attention_data > 1 && s.layout.expert == 1; }));
    for (const Candidate& c : found.best) {
      CHECK(c.job.roles[0].server.layout.world() == 4);
      Source again;
      again.text = c.job_file;
      again.name = "candidate.yaml";
      CHECK(estimate_quick(read(again).job).servers.at(0).kv_tokens == c.estimate.servers.at(0).kv_tokens);
    }
  }
}

TEST_CASE("where nothing fits it is said why, and how many GPUs would do") {
  Source source;
  source.text = "oomplan: 1\ngpus: 1 x RTX3090-24GB\nmodel: qwen3-32b\nserver: {engine: vllm 0.19.1, max_model_len: 8k}\n";
  source.name = "server.yaml";
  const Found found = search(read(source).job, {}, 3);
  CHECK(found.best.empty());
  REQUIRE(found.limits.size() == 1);
  CHECK(found.limits[0].missing > 0);
  REQUIRE(found.smallest_gpus.has_value());
  CHECK(*found.smallest_gpus >= 4);  // 61 GiB of weights
}

TEST_CASE("the rate by hand: reading weights and caches, arithmetic, all-reduces") {
  Gpu gpu;
  gpu.memory_bandwidth = 2e12;
  gpu.bf16_flops = 1e15;
  ModelCost cost;
  cost.active = 8e9;
  ServingRateLoad l;
  l.layers = 32;
  l.running = 10;
  l.prompt = 1000;
  l.response = 2000;
  l.weights = 16'000'000'000;
  l.token_bytes = 100'000;
  // (16e9 + 10 * 2000 * 1e5) / 2e12 = 9 ms for ten tokens, and 1000 * 16e9 / 1e15 / 2000 = 8 us of prefill for each
  CHECK(tokens_per_second(cost, l, gpu) == doctest::Approx(1 / (0.0009 + 0.000008)));
  l.tensor = 2;  // all-reduces: 64 of 10 us; the caller says what one GPU reads
  CHECK(tokens_per_second(cost, l, gpu) == doctest::Approx(1 / (0.0009 + 0.000064 + 0.000004)));
  l.tensor = 1;
  l.replicas = 3;
  CHECK(tokens_per_second(cost, l, gpu) == doctest::Approx(3 / (0.0009 + 0.000008)));
}
