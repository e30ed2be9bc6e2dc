// What NCCL holds for a trainer's process groups.
#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "estimate/communicators.hpp"
#include "estimate_jobs.hpp"

namespace {

using namespace oomplan;

constexpr Bytes kMiB = Bytes{1} << 20;

Cluster machines(const std::string& gpu, std::int64_t per_node) {
  Cluster c;
  c.gpu = gpu;
  c.gpus_per_node = per_node;
  return c;
}

Bytes of(const ProcessGroup& group, const std::string& gpu = "H100-80GB") {
  return communicator_bytes(group, machines(gpu, 8), Catalog::builtin());
}

TEST_CASE("collectives cost by the GPUs of one machine") {
  // logs: vLLM on 2 and 4 H100 with one communicator more, SGLang on 8 H200 with two: 2.01 GiB
  CHECK(of({2, 1, Exchange::none}) == 515'396'076);
  CHECK(of({4, 1, Exchange::none}) == kMiB * 512);
  CHECK(2 * of({8, 1, Exchange::none}) == doctest::Approx(2.01 * 1024 * static_cast<double>(kMiB)).epsilon(0.001));
  CHECK(of({64, 1, Exchange::none}) == of({8, 1, Exchange::none}));
  CHECK(of({2, 8, Exchange::none}) == of({2, 1, Exchange::none}));  // one rank on each machine
  CHECK(of({8, 1, Exchange::none}, "A100-80GB") == 392 * kMiB);
  CHECK(of({8, 1, Exchange::none}, "L4") == 130 * kMiB);
}

TEST_CASE("an exchange with all ranks has 32 channels of 12 MiB for every other GPU of an NVLink machine") {
  // NVIDIA/nccl issue 1685: eight H100 went from 1.06 to 4.34 GB with the first all_to_all_single
  const Bytes eight = of({8, 1, Exchange::all});
  CHECK(eight == 392 * kMiB + 7 * 32 * 12 * kMiB);
  CHECK(eight == doctest::Approx(3.28e9).epsilon(0.02));
  CHECK(of({2, 1, Exchange::all}) == 342 * kMiB + 32 * 12 * kMiB);
  CHECK(of({4, 2, Exchange::all}) == 392 * kMiB + 3 * 32 * 12 * kMiB);
  CHECK(of({8, 1, Exchange::neighbours}) == 392 * kMiB + 2 * 32 * 12 * kMiB);
  CHECK(of({4, 1, Exchange::all}, "L4") == 130 * kMiB + 3 * 2 * 12 * kMiB);
}

TEST_CASE("across machines an exchange has two channels for each GPU beside it, and two pools for all others") {
  CHECK(of({32, 1, Exchange::all}) == 392 * kMiB + 7 * 2 * 12 * kMiB + 2 * 64 * kMiB);
  CHECK(of({64, 1, Exchange::all}) == of({32, 1, Exchange::all}));
  CHECK(of({4, 8, Exchange::neighbours}) == 342 * kMiB + 2 * 64 * kMiB);
}

TEST_CASE("DeepSpeed shards over a clone of the group of all ranks") {
  Job job;
  job.cluster = machines("H100-80GB", 8);
  Role role;
  role.engine = EngineKind::deepspeed;
  role.trainer.layout.data = 1;
  role.trainer.layout.context = 8;
  const auto groups = process_groups(job, role);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].size == 8);
  CHECK(groups[1].size == 8);
  CHECK(groups[1].exchange == Exchange::none);
  CHECK(groups[2].exchange == Exchange::all);
}

TEST_CASE("a trainer's groups follow from its layout") {
  Job job;
  job.cluster = machines("H100-80GB", 8);
  Role role;
  role.engine = EngineKind::fsdp2;
  CHECK(process_groups(job, role).empty());
  role.trainer.layout.data = 4;
  role.trainer.layout.tensor = 2;
  role.trainer.layout.context = 2;
  const auto groups = process_groups(job, role);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].size == 16);
  CHECK(groups[0].exchange == Exchange::none);
  CHECK(groups[1].size == 2);
  CHECK(groups[1].stride == 2);
  CHECK(groups[1].exchange == Exchange::all);
  CHECK(groups[2].stride == 1);
  role.engine = EngineKind::megatron;
  CHECK(process_groups(job, role)[1].exchange == Exchange::neighbours);
  role.trainer.megatron.context_exchange = ContextExchange::a2a;
  role.trainer.layout.expert = 4;
  CHECK(process_groups(job, role)[1].exchange == Exchange::all);
  CHECK(process_groups(job, role).back().size == 4);
}

}  // namespace
