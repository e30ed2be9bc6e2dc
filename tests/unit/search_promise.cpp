// What a search promises: its candidates, read again as a user would, are estimated as they were found.
#include "estimate/explain.hpp"
#include "estimate_jobs.hpp"
#include "job/knobs.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

struct Case {
  std::string name, text;
  Space space;
};

std::string example(std::string_view name) {
  for (const auto& e : example_jobs())
    if (e.name == name) return e.text;
  FAIL("there is no example " << name);
  return {};
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const auto& e : example_jobs()) out.push_back({e.name, e.text, {}});
  for (const auto& j : job_matrix())
    for (const char* name : {"areal, critic", "verl, apart", "verl, shared, sleep 1", "verl, ref in the actor's process",
                             "sft, recompute", "serving, sglang"})
      if (j.name == name) out.push_back({j.name, j.text, {}});
  Space numerics;
  numerics.allow = Effect::numerics;
  out.push_back({"numerics allowed", example("grpo.yaml"), numerics});
  Space more;
  more.gpus = 16;
  out.push_back({"16 GPUs", to_yaml(default_job("qwen-7b", 8).job), more});
  for (const char* aim : {"tokens", "fraction", "concurrency", "length"}) {
    Space s;
    s.maximise = aim;
    out.push_back({std::string("--max ") + aim, example("grpo.yaml"), s});
  }
  return out;
}

}  // namespace

TEST_CASE("every candidate of a search is estimated as promised when its job file, or the overrides, are read") {
  Sample jobs(5);
  for (const auto& c : cases()) {
    if (!jobs.takes()) continue;
    INFO(c.name);
    const Job base = job_of(c.text);
    const Found found = search(base, c.space, 4);
    CHECK(found.judged > 0);
    CHECK(found.fitting > 0);
    CHECK_FALSE(found.best.empty());
    TapeStore store;
    for (const auto& candidate : found.best) {
      CHECK(candidate.estimate.fits());
      CHECK(candidate.relative_step_time >= 1);
      std::string overrides;
      for (const auto& o : candidate.overrides) overrides += o + " ";
      INFO(overrides);
      CHECK(candidate.overrides.size() >= candidate.changes.size());  // more: what would otherwise follow from the changes
      const Job from_file = job_of(candidate.job_file), from_overrides = job_of(c.text, candidate.overrides);
      CHECK(same_settings(from_file, candidate.job));
      CHECK(same_settings(from_overrides, candidate.job));
      check_same(explain_worst(from_file, Catalog::builtin(), store), candidate.estimate);
      check_same(explain_worst(from_overrides, Catalog::builtin(), store), candidate.estimate);
      CHECK(estimate_quick(from_file).fits());
      CHECK(explain(from_file).fits());
    }
  }
}

TEST_CASE("a search changes nothing beyond the effect that is allowed, and no key that is fixed") {
  Sample jobs(5);
  for (const auto& c : cases()) {
    if (!jobs.takes()) continue;
    INFO(c.name);
    const Job base = job_of(c.text);
    Space space = c.space;
    for (int round = 0; round < 6; ++round) {
      const Found found = search(base, space, 3);
      for (const auto& candidate : found.best)
        for (const auto& change : candidate.changes) {
          INFO(change.key << ": " << change.from << " -> " << change.to);
          // What was asked for by name: the number of GPUs, the setting that is maximised.
          if (change.key != "gpus" && space.maximise.empty()) CHECK(change.effect <= space.allow);
          CHECK(std::find(space.fixed.begin(), space.fixed.end(), change.key) == space.fixed.end());
          CHECK(change.from != change.to);
        }
      // Fix what the best candidate changed, and look again.
      if (!space.maximise.empty() || found.best.empty() || found.best[0].changes.empty()) break;
      for (const auto& change : found.best[0].changes)
        if (change.key != "gpus") space.fixed.push_back(change.key);
    }
  }
}

TEST_CASE("a search gives the same answer twice, and on one, two and seven threads") {
  Sample jobs(5);
  for (const auto& c : cases()) {
    if (!jobs.takes()) continue;
    INFO(c.name);
    const Job base = job_of(c.text);
    const Found first = search(base, c.space, 5);
    const std::string text = to_json(first, base);
    for (const int threads : {1, 2, 7}) {
      Space space = c.space;
      space.threads = threads;
      const Found again = search(base, space, 5);
      CHECK(again.judged == first.judged);
      CHECK(again.fitting == first.fitting);
      CHECK(to_json(again, base) == text);
    }
  }
}

TEST_CASE("candidates are ranked by their step time, and fewer of them are the first of more") {
  const Job base = default_job("qwen-7b", 8).job;
  const Found ten = search(base, {}, 10), three = search(base, {}, 3);
  REQUIRE(three.best.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(three.best[i].overrides == ten.best[i].overrides);
  for (std::size_t i = 1; i < ten.best.size(); ++i) CHECK(ten.best[i - 1].relative_step_time <= ten.best[i].relative_step_time);
}

TEST_CASE("a search that is told to stop stops") {
  std::stop_source stop;
  stop.request_stop();
  const Found found = search(default_job("qwen-7b", 8).job, {}, 10, nullptr, stop.get_token());
  CHECK(found.best.empty());
  CHECK_FALSE(found.smallest_gpus);
}
