// What the other processes of a GPU hold at a moment: who they are, what they hold, and that the parts are the whole.
#include <numeric>

#include "estimate_jobs.hpp"
#include "report/process_parts.hpp"

using namespace oomplan;

namespace {

Bytes sum(const std::vector<Bytes>& parts) { return std::accumulate(parts.begin(), parts.end(), Bytes{0}); }
Bytes of(const ProcessShare& p, Category c) { return p.by_category[static_cast<std::size_t>(c)]; }

/// One process trains on the GPUs on which another serves.
Job shared_gpus(const char* sleep) {
  return job_of(fmt::format(
      "oomplan: 1\nframework: areal 1.0.4\ngpus: 4 x H100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: 7k\n"
      "rollout: {{engine: sglang 0.5.10, layout: d4, mem_fraction_static: 0.5, sleep: {}}}\n"
      "actor: {{beside: rollout, layout: d4, tokens_per_micro_batch: 8k}}\nsync: {{by: disk}}\n",
      sleep));
}

}  // namespace

TEST_CASE("a GPU that several processes share: each moment is its own tensors, what is cached, and the others' parts") {
  for (const auto& named : job_matrix()) {
    const Job job = job_of(named.text);
    INFO(named.name);
    Estimate e;
    try {
      e = estimate(job);
    } catch (const InputError&) {
      continue;
    }
    for (const auto& gpu : e.gpus)
      for (const auto& m : gpu.phases) {
        INFO(gpu.ranks << " " << m.phase);
        Bytes beside = 0;
        for (const auto& p : m.beside) {
          beside += p.device;
          CHECK_FALSE(p.roles.empty());
          CHECK(p.roles.find(m.role) == std::string::npos);
          CHECK(sum(p.by_category) <= p.device);
          Bytes parts = 0;
          for (const auto& [label, bytes] : parts_of(p)) parts += bytes;
          CHECK(parts == p.device);
        }
        if (!m.beside.empty()) CHECK(m.usage.device >= sum(m.usage.by_category) + beside);
      }
  }
}

TEST_CASE("a server that does not sleep is named with its weights and its cache, which are the server's own figures") {
  const Job job = shared_gpus("0");
  const Estimate e = estimate(job);
  REQUIRE(e.servers.size() == 1);
  const GpuAnswer& gpu = e.gpus.at(0);
  const Moment& worst = gpu.phases[gpu.worst];
  REQUIRE(worst.role == "actor");
  REQUIRE(worst.beside.size() == 1);
  CHECK(worst.beside[0].roles == "rollout");
  CHECK(of(worst.beside[0], Category::weights) == e.servers[0].weights);
  const Bytes rounding = of(worst.beside[0], Category::kv_cache) - e.servers[0].kv_pool;
  CHECK(rounding >= 0);
  CHECK(rounding < 2 * 28 * 512);  // the allocator's 512 bytes, keys and values of 28 layers
  const std::string text = to_text(e, job);
  CHECK(text.find("held by rollout") != std::string::npos);
  CHECK(text.find("    kv cache") != std::string::npos);
}

TEST_CASE("a server that sleeps holds no cache while its neighbours train") {
  const Estimate e = estimate(shared_gpus("1"));
  std::size_t seen = 0;
  for (const auto& gpu : e.gpus)
    for (const auto& m : gpu.phases)
      if (m.phase == "actor.backward")
        for (const auto& p : m.beside) {
          CHECK(of(p, Category::kv_cache) == 0);
          ++seen;
        }
  CHECK(seen > 0);
}
