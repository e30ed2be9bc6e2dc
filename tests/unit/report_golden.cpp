// Every output format against a file in tests/golden. The answers are made by hand here: what is tested is how they are told.
// OOMPLAN_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "report/format.hpp"
#include "report/report.hpp"

using namespace oomplan;

namespace {

void check_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(OOMPLAN_SOURCE_DIR) + "/tests/golden/" + name;
  if (std::getenv("OOMPLAN_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << text;
  std::ostringstream expected;
  expected << std::ifstream(path, std::ios::binary).rdbuf();
  INFO(path);
  CHECK(expected.str() == text);
}

Moment moment(std::string phase, std::string role, std::string step, Bytes needed) {
  Moment m;
  m.phase = std::move(phase);
  m.role = std::move(role);
  m.step = std::move(step);
  m.usage.capacity_needed = m.usage.device = needed;
  m.usage.allocated = needed - 3 * kGiB;
  m.usage.reserved = needed - 2 * kGiB;
  const auto put = [&m](Category c, Bytes bytes) { m.usage.by_category[static_cast<std::size_t>(c)] = bytes; };
  put(Category::weights, 7 * kGiB);
  put(Category::optimizer, 14 * kGiB);
  put(Category::logits, needed - 26 * kGiB);
  put(Category::context, 512 * kMiB);
  return m;
}

Job job() {
  Job j;
  j.name = "gsm8k_grpo";
  Role actor;
  actor.name = "actor";
  actor.trainer.tokens_per_micro_batch = 16384;
  Role rollout;
  rollout.name = "rollout";
  rollout.kind = RoleKind::rollout;
  rollout.engine = EngineKind::sglang;
  j.roles = {actor, rollout};
  j.origins["actor.reduce"] = {Origin::Kind::default_, {}, "AReaL 1.0.4 default", "areal/api/cli_args.py"};
  j.origins["actor.layout"] = {Origin::Kind::file, {"gsm8k.yaml", 7, 3, "actor.layout"}, "", ""};
  j.origins["rollout.max_running"] = {Origin::Kind::default_, {}, "SGLang 0.5.10 default", "python/sglang/srt/server_args.py"};
  return j;
}

Estimate overflowing() {
  Estimate e;
  GpuAnswer actor;
  actor.ranks = "actor 0-3";
  actor.gpus = {0, 1, 2, 3};
  actor.gpu = "H100-80GB";
  actor.usable = 85031714816;
  actor.phases = {moment("actor.logprob", "actor", "forward", 40 * kGiB),
                  moment("actor.train", "actor", "backward", 91 * kGiB + 420 * kMiB),
                  moment("sync", "actor", "bucket 3", 44 * kGiB)};
  actor.phases[2].bound = true;
  actor.worst = 1;
  GpuAnswer rollout;
  rollout.ranks = "rollout 4-7";
  rollout.gpus = {4, 5, 6, 7};
  rollout.gpu = "H100-80GB";
  rollout.usable = 85031714816;
  rollout.phases = {moment("rollout.generate", "rollout", "decode", 73 * kGiB)};
  e.gpus = {actor, rollout};
  HostAnswer host;
  host.nodes = "0";
  host.usable = 1024 * kGiB;
  host.phases = {{"actor.init", 31 * kGiB}, {"actor.train", 2 * kGiB}};
  HostAnswer unstated;
  unstated.nodes = "1";
  unstated.phases = {{"actor.init", 29 * kGiB}};
  e.hosts = {host, unstated};
  ServerAnswer server;
  server.role = "rollout";
  server.weights = 14 * kGiB;
  server.kv_pool = 48 * kGiB;
  server.non_kv = 11 * kGiB;
  server.kv_tokens = 898779;
  server.kv_bytes_per_token = 57344;
  server.requests_of_full_length = 97;
  server.requests_asked = 256;
  server.tokens_per_request = 9216;
  server.shortage =
      "256 requests of full length need 2,359,296 cached tokens, the pool holds 898,779: the rest waits in the queue.";
  e.servers = {server};
  e.evidence = {"fsdp2 train step", 41, 0.8, 2.7};
  e.fit_probability = 0.03;
  e.gpus[0].fit_probability = 0.03;
  e.notes = {{Note::Level::warning,
              {"gsm8k.yaml", 31, 5, "actor.max_token_per_mb"},
              "unknown key is ignored (did you mean 'max_tokens_per_mb'?)"},
             {Note::Level::info, {}, "lengths are the longest that the job allows"}};
  e.remedies = {
      {"actor.tokens_per_micro_batch", "16384", "8192", "smaller micro-batches; about 4 % slower", Effect::speed, 37 * kGiB,
       true},
      {"actor.layout", "d4", "d2c2", "Ulysses divides the tokens of a sequence over two GPUs", Effect::speed, 9 * kGiB, false}};
  return e;
}

Estimate fitting() {
  Estimate e = overflowing();
  e.gpus[0].phases[1] = moment("actor.train", "actor", "backward", 61 * kGiB);
  std::swap(e.gpus[0], e.gpus[1]);
  e.remedies.clear();
  e.notes.clear();
  e.hosts.clear();
  e.evidence = {};
  e.fit_probability.reset();
  return e;
}

Estimate explained() {
  Estimate e = overflowing();
  e.explained = e.replayed = true;
  e.gpus[0].curve = {{"actor.forward", {30 * kGiB, 42 * kGiB, 55 * kGiB, 61 * kGiB}},
                     {"actor.backward", {97 * kGiB, 60 * kGiB, 45 * kGiB}},
                     {"actor.optimizer", {52 * kGiB}}};
  auto& worst = e.gpus[0].phases[1];
  worst.allocator_retries = 13;
  worst.usage.capacity_needed -= 2 * kGiB;
  worst.live = {{"head.logits_TV",
                 {16384, 152064},
                 DType::fp32,
                 9965666304,
                 Category::logits,
                 Pool::torch,
                 Holder::local,
                 "actor.train",
                 1},
                {"layer.mlp.gate",
                 {16384, 18944},
                 DType::bf16,
                 17381195776,
                 Category::activations,
                 Pool::torch,
                 Holder::saved_for_backward,
                 "actor.train",
                 28},
                {"context", {}, DType::bf16, 536870912, Category::context, Pool::driver, Holder::resident, "init", 1}};
  for (int i = 0; i < 20; ++i)
    worst.live.push_back(
        {"small." + std::to_string(i), {1024}, DType::int64, 8192, Category::other, Pool::torch, Holder::caller, "init", 1});
  return e;
}

Found found() {
  Found f;
  f.judged = 1843200;
  f.fitting = 512;
  for (int i = 0; i < 2; ++i) {
    Candidate c;
    c.job = job();
    c.job.roles[0].trainer.tokens_per_micro_batch = 8192 / (i + 1);
    c.estimate = fitting();
    c.changes = {{"actor.tokens_per_micro_batch", "16384", std::to_string(8192 / (i + 1)), Effect::speed}};
    c.overrides = {"actor.tokens_per_micro_batch=" + std::to_string(8192 / (i + 1))};
    c.job_file = "oomplan: 1\n";
    c.relative_step_time = 1 + 0.125 * i;
    f.best.push_back(c);
  }
  return f;
}

Found nothing() {
  Found f;
  f.judged = 48;
  f.limits = {{"actor.train", "tokens_per_micro_batch", 3 * kGiB, "already at 1024"},
              {"rollout.generate", "layout", 11 * kGiB, "4 heads cannot be cut further"}};
  f.smallest_gpus = 16;
  return f;
}

Advice advice() {
  Advice a;
  a.reading.job = job();
  a.reading.notes = {{Note::Level::warning, {"gsm8k.yaml", 3, 1, "cluster"}, "no key says which GPU it is"},
                     {Note::Level::info, {}, "only in JSON"}};
  a.estimate = overflowing();
  const LiveTensor logits{"actor.logits",
                          {16384, 152064},
                          DType::bf16,
                          2 * 16384 * 152064LL,
                          Category::logits,
                          Pool::torch,
                          Holder::saved_for_backward,
                          "actor.forward",
                          1};
  a.causes = {{"actor.backward",
               "actor 0-3",
               92 * kGiB,
               79 * kGiB,
               2 * kGiB,
               {},
               "training: backward pass, at the loss",
               "actor.log",
               {logits}},
              {"rollout.start", "rollout", 0, 0, 0, {}, "no memory is left for the KV cache", "", {}}};
  Remedy tokens = a.estimate.remedies[0], offload = a.estimate.remedies[1];
  tokens.key = "actor.mb_spec.max_tokens_per_mb";
  tokens.step_time = 1.25;
  tokens.cost = 0.25;
  tokens.patch.overrides = {"actor.mb_spec.max_tokens_per_mb=8192"};
  tokens.patch.stale = {"actor.mb_spec.max_tokens_per_mb=16384"};
  tokens.patch.file = "a: 8192\n";
  tokens.patch.diff = "--- gsm8k.yaml\n+++ gsm8k.yaml\n@@ -1 +1 @@\n-a: 16384\n+a: 8192\n";
  offload.key = "actor.fsdp.offload_params";
  offload.from = "false";
  offload.to = "true";
  offload.cost = 1;
  offload.patch.overrides = {"+actor.fsdp.offload_params=true", "allocation_mode=sglang:d4 + d2c2"};
  Remedy written = offload;
  written.patch = {{"actor.gradient_checkpointing=true"}, true, "unchanged", "", {"actor.gradient_checkpointing=false"}};
  a.remedies = {tokens, offload, written};
  a.left_out = {{Note::Level::info, {{}, 0, 0, "sync.bucket"}, "1GiB -> 128MiB would save 896.00 MiB, but no key sets it"}};
  return a;
}

}  // namespace

TEST_CASE("reports keep their shape") {
  check_golden("estimate_overflow.txt", to_text(overflowing(), job(), {}));
  check_golden("estimate_overflow_wide_unicode.txt",
               to_text(overflowing(), job(), {.colour = true, .unicode = true, .width = 120}));
  check_golden("estimate_fits.txt", to_text(fitting(), job(), {}));
  check_golden("explain.txt", to_text(explained(), job(), {}));
  check_golden("search.txt", to_text(found(), job(), {}));
  check_golden("search_nothing.txt", to_text(nothing(), job(), {}));
  check_golden("estimate_overflow.json", to_json(overflowing(), job()));
  check_golden("estimate_fits.json", to_json(fitting(), job()));
  check_golden("explain.json", to_json(explained(), job()));
  check_golden("search.json", to_json(found(), job()));
  check_golden("search_nothing.json", to_json(nothing(), job()));
  check_golden("advice.txt", to_text(advice(), {}));
  check_golden("advice.json", to_json(advice()));
  check_golden("estimate.html", to_html(overflowing(), job()));
  check_golden("error.json",
               to_json(std::vector<Problem>{
                   {.place = {"job.yaml", 14, 3, "actor.optimizer"},
                    .found = "'adamv'",
                    .expected = "adamw or sgd",
                    .nearest = "adamw",
                    .why = {}},
                   {.place = {"job.yaml", 0, 0, ""}, .found = {}, .expected = {}, .nearest = {}, .why = "is a directory"}}));
}

TEST_CASE("an empty answer is told, not divided by") {
  const Estimate empty;
  CHECK(to_text(empty, {}, {}).starts_with("fits: the job places nothing on a GPU\n"));
  CHECK(to_json(empty, Job{}).find("\"gpus\": []") != std::string::npos);
  Estimate strange;
  strange.gpus.resize(1);
  strange.gpus[0].phases.resize(1);
  strange.evidence = {"x", 1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  strange.hosts.resize(1);
  strange.servers.resize(1);
  for (const int width : {-5, 0, 1, 40, 1000})
    CHECK(!to_text(strange, {}, {.colour = true, .unicode = true, .width = width}).empty());
  const std::string json = to_json(strange, Job{});
  CHECK(json.find("nan") == std::string::npos);
  CHECK(json.find("\"error_p50_percent\": null") != std::string::npos);
  CHECK(!to_html(strange, {}).empty());
  CHECK(to_text(Advice{}, {}).find("`oomplan search` combines changes") != std::string::npos);
  CHECK(to_json(Advice{}).find("\"worst\": null") != std::string::npos);
}

TEST_CASE("a server that does not start is told before anything that fits") {
  Estimate e = fitting();
  e.servers[0].refused = true;
  e.servers[0].shortage = "no memory is left for the KV cache";
  CHECK(to_text(e, job(), {}).starts_with("does not fit: the server of rollout does not start: no memory is left"));
}

TEST_CASE("names from a file cannot steer a terminal or break out of HTML") {
  Estimate e = fitting();
  e.gpus[0].ranks = "\x1b[31mred\xff<script>\n\xc2\x9b";
  CHECK(to_text(e, {}, {}).find('\x1b') == std::string::npos);
  CHECK(to_html(e, {}).find("<script>") == std::string::npos);
  CHECK(to_json(e, Job{}).find("\xff") == std::string::npos);
}

TEST_CASE("sizes, bars and columns") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(-12 * kGiB - 220 * kMiB) == "-12.21 GiB");
  CHECK(grouped(1638400) == "1,638,400");
  CHECK(grouped(-100) == "-100");
  CHECK(grouped(999) == "999");
  CHECK(percent_text(1000, 999) == "101 %");
  CHECK(percent_text(999, 1000) == "99 %");
  CHECK(percent_text(5, 0) == "-");
  CHECK(bar(1, 2, 10, false) == "#####.....");
  CHECK(bar(3, 2, 4, false) == "###>");
  CHECK(bar(1, 1'000'000, 4, false) == "#...");
  CHECK(columns(bar(1, 3, 7, true)) == 7);
  CHECK(columns(bar(9, 3, 7, true)) == 7);
  CHECK(clipped("abcdefgh", 5) == "abc..");
  CHECK(wrapped("one two three", 9, 2) == "one two\n  three");
}
