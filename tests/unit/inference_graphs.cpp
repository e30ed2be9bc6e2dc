// vLLM's captured graphs by hand: nodes of every graph, and the tensors of the largest size in the pool that all share.
#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;

constexpr Bytes kNode = 188650, kExperts = 60887, kSharedExperts = 142824;  // of one layer in one graph

ServerPlan plan_of(const char* name, const char* gpu, const char* version, const ServerPoint& point, std::int64_t slots = 0) {
  const Catalog& catalog = Catalog::builtin();
  Server server;
  server.version = version;
  server.lora.slots = slots;
  server.lora.rank = slots > 0 ? 8 : 0;
  const ServerModel m = server_model(*catalog.model(name).architecture, EngineKind::vllm, server);
  return plan(m, resolve(catalog.facts(), EngineKind::vllm, server, catalog.gpu(gpu), m), point);
}
Bytes graphs(const char* name, const char* gpu, const char* version, const ServerPoint& point, std::int64_t slots = 0) {
  return plan_of(name, gpu, version, point, slots)[ServerTensor::graphs];
}

ServerPoint running(std::int64_t requests) {
  ServerPoint out;
  out.max_running = requests;
  out.batched_tokens = 8192;
  out.max_model_len = 4096;
  return out;
}

TEST_CASE("graphs on an H100: two modes of 51 sizes, activations of 512 tokens, 32 parts of attention's output in fp32") {
  // 36 layers, h = 4096, 32 heads of 128, F = 12288
  const Bytes activations = 2 * 512 * (3 * 4096 + 4096 + 3 * 12288), parts = 32 * 512 * 4096 * 4;
  CHECK(parts == 256 * kMiB);  // as logged: 262 MiB for the first decoding step that is captured, 4 for every other one
  CHECK(graphs("Qwen/Qwen3-8B", "H100-80GB", "0.19.0", running(1024)) == 102 * 36 * kNode + 32 * kMiB + activations + parts);
}

TEST_CASE("graphs of a few requests: pieces up to twice as many tokens, whole steps up to as many; a set more with adapters") {
  // sizes 1, 2, 4, 8 and 1, 2, 4; FlashAttention 2 has no bound of its splits. 24 layers, h = 896, F = 4864
  const Bytes pool = 8192 * kKiB + 128 * kKiB + 2 * 8 * (3 * 896 + 896 + 3 * 4864);
  CHECK(graphs("Qwen/Qwen2.5-0.5B-Instruct", "A100-40GB", "0.23.0", running(4)) == 7 * 24 * kNode + pool);
  CHECK(graphs("Qwen/Qwen2.5-0.5B-Instruct", "A100-40GB", "0.23.0", running(4), 1) == 14 * 24 * kNode + pool);
}

TEST_CASE("graphs of older releases: pieces alone up to 0.10, in steps of 8") {
  const Bytes pool = 32 * kMiB + 2 * 512 * (3 * 896 + 896 + 3 * 4864);
  CHECK(graphs("Qwen/Qwen2.5-0.5B-Instruct", "H100-80GB", "0.10.2", running(1024)) == 67 * 24 * kNode + pool);
}

TEST_CASE("graphs of experts have more kernels, those of shared experts more again") {
  const Bytes olmoe = graphs("allenai/OLMoE-1B-7B-0125", "A100-40GB", "0.23.0", running(16));
  const Bytes one = graphs("allenai/OLMoE-1B-7B-0125", "A100-40GB", "0.23.0", running(8));
  CHECK(olmoe - one == 3 * 16 * (kNode + kExperts) + 2 * 16 * (3 * 2048 + 2048));  // 24, 32; 16; of 16 tokens more
  const Bytes qwen = graphs("Qwen/Qwen1.5-MoE-A2.7B", "A100-40GB", "0.23.0", running(16));
  const Bytes less = graphs("Qwen/Qwen1.5-MoE-A2.7B", "A100-40GB", "0.23.0", running(8));
  CHECK(qwen - less == 3 * 24 * (kNode + kExperts + kSharedExperts) + 2 * 16 * (3 * 2048 + 2048 + 3 * 5632));
}

TEST_CASE("vLLM keeps a buffer of embedded inputs beside its budget; the second runner has none and charges no graphs") {
  const char *first = "Qwen/Qwen2.5-7B-Instruct", *second = "Qwen/Qwen3-8B";
  for (const char* version : {"0.22.0", "0.23.0"}) {
    CAPTURE(version);
    const ServerPlan p = plan_of(first, "A100-40GB", version, running(16), 1);
    CHECK(p[ServerTensor::buffers] == 2 * 8192 * 3584);
    CHECK(p.kv_pool == p.budget - p.non_kv - p[ServerTensor::graphs]);
  }
  const ServerPlan before = plan_of(second, "A100-40GB", "0.22.0", running(16), 1);
  const ServerPlan after = plan_of(second, "A100-40GB", "0.23.0", running(16), 1);
  CHECK(before[ServerTensor::buffers] == 2 * 8192 * 4096);
  CHECK(before.kv_pool == before.budget - before.non_kv - before[ServerTensor::graphs]);
  CHECK(after[ServerTensor::buffers] == 0);
  CHECK(after.kv_pool == after.budget - after.non_kv);
  CHECK(before[ServerTensor::graphs] - after[ServerTensor::graphs] == 12 * 36 * kNode);  // one set of 7 sizes and 5 steps
}

}  // namespace
