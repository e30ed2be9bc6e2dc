// What a search proposes is as likely to fit as was asked for, and what is left out for that is counted.
#include "estimate/fit_probability.hpp"
#include "estimate_jobs.hpp"

using namespace oomplan;

namespace {

Found searched(const std::string& text, double min_probability, Space space = {}) {
  space.min_probability = min_probability;
  return search(job_of(text), space, 6);
}

const std::string kApart =
    "oomplan: 1\nframework: areal 1.0.4\ngpus: 8 x A100-80GB\nmodel: qwen2.5-7b\nprompt_tokens: 1k\nresponse_tokens: 7k\n"
    "rollout: {engine: sglang 0.5.10, layout: d4}\nactor: {layout: d4, tokens_per_micro_batch: 16k}\n";
const std::string kShared =
    "oomplan: 1\nframework: verl 0.9.0\ngpus: 8 x A100-80GB\nmodel: qwen2.5-7b\nprompt_tokens: 1k\nresponse_tokens: 7k\n"
    "rollout: {engine: vllm 0.11.0, layout: d8}\nactor: {beside: rollout, layout: d8, tokens_per_micro_batch: 16k}\n";
const std::string kServer =
    "oomplan: 1\ngpus: 2 x A100-80GB\nmodel: qwen2.5-32b\nserver: {engine: vllm 0.19.1, layout: t2, max_model_len: 32k}\n";

}  // namespace

TEST_CASE("likely_need is the most that a role may need: one byte more is less likely") {
  const Job job = job_of(kApart);
  const Bytes usable = Bytes{79} * kGiB;
  for (const auto& role : job.roles)
    for (const double p : {0.01, 0.3, 0.5, 0.9, 0.97}) {
      CAPTURE(role.name);
      CAPTURE(p);
      const Bytes most = likely_need(role, usable, p);
      REQUIRE(most > 0);
      CHECK(*fit_probability(role, most, usable) >= p);
      if (most < usable) CHECK(*fit_probability(role, most + 1, usable) < p);
    }
  CHECK(likely_need(job.roles[0], usable, 0) == usable);
}

TEST_CASE("every candidate has the probability that was asked for, and what fits with less is counted") {
  for (const std::string& text : {kApart, kShared, kServer}) {
    CAPTURE(text);
    std::int64_t fitting = -1, unlikely = 0;
    for (const double p : {0.0, 0.5, 0.9, 0.97}) {
      CAPTURE(p);
      const Found found = searched(text, p);
      CHECK(found.min_probability == p);
      if (p == 0) CHECK(found.unlikely == 0);
      for (const auto& c : found.best) CHECK(c.estimate.fit_probability.value_or(1) >= p);
      if (fitting >= 0) CHECK(found.fitting == fitting);  // left out, but they fit
      fitting = found.fitting;
      CHECK(found.unlikely >= unlikely);
      CHECK(found.unlikely <= found.fitting);
      unlikely = found.unlikely;
    }
  }
}

TEST_CASE("where nothing is as likely as was asked for, the answer says so") {
  const Found found = searched(kApart, 1);  // no measurement can promise that
  CHECK(found.best.empty());
  CHECK(found.unlikely == found.fitting);
  REQUIRE(found.fitting > 0);
  REQUIRE_FALSE(found.limits.empty());
  CHECK(found.limits[0].text.find("with a probability below 1") != std::string::npos);
  const std::string text = to_text(found, job_of(kApart));
  CHECK(text.find("nothing fits with 100 % probability") != std::string::npos);
  CHECK(text.find("left out: ") != std::string::npos);
}

TEST_CASE("--max ends at the largest that is likely enough") {
  const std::string small =
      "oomplan: 1\nframework: areal 1.0.4\ngpus: 8 x A100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: 7k\n"
      "rollout: {engine: sglang 0.5.10, layout: d4}\nactor: {layout: d4, tokens_per_micro_batch: 8k}\n";
  Space fraction;
  fraction.maximise = "fraction";
  const auto largest = [&](double p) {
    const Found found = searched(small, p, fraction);
    REQUIRE_FALSE(found.best.empty());
    CHECK(found.best[0].estimate.fit_probability.value_or(1) >= p);
    return found.best[0].job.role("rollout")->server.memory_fraction;
  };
  CHECK(largest(0.0) > largest(0.97));
}
