// What the other processes of a GPU hold at a moment: who they are, what they hold, and that the parts are the whole.
#include <numeric>

#include "areal_files.hpp"
#include "estimate_jobs.hpp"
#include "report/process_parts.hpp"

using namespace oomplan;

namespace {

Bytes sum(const std::vector<Bytes>& parts) { return std::accumulate(parts.begin(), parts.end(), Bytes{0}); }
Bytes of(const ProcessShare& p, Category c) { return p.by_category[static_cast<std::size_t>(c)]; }

Estimate shared_gpus(std::vector<std::string> more) {
  std::vector<std::string> overrides{"+rollout.scheduling_strategy.type=colocation", "+rollout.scheduling_strategy.target=actor",
                                     "+actor.weight_update_mode=disk"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return estimate(read(areal_files::source("grpo_7b.yaml", "1.0.4", overrides)).job);
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

TEST_CASE("areal: a server that does not sleep is named with its weights and its cache, which are the server's own figures") {
  const Estimate e = shared_gpus({});
  REQUIRE(e.servers.size() == 1);
  const GpuAnswer& gpu = e.gpus.at(0);
  const Moment& worst = gpu.phases[gpu.worst];
  REQUIRE(worst.role == "actor");
  REQUIRE(worst.beside.size() == 1);
  CHECK(worst.beside[0].roles == "rollout");
  CHECK(of(worst.beside[0], Category::weights) == e.servers[0].weights);
  CHECK(of(worst.beside[0], Category::kv_cache) == e.servers[0].kv_pool);
  const std::string text = to_text(e, read(areal_files::source("grpo_7b.yaml", "1.0.4", {})).job);
  CHECK(text.find("held by rollout") != std::string::npos);
  CHECK(text.find("    kv cache") != std::string::npos);
}

TEST_CASE("areal: a server that sleeps holds little while its neighbours train") {
  const Estimate e = shared_gpus({"+sglang.enable_memory_saver=true", "+enable_offload=true", "+actor.offload=true"});
  for (const auto& gpu : e.gpus)
    for (const auto& m : gpu.phases)
      if (m.phase == "actor.backward")
        for (const auto& p : m.beside) CHECK(of(p, Category::kv_cache) == 0);
}
