// GPUs that print as one block: who goes in, what it shows, and that nobody is lost.
#include <set>

#include "estimate_jobs.hpp"
#include "report/blocks.hpp"
#include "report/format.hpp"

using namespace oomplan;

namespace {

GpuAnswer gpu(std::string ranks, std::vector<std::int64_t> gpus, std::vector<Bytes> needs) {
  GpuAnswer out;
  out.ranks = std::move(ranks);
  out.gpus = std::move(gpus);
  out.gpu = "H100-80GB";
  out.usable = 1000 * kMiB;
  for (const Bytes need : needs) {
    Moment m;
    m.phase = "actor.phase " + std::to_string(out.phases.size());
    m.usage.capacity_needed = need;
    out.phases.push_back(m);
    if (need > out.phases[out.worst].usage.capacity_needed) out.worst = out.phases.size() - 1;
  }
  return out;
}

}  // namespace

TEST_CASE("classes with equal figures are one block; so are those whose worst moments differ by a hundredth of the GPU at most") {
  const auto blocks = blocks_of(
      {gpu("actor 0-1", {0, 1}, {500 * kMiB, 700 * kMiB}), gpu("actor 2-7", {2, 3, 4, 5, 6, 7}, {500 * kMiB, 700 * kMiB}),
       gpu("actor 8,10", {8, 10}, {600 * kMiB, 690 * kMiB}), gpu("actor 9", {9}, {500 * kMiB, 701 * kMiB})});
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].shown.ranks == "actor 0-8,10");
  CHECK(blocks[0].shown.gpus == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 10});
  CHECK(blocks[0].shown.phases[0].usage.capacity_needed == 600 * kMiB);
  CHECK(blocks[0].shown.phases[1].usage.capacity_needed == 700 * kMiB);
  CHECK(blocks[0].shown.worst == 1);
  CHECK(blocks[0].spread == 100 * kMiB);
  CHECK(blocks[1].shown.ranks == "actor 9");
  CHECK(blocks[1].spread == 0);
}

TEST_CASE("other roles, phases or kinds of GPU are other blocks") {
  GpuAnswer other_gpu = gpu("actor 2", {2}, {500 * kMiB});
  other_gpu.gpu = "A100-80GB";
  const auto blocks = blocks_of({gpu("actor 0", {0}, {500 * kMiB}), gpu("actor 1, ref 1", {1}, {500 * kMiB}), other_gpu,
                                 gpu("actor 3", {3}, {500 * kMiB, 1 * kMiB})});
  CHECK(blocks.size() == 4);
}

TEST_CASE("roles on shared GPUs keep their own ranks") {
  const auto blocks =
      blocks_of({gpu("rollout 0, actor 4", {4}, {500 * kMiB}), gpu("rollout 1-3, actor 5-7", {5, 6, 7}, {500 * kMiB})});
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].shown.ranks == "rollout 0-3, actor 4-7");
}

TEST_CASE("another worst moment is another block") {
  CHECK(blocks_of({gpu("actor 0", {0}, {500 * kMiB, 700 * kMiB}), gpu("actor 1", {1}, {700 * kMiB, 500 * kMiB})}).size() == 2);
}

TEST_CASE(
    "of real jobs every GPU is in one block, which shows at least what it needs and in its worst moment no more than a hundredth "
    "above") {
  for (const auto& named : job_matrix()) {
    INFO(named.name);
    Estimate e;
    try {
      e = estimate_quick(job_of(named.text));
    } catch (const InputError&) {
      continue;
    }
    const auto blocks = blocks_of(e.gpus);
    std::set<std::int64_t> seen;
    for (const auto& block : blocks)
      for (const auto g : block.shown.gpus) CHECK(seen.insert(g).second);
    for (const auto& gpu : e.gpus) {
      const auto home = std::find_if(blocks.begin(), blocks.end(), [&](const GpuBlock& b) {
        return std::find(b.shown.gpus.begin(), b.shown.gpus.end(), gpu.gpus.front()) != b.shown.gpus.end();
      });
      REQUIRE(home != blocks.end());
      REQUIRE(home->shown.phases.size() == gpu.phases.size());
      for (std::size_t i = 0; i < gpu.phases.size(); ++i) {
        const Bytes above = home->shown.phases[i].usage.capacity_needed - gpu.phases[i].usage.capacity_needed;
        CHECK(above >= 0);
        if (i == gpu.worst) CHECK(above <= gpu.usable / 100);
        CHECK(above <= home->spread);
      }
    }
  }
}

TEST_CASE("two changes of one value never look alike, however long it is") {
  const std::string from = "sglang[rollout]:d8t4+megatron[actor]:(attn:d4p4t2c1|ffn:d2p4t2e4)|fsdp[critic]:d32";
  std::set<std::string> shown;
  std::vector<std::string> all;
  for (std::size_t at = 0; at < from.size(); ++at) {
    std::string to = from;
    to[at] = to[at] == '9' ? '8' : '9';
    all.push_back(to);
  }
  all.push_back(from + "+fsdp[ref]:d2");
  all.push_back(from.substr(1));
  for (const auto& to : all) CHECK(shown.insert(change_text(from, to, 40)).second);
  CHECK(change_text("fsdp:d4", "fsdp:d8", 40) == "fsdp:d4 -> fsdp:d8");
  CHECK(change_text("", "true", 40) == "true");
  // characters are never cut in half
  for (const char* text : {"ä", "€", "𝄞"}) {
    std::string long_from, long_to;
    for (int i = 0; i < 30; ++i) long_from += text;
    long_to = long_from + "x";
    CHECK(printable(change_text(long_from, long_to, 20)).find('?') == std::string::npos);
  }
}
