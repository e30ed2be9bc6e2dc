#include "search/server_side.hpp"

#include <algorithm>

#include "estimate/role_program.hpp"

namespace oomplan {

ServerSide::ServerSide(const Job& job, const Catalog& catalog, const std::vector<RoleRun>& runs) : job_(job), gpu_(catalog.gpu(job.cluster.gpu)) {
  for (const auto& r : runs)
    if (r.role->serves()) run_ = &r;
  if (run_ == nullptr) return;
  cost_ = cost_of(*run_->role->architecture);
  fp8_cache_ = server_model(*run_->role->architecture, run_->role->engine, run_->role->server.weights, DType::fp8);
}

void ServerSide::put(const ServerChoice& c, Server& s) {
  s.layout.tensor = c.tensor;
  s.layout.data = c.gpus / (c.tensor * std::max<std::int64_t>(1, s.layout.pipeline));
  s.memory_fraction = c.fraction;
  s.max_running = c.max_running;
  s.kv = c.kv;
}

ServerVerdict ServerSide::judge(const ServerChoice& c, Bytes occupied) {
  const Server& own = run_->role->server;
  const std::int64_t replicas = std::max<std::int64_t>(1, c.gpus / (c.tensor * std::max<std::int64_t>(1, own.layout.pipeline)));
  const std::int64_t asked = ceil_div(own.concurrency, replicas);
  ServerPoint point = run_->point;
  point.tensor = c.tensor;
  point.fraction = c.fraction;
  point.max_running = c.max_running;
  point.occupied = job_.cluster.others + occupied;
  point.sequences = asked;
  const ServerPlan p = plan(c.kv == DType::fp8 ? fp8_cache_ : run_->model, run_->facts, point);
  ServerVerdict v;
  v.choice = c;
  v.refusal = p.refusal;
  v.missing = p.missing;
  PeakRecorder r;
  const auto sites = make_sites(r, p);
  record(r, p, sites, ServerPhase::load);
  record(r, p, sites, ServerPhase::start);
  record(r, p, sites, ServerPhase::generate);
  if (run_->receive) record_receive(r, *run_->receive);
  v.need = r.span().peak;
  record(r, p, sites, ServerPhase::sleep);
  v.asleep = r.span().net - r.span().cached + r.span().tail;
  const std::int64_t tokens = std::max<std::int64_t>(1, job_.prompt_tokens + job_.response_tokens);
  v.requests = p.token_bytes > 0 ? p.kv_tokens / tokens : p.full_requests;
  if (p.state_slots > 0) v.requests = std::min(v.requests, p.state_slots);
  const std::int64_t running = std::max<std::int64_t>(1, std::min(v.requests, p.max_running));
  v.shortage = asked > running;
  GenerateLoad load;
  load.replicas = replicas;
  load.tensor = c.tensor;
  load.sequences = std::max<std::int64_t>(1, job_.sequences_per_step);
  load.prompt = job_.prompt_tokens;
  load.response = std::max<std::int64_t>(1, job_.response_tokens);
  load.running = asked > 0 ? std::min(running, asked) : running;
  load.weights = p.weights;
  load.token_bytes = p.token_bytes;
  load.eager = own.eager;
  v.seconds = generate_seconds(cost_, load, gpu_);
  return v;
}

}  // namespace oomplan
