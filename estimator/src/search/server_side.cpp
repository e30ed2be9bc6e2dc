#include "search/server_side.hpp"

#include <algorithm>

#include "estimate/role_program.hpp"
#include "job/role_names.hpp"
#include "job/stored_weights.hpp"

namespace oomplan {

bool is_searched_server(const Role& r) { return r.serves() && !does_as_its_engine(r.kind); }

ServerSide::ServerSide(const Job& job, const Catalog& catalog, const std::vector<RoleRun>& runs)
    : job_(job), gpu_(catalog.gpu(job.cluster.gpu)) {
  for (const auto& r : runs)
    if (is_searched_server(*r.role)) run_ = &r;
  if (run_ == nullptr) return;
  cost_ = cost_of(*run_->role->architecture);
  Server fp8 = run_->role->server;
  fp8.kv = DType::fp8;
  fp8.as_stored = serves_as_stored(*run_->role);
  fp8_cache_ = server_model(*run_->role->architecture, run_->role->engine, fp8);
  const Timeline all = timeline_of(job);
  const auto mine = [&](const Step& s) { return s.role == run_->index; };
  std::copy_if(all.init.begin(), all.init.end(), std::back_inserter(timeline_.init), mine);
  std::copy_if(all.iteration.begin(), all.iteration.end(), std::back_inserter(timeline_.iteration), mine);
}

void ServerSide::put(const ServerChoice& c, Server& s) {
  s.layout.tensor = c.tensor;
  s.layout.data = c.gpus / (c.tensor * std::max<std::int64_t>(1, s.layout.pipeline));
  s.memory_fraction = c.fraction;
  s.max_running = c.max_running;
  s.kv = c.kv;
}

/// One rank's turns. Of several stages every turn counts with the stage that needs most then.
void ServerSide::fold(const ServerPlan& p, const SyncPlan* receive, ServerVerdict& v) const {
  PeakRecorder r;
  ProcessState state;
  ServerProgram<PeakRecorder> program(r, p, receive, [](PhaseKind) {});
  std::size_t turn = 0;
  const auto play = [&](const Step& s) {
    r = PeakRecorder();
    program.step(s.kind);
    if (v.turns.size() <= turn) v.turns.emplace_back();
    auto& t = v.turns[turn++];
    if (r.span().events > 0) t.need = std::max(t.need, state.level + r.span().peak);
    state.pass(r.span());
    t.held = std::max(t.held, state.held());
    v.need = std::max(v.need, t.need);
  };
  for (const auto& s : timeline_.init) play(s);
  for (int i = 0; i < 2; ++i)
    for (const auto& s : timeline_.iteration) play(s);
}

ServerVerdict ServerSide::judge(const ServerChoice& c, Bytes occupied, const SyncPlan* receive) const {
  const Server& own = run_->role->server;
  const std::int64_t stages = std::max<std::int64_t>(1, own.layout.pipeline);
  const std::int64_t replicas = std::max<std::int64_t>(1, c.gpus / (c.tensor * stages));
  const std::int64_t groups = replicas * run_->role->cache_groups() / std::max<std::int64_t>(1, own.layout.data);
  const std::int64_t asked = ceil_div(own.concurrency, groups);
  ServerPoint point = run_->point;
  point.tensor = c.tensor;
  point.fraction = c.fraction;
  point.max_running = c.max_running;
  point.occupied = job_.cluster.others + occupied;
  point.sequences = asked;
  ServerVerdict v;
  v.choice = c;
  v.turns.reserve(timeline_.init.size() + 2 * timeline_.iteration.size());
  ServerPlan smallest;  // of the stage with the fewest tokens: blocks are the minimum over ranks
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    point.stage = stage;
    const ServerPlan p = plan(c.kv == run_->role->server.kv ? run_->model : fp8_cache_, run_->facts, point);
    if (p.refusal != ServerRefusal::none && v.refusal == ServerRefusal::none) {
      v.refusal = p.refusal;
      v.missing = p.missing;
    }
    fold(p, receive, v);
    if (stage == 0 || p.kv_tokens < smallest.kv_tokens) smallest = p;
  }
  const ServerPlan& p = smallest;
  const std::int64_t tokens = std::max<std::int64_t>(1, job_.prompt_tokens + job_.response_tokens);
  v.requests = p.token_bytes > 0 ? p.kv_tokens / tokens : p.full_requests;
  if (p.state_slots > 0) v.requests = std::min(v.requests, p.state_slots);
  const std::int64_t running = std::max<std::int64_t>(1, std::min(v.requests, p.max_running));
  v.shortage = asked > running;
  GenerateLoad load;
  load.replicas = groups;
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

Bytes need_together(const std::vector<Visit>& trainers, const ServerVerdict& server) {
  const auto beside = [](Bytes mine, Bytes others) { return mine == 0 ? 0 : mine + others; };  // 0: nobody was active
  Bytes need = 0, held = 0;
  for (std::size_t i = 0; i < server.turns.size(); ++i) {
    need = std::max({need, beside(trainers[i].need, held), beside(server.turns[i].need, trainers[i].held)});
    held = server.turns[i].held;
  }
  return std::max(need, beside(trainers.back().need, held));
}

}  // namespace oomplan
