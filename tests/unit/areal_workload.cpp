// What a job is asked to do stays as the file says it: micro-batches hold the longest sequence, and no change that is proposed
// makes another workload of it.
#include <doctest/doctest.h>

#include "areal_files.hpp"
#include "estimate_jobs.hpp"
#include "job/workload.hpp"

using namespace oomplan;
using namespace oomplan::areal_files;

namespace {

std::vector<std::string> with(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
std::string budget(int tokens, const char* role = "actor") {
  return fmt::format("{}.mb_spec.max_tokens_per_mb={}", role, tokens);
}

/// The file as it is read again with what a remedy appends.
Job again(Source s, const std::vector<std::string>& overrides) {
  s.overrides = with(s.overrides, overrides);
  return read(s).job;
}

}  // namespace

TEST_CASE("areal: a micro-batch below the longest sequence is told on every engine, for every role and release") {
  // prompt 1024, response 8192
  struct Row {
    const char* release;
    std::vector<std::string> overrides;
  };
  for (const Row& row : {Row{"1.0.4", {"actor.backend=fsdp:d4"}}, Row{"1.0.4", {"actor.backend=fsdp:d2c2"}},
                         Row{"1.0.4", {"actor.backend=megatron:d4"}}, Row{"1.0.4", {"actor.backend=megatron:d1p2t2"}},
                         Row{"1.0.4", {"actor.backend=archon:d4"}}, Row{"2.0.0", {"actor.backend=megatron:d2t2"}},
                         Row{"2.0.0+", {"actor.backend=megatron:d2c2"}}}) {
    const auto says = [&](int tokens) {
      return read(source("grpo_7b.yaml", row.release, with(row.overrides, {budget(tokens)}))).notes;
    };
    CAPTURE(row.overrides.front());
    // Archon fills whole pages, and its budget is told with them: 4096 tokens
    const int told = row.overrides.front().ends_with("archon:d4") ? 4380 : 4096;
    CHECK(notes_say(says(4096), fmt::format("found {} tokens, but the longest sequence needs at least 9216", told)));
    CHECK(notes_say(says(9215), "at least 9216"));
    CHECK_FALSE(notes_say(says(9216), "at least"));
  }
  const auto of_role = [](const char* role, int tokens) {
    const char* file = std::string_view(role) == "ref" ? "grpo_1.5b_ref.yaml" : "ppo_critic.yaml";
    const Source s = source(file, "1.0.4", {budget(tokens, role)});
    const Job job = read(s).job;
    const std::int64_t longest = job.prompt_tokens + job.response_tokens;
    return notes_say(read(s).notes, fmt::format("at least {}", longest));
  };
  for (const char* role : {"ref", "critic"}) {
    CAPTURE(role);
    CHECK(of_role(role, 512));
    CHECK_FALSE(of_role(role, 65536));
  }
}

TEST_CASE("areal: samples of fine-tuning are as long as train_dataset.max_length") {
  const auto says = [](int tokens) { return read(source("sft.yaml", "1.0.4", {budget(tokens)})).notes; };
  CHECK(notes_say(says(2048), "found 2048 tokens, but the longest sequence needs at least 4096"));
  CHECK_FALSE(notes_say(says(4096), "at least"));
}

TEST_CASE("a job file with a micro-batch below the longest sequence is refused on every engine that packs") {
  const auto job = [](const char* engine, const char* framework, const char* tokens) {
    return fmt::format(
        "oomplan: 1\nframework: {}\ngpus: 8 x H100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: 3k\n"
        "sequences_per_step: 256\nrollout: {{engine: sglang, layout: d4}}\n"
        "actor: {{engine: {}, layout: d4, tokens_per_micro_batch: {}}}\n",
        framework, engine, tokens);
  };
  for (const auto& [engine, framework] : {std::pair{"fsdp2", "areal 1.0.4"},
                                          {"megatron", "areal 1.0.4"},
                                          {"archon", "areal 1.0.4"},
                                          {"fsdp2", "verl 0.8.0"},
                                          {"megatron", "verl 0.8.0"}}) {
    CAPTURE(engine);
    CAPTURE(framework);
    CHECK_THROWS_WITH_AS((void)job_of(job(engine, framework, "3k")), doctest::Contains("at least 4096"), InputError);
    CHECK_NOTHROW((void)job_of(job(engine, framework, "4k")));
  }
}

TEST_CASE("areal: advice and search propose no micro-batch below the longest sequence") {
  for (const char* backend : {"fsdp:d4", "megatron:d4", "archon:d4"})
    for (const int tokens : {8192, 9216, 16384, 65536}) {
      Source s = source("grpo_7b.yaml", "1.0.4", {fmt::format("actor.backend={}", backend), budget(tokens)});
      s.gpu = "A100-40GB";
      CAPTURE(backend);
      CAPTURE(tokens);
      for (const Remedy& r : advise(s, Effect::numerics).remedies) {
        const Job then = again(s, r.patch.overrides);
        const std::int64_t now = then.role("actor")->trainer.tokens_per_micro_batch;
        CHECK((now >= 9216 || now == read(s).job.role("actor")->trainer.tokens_per_micro_batch));
      }
    }
  // nor the file's own
  const Found found = search(source("grpo_7b.yaml", "1.0.4", {budget(4096)}), {}, 5);
  REQUIRE_FALSE(found.best.empty());
  for (const Candidate& c : found.best) CHECK(c.job.role("actor")->trainer.tokens_per_micro_batch >= 9216);
}

TEST_CASE("areal: advice compares one workload, where a prompt's length is what a limit leaves, too") {
  const std::vector<std::string> open{"~train_dataset.max_length", "~gconfig.max_tokens", budget(16384)};
  Source s = source("grpo_7b.yaml", "1.0.4", open);
  s.gpu = "A100-40GB";
  const Job job = read(s).job;
  REQUIRE(job.prompt_tokens == 16384 - 8192);  // what the micro-batch leaves beside the response
  const Advice advice = advise(s, Effect::numerics);
  REQUIRE_FALSE(advice.remedies.empty());
  for (const Remedy& r : advice.remedies) {
    CAPTURE(r.key);
    CHECK(r.key != "actor.mb_spec.max_tokens_per_mb");
    CHECK(workload_of(again(s, r.patch.overrides)) == workload_of(job));
  }
  for (const Candidate& c : search(s, {}, 3).best) CHECK(workload_of(again(s, c.overrides)) == workload_of(job));
  // where another limit is tighter, budgets are proposed down to what it lets be
  s.overrides = {"~train_dataset.max_length", budget(32768)};
  const std::int64_t longest = read(s).job.prompt_tokens + 8192;
  REQUIRE(longest == 9216);
  bool proposed = false;
  for (const Remedy& r : advise(s).remedies) proposed = proposed || r.key == "actor.mb_spec.max_tokens_per_mb";
  CHECK(proposed);
}

TEST_CASE("areal: who changes the response's length says the prompt's, which nothing else holds") {
  const Source open = source("grpo_7b.yaml", "1.0.4", {"~train_dataset.max_length", "~gconfig.max_tokens", budget(16384)});
  const Job shorter = again(open, patch(open, {{"response_tokens", "4096"}}).overrides);
  CHECK(shorter.response_tokens == 4096);
  CHECK(shorter.prompt_tokens == 8192);
  const Source said = source("grpo_7b.yaml", "1.0.4");
  CHECK(patch(said, {{"response_tokens", "4096"}}).overrides == std::vector<std::string>{"gconfig.max_new_tokens=4096"});
}
