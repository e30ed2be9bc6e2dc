// What `serve` and a search of a server print, against files in tests/golden. The answers are made by hand here.
// OOMPLAN_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "report/serve_report.hpp"

namespace {

using namespace oomplan;

void check_serve_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(OOMPLAN_SOURCE_DIR) + "/tests/golden/" + name;
  if (std::getenv("OOMPLAN_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << text;
  std::ostringstream expected;
  expected << std::ifstream(path, std::ios::binary).rdbuf();
  INFO(path);
  CHECK(expected.str() == text);
}

GpuAnswer server_gpu(Bytes needed) {
  GpuAnswer out;
  out.ranks = "server 0-1";
  out.gpu = "H100-80GB";
  out.usable = 79 * kGiB;
  Moment m;
  m.phase = "server.generate";
  m.role = "server";
  m.usage.capacity_needed = m.usage.device = needed;
  out.phases = {m};
  return out;
}

InService busy() {
  InService s;
  s.prompt = 1024;
  s.response = 8192;
  s.samples = 8;
  s.shared_tokens = 1008;
  s.at_once = 200;
  s.to_the_end = 60;
  s.given_up = 140;
  s.waiting = 56;
  s.full_at = 2050;
  s.recomputed_tokens = 630000;
  s.tokens_wanted = 1667000;
  s.cause = "max_running_requests";
  return s;
}

ServerAnswer served_answer() {
  ServerAnswer s;
  s.role = "server";
  s.weights = 15 * kGiB;
  s.kv_pool = 40 * kGiB;
  s.non_kv = 9 * kGiB;
  s.kv_tokens = 436800;
  s.kv_bytes_per_token = 98304;
  s.requests_of_full_length = 47;
  s.requests_asked = 256;
  s.tokens_per_request = 9216;
  s.in_service = busy();
  return s;
}

ServeCommand command_of(EngineKind engine) {
  ServeCommand c;
  c.engine = engine;
  c.words = {engine == EngineKind::vllm ? "vllm" : "sglang", "serve", "org/model", "--port", "8000"};
  Role role;
  role.kind = RoleKind::server;
  role.name = "server";
  role.engine = engine;
  role.server.version = engine == EngineKind::vllm ? "0.19.1" : "0.5.10";
  role.server.layout.tensor = 2;
  c.reading.job.roles = {role};
  c.reading.job.cluster.gpu = "H100-80GB";
  c.reading.job.cluster.gpus = 2;
  return c;
}

ServeAnswer answer_of(bool fits) {
  ServeAnswer a;
  a.figures.weights = 15 * kGiB;
  a.figures.kv_pool = fits ? 40 * kGiB : 3 * kGiB;
  a.figures.kv_tokens = fits ? 436800 : 32768;
  a.figures.profile_peak = 5 * kGiB;
  a.figures.graphs = kGiB;
  a.figures.requested = 71 * kGiB;
  a.figures.request_bytes = 4 * kGiB;
  a.figures.longest = fits ? 0 : 30000;
  a.plan.fraction = 0.9;
  a.plan.max_model_len = 40960;
  a.plan.max_running = 256;
  a.estimate.gpus = {server_gpu(fits ? 74 * kGiB : 85 * kGiB)};
  a.estimate.replayed = true;
  a.estimate.fit_probability = fits ? 0.93 : 0.01;
  if (fits) {
    a.estimate.servers = {served_answer()};
  } else {
    a.figures.refusal = "the engine refuses to start: one request of 40960 tokens needs 4.00 GiB of cache, the pool has 3.00 GiB";
    a.changes = {{"max_model_len 30000", {"vllm", "serve", "org/model", "--port", "8000", "--max-model-len", "30000"}}};
  }
  a.estimate.notes = {
      {Note::Level::warning, {"command line", 1, 23, "--port"}, "not described: taken as without effect on memory"},
      {Note::Level::info, {"command line", 0, 0, "--engine-version"}, "not said: 0.24.0"}};
  return a;
}

}  // namespace

TEST_CASE("what serve prints, for both engines, as text and as JSON") {
  const ServeCommand vllm = command_of(EngineKind::vllm), sglang = command_of(EngineKind::sglang);
  check_serve_golden("serve.txt", to_text(answer_of(true), vllm, {}));
  check_serve_golden("serve_refused.txt", to_text(answer_of(false), vllm, {}));
  check_serve_golden("serve_sglang.txt", to_text(answer_of(true), sglang, {}));
  check_serve_golden("serve.json", to_json(answer_of(true), vllm));
}

TEST_CASE("what a search of a server prints, and an estimate with requests in service") {
  Found found;
  found.judged = 1200;
  found.fitting = 90;
  Job job = command_of(EngineKind::vllm).reading.job;
  for (int i = 0; i < 2; ++i) {
    Candidate c;
    c.job = job;
    c.job.roles[0].server.layout.data = 2 - i;
    c.job.roles[0].server.layout.tensor = 1 + i;
    c.estimate.gpus = {server_gpu((74 - i) * kGiB)};
    c.estimate.servers = {served_answer()};
    c.estimate.replayed = true;
    c.changes = {{"server.layout", "t2", i == 0 ? "d2" : "t2", Effect::free},
                 {"server.gpu_memory_utilization", "0.9", "0.94", Effect::speed}};
    c.overrides = {"server.layout=d2", "server.gpu_memory_utilization=0.94"};
    c.relative_throughput = i == 0 ? 1 : 0.83;
    c.relative_step_time = i == 0 ? 1 : 1.2;
    found.best.push_back(c);
  }
  check_serve_golden("search_serving.txt", to_text(found, job, {}));
  check_serve_golden("estimate_in_service.txt", to_text(found.best[0].estimate, job, {}));
}
