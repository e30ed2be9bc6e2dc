// Reports as JSON. Fixed order of keys, integers for bytes with the unit in the key, no time stamp, no NaN: the same input gives
// the same bytes. The shapes are written down in docs/schema and checked by a test.
#include <cmath>

#include <nlohmann/json.hpp>

#include "job/names.hpp"
#include "report/in_service.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) { return json_text(json) + "\n"; }

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
void put_probability(Json& out, const std::optional<double>& probability) {
  out["fit_probability"] = probability ? number(*probability) : Json(nullptr);
}

/// Keys are left out when they are unknown.
void put_place(Json& to, const Place& place) {
  if (!place.file.empty()) to["file"] = place.file;
  if (place.line > 0) to["line"] = place.line;
  if (place.column > 0) to["column"] = place.column;
  if (!place.path.empty()) to["path"] = place.path;
}

Json live_json(const LiveTensor& live) {
  Json out;
  out["name"] = live.name;
  out["shape"] = live.shape;
  out["dtype"] = std::string(name(live.dtype));
  out["bytes"] = live.bytes;
  out["count"] = live.count;
  out["category"] = std::string(name(live.category));
  out["pool"] = std::string(name(live.pool));
  out["kept_by"] = std::string(name(live.holder));
  out["allocated_in"] = live.phase;
  return out;
}

Json categories_json(const std::vector<Bytes>& by_category) {
  Json out = Json::object();
  for (std::size_t i = 0; i < by_category.size() && i < static_cast<std::size_t>(kCategories); ++i)
    if (by_category[i] != 0) out[std::string(name(static_cast<Category>(i)))] = by_category[i];
  return out;
}
Json processes_json(const std::vector<ProcessShare>& processes) {
  Json out = Json::array();
  for (const auto& process : processes)
    out.push_back(Json{
        {"roles", process.roles}, {"device_bytes", process.device}, {"by_category_bytes", categories_json(process.by_category)}});
  return out;
}

Json moment_json(const Moment& moment, bool explained) {
  Json out;
  out["phase"] = moment.phase;
  out["role"] = moment.role;
  out["step"] = moment.step;
  out["allocated_bytes"] = moment.usage.allocated;
  out["reserved_bytes"] = moment.usage.reserved;
  out["device_bytes"] = moment.usage.device;
  out["capacity_needed_bytes"] = moment.usage.capacity_needed;
  out["upper_bound"] = moment.bound;
  out["by_category_bytes"] = categories_json(moment.usage.by_category);
  out["other_processes"] = processes_json(moment.beside);
  if (explained) {
    out["allocator_retries_per_step"] = moment.allocator_retries;
    Json live = Json::array();
    for (const auto& tensor : moment.live) live.push_back(live_json(tensor));
    out["live"] = std::move(live);
  }
  return out;
}

Json gpu_json(const GpuAnswer& gpu, bool explained) {
  Json out;
  out["ranks"] = gpu.ranks;
  out["gpu"] = gpu.gpu;
  out["gpus"] = gpu.gpus;
  out["usable_bytes"] = gpu.usable;
  out["fits"] = gpu.fits();
  put_probability(out, gpu.fit_probability);
  if (!gpu.phases.empty()) {
    const Moment& worst = gpu.phases[gpu.worst];
    out["headroom_bytes"] = gpu.usable - worst.usage.capacity_needed;
    out["worst"] = worst.phase;
  }
  Json phases = Json::array();
  for (const auto& phase : gpu.phases) phases.push_back(moment_json(phase, explained));
  out["phases"] = std::move(phases);
  if (explained) {
    Json curve = Json::array();
    for (const auto& stretch : gpu.curve) curve.push_back(Json{{"phase", stretch.phase}, {"live_bytes", stretch.levels}});
    out["curve"] = std::move(curve);
  }
  return out;
}

Json host_json(const HostAnswer& host) {
  Json out;
  out["nodes"] = host.nodes;
  out["usable_bytes"] = host.usable > 0 ? Json(host.usable) : Json(nullptr);
  if (!host.phases.empty()) out["worst"] = host.phases[host.worst].first;
  Json phases = Json::array();
  for (const auto& [phase, bytes] : host.phases) phases.push_back(Json{{"phase", phase}, {"host_bytes", bytes}});
  out["phases"] = std::move(phases);
  return out;
}

Json server_json(const ServerAnswer& server) {
  Json out;
  out["role"] = server.role;
  out["weights_bytes"] = server.weights;
  out["kv_pool_bytes"] = server.kv_pool;
  out["other_bytes"] = server.non_kv;
  out["kv_bytes_per_token"] = server.kv_bytes_per_token;
  out["kv_tokens_per_replica"] = server.kv_tokens;
  out["tokens_per_request"] = server.tokens_per_request;
  out["requests_of_full_length_per_replica"] = server.requests_of_full_length;
  out["requests_asked_per_replica"] = server.requests_asked > 0 ? Json(server.requests_asked) : Json(nullptr);
  out["in_service"] = server.in_service ? in_service_json(*server.in_service) : Json(nullptr);
  out["refused"] = server.refused;
  out["shortage"] = server.shortage.empty() ? Json(nullptr) : Json(server.shortage);
  return out;
}

Json remedy_json(const Remedy& remedy) {
  Json out;
  out["key"] = remedy.key;
  out["from"] = remedy.from;
  out["to"] = remedy.to;
  out["effect"] = std::string(spelling(remedy.effect));
  out["gain_bytes"] = remedy.gain;
  out["fits"] = remedy.fits;
  out["text"] = remedy.text;
  return out;
}

Json changes_json(const std::vector<Change>& changes) {
  Json out = Json::array();
  for (const auto& change : changes)
    out.push_back(
        Json{{"key", change.key}, {"from", change.from}, {"to", change.to}, {"effect", std::string(spelling(change.effect))}});
  return out;
}
void put_patch(Json& to, const Patch& patch) {
  to["overrides"] = patch.overrides;
  to["diff"] = patch.diff.empty() ? Json(nullptr) : Json(patch.diff);
  to["stale"] = patch.stale;
}
Json patched_json(const Remedy& remedy) {
  Json out = remedy_json(remedy);
  out["step_time"] = remedy.step_time ? number(*remedy.step_time) : Json(nullptr);
  put_patch(out, remedy.patch);
  return out;
}
Json together_json(const Together& together) {
  Json out;
  out["changes"] = changes_json(together.changes);
  out["effect"] = std::string(spelling(together.effect));
  out["gain_bytes"] = together.gain;
  put_probability(out, together.fit_probability);
  out["step_time"] = together.step_time ? number(*together.step_time) : Json(nullptr);
  out["texts"] = together.texts;
  put_patch(out, together.patch);
  return out;
}
Json hardware_json(const std::optional<Hardware>& hardware) {
  if (!hardware) return nullptr;
  Json out;
  out["gpu"] = hardware->gpu;
  out["gpus"] = hardware->gpus;
  out["overrides"] = hardware->patch.overrides;
  return out;
}

Json cause_json(const Cause& cause) {
  Json out;
  out["phase"] = cause.phase;
  out["ranks"] = cause.ranks;
  out["needed_bytes"] = cause.needed;
  out["usable_bytes"] = cause.usable;
  out["other_processes_bytes"] = cause.others;
  out["other_processes"] = processes_json(cause.beside);
  out["text"] = cause.text;
  out["log"] = cause.log.empty() ? Json(nullptr) : Json(cause.log);
  Json tensors = Json::array();
  for (const auto& tensor : cause.tensors) tensors.push_back(live_json(tensor));
  out["tensors"] = std::move(tensors);
  return out;
}

Json note_json(const Note& note) {
  Json out;
  out["level"] = note.level == Note::Level::warning ? "warning" : "info";
  put_place(out, note.place);
  out["text"] = note.text;
  return out;
}

Json estimate_json(const Estimate& estimate) {
  Json out;
  out["fits"] = estimate.fits();
  put_probability(out, estimate.fit_probability);
  out["verdict"] = verdict(estimate);
  Json evidence;
  evidence["like"] = estimate.evidence.like;
  evidence["measurements"] = estimate.evidence.measurements;
  evidence["error_p50_percent"] =
      estimate.evidence.measurements > 0 ? number(estimate.evidence.error_p50_percent) : Json(nullptr);
  evidence["error_p95_percent"] =
      estimate.evidence.measurements > 0 ? number(estimate.evidence.error_p95_percent) : Json(nullptr);
  out["evidence"] = std::move(evidence);
  Json gpus = Json::array(), hosts = Json::array(), servers = Json::array(), remedies = Json::array(), notes = Json::array();
  for (const auto& gpu : estimate.gpus) gpus.push_back(gpu_json(gpu, estimate.explained));
  for (const auto& host : estimate.hosts) hosts.push_back(host_json(host));
  for (const auto& server : estimate.servers) servers.push_back(server_json(server));
  for (const auto& remedy : estimate.remedies) remedies.push_back(remedy_json(remedy));
  for (const auto& note : estimate.notes) notes.push_back(note_json(note));
  out["gpus"] = std::move(gpus);
  out["hosts"] = std::move(hosts);
  out["servers"] = std::move(servers);
  out["remedies"] = std::move(remedies);
  out["notes"] = std::move(notes);
  return out;
}

Json heading(const char* schema) {
  Json out;
  out["schema"] = schema;
  out["oomplan_version"] = std::string(version());
  return out;
}

Json assumed_json(const Job& job) {
  Json out = Json::array();
  for (const auto& row : assumed(job))
    out.push_back(Json{{"key", row.key}, {"value", row.value}, {"because", row.origin->because}, {"source", row.origin->source}});
  return out;
}

}  // namespace

Json estimate_object(const Estimate& estimate, const Job& job) {
  Json out = heading("oomplan.estimate/1");
  out["job"] = job.name;
  out["replayed"] = estimate.replayed;
  out.update(estimate_json(estimate));
  out["assumed"] = assumed_json(job);
  return out;
}
std::string to_json(const Estimate& estimate, const Job& job) { return dumped(estimate_object(estimate, job)); }

std::string to_json(const Found& found, const Job& job) {
  Json out = heading("oomplan.search/1");
  out["job"] = job.name;
  out["judged"] = found.judged;
  out["fitting"] = found.fitting;
  out["min_probability"] = number(found.min_probability);
  out["left_out"] = Json{{"fitting", found.unlikely},
                         {"relative_step_time", found.unlikely_step_time > 0 ? number(found.unlikely_step_time) : Json(nullptr)}};
  out["interrupted"] = found.interrupted;
  out["smallest_gpus"] = found.smallest_gpus ? Json(*found.smallest_gpus) : Json(nullptr);
  if (const auto& now = found.as_it_stands; now)
    out["as_it_stands"] =
        Json{{"relative_step_time", now->relative_step_time > 0 ? number(now->relative_step_time) : Json(nullptr)},
             {"estimate", estimate_json(now->estimate)}};
  Json best = Json::array();
  for (const auto& candidate : found.best) {
    Json row;
    row["relative_step_time"] = number(candidate.relative_step_time);
    row["relative_throughput"] = candidate.relative_throughput > 0 ? number(candidate.relative_throughput) : Json(nullptr);
    row["changes"] = changes_json(candidate.changes);
    row["overrides"] = candidate.overrides;
    row["job_file"] = candidate.job_file.empty() ? Json(nullptr) : Json(candidate.job_file);
    row["diff"] = candidate.diff.empty() ? Json(nullptr) : Json(candidate.diff);
    row["estimate"] = estimate_json(candidate.estimate);
    best.push_back(std::move(row));
  }
  out["best"] = std::move(best);
  Json limits = Json::array();
  for (const auto& limit : found.limits)
    limits.push_back(Json{{"phase", limit.phase}, {"axis", limit.axis}, {"missing_bytes", limit.missing}, {"text", limit.text}});
  out["limits"] = std::move(limits);
  return dumped(out);
}

std::string to_json(const Advice& advice) {
  Json out = heading("oomplan.advice/1");
  out["job"] = advice.reading.job.name;
  out["fits"] = advice.estimate.fits();
  put_probability(out, advice.estimate.fit_probability);
  out["verdict"] = verdict(advice.estimate);
  const GpuAnswer* gpu = tightest(advice.estimate);
  out["worst"] = gpu == nullptr ? Json(nullptr) : Json(gpu->phases[gpu->worst].phase);
  Json causes = Json::array(), remedies = Json::array(), left_out = Json::array(), notes = Json::array();
  for (const auto& cause : advice.causes) causes.push_back(cause_json(cause));
  Json other_tasks = Json::array();
  for (const auto& remedy : advice.remedies) remedies.push_back(patched_json(remedy));
  for (const auto& remedy : advice.other_tasks) other_tasks.push_back(patched_json(remedy));
  for (const auto& note : advice.left_out) left_out.push_back(Json{{"key", note.place.path}, {"text", note.text}});
  for (const auto& note : advice.reading.notes) notes.push_back(note_json(note));
  out["causes"] = std::move(causes);
  out["remedies"] = std::move(remedies);
  out["together"] = advice.together ? together_json(*advice.together) : Json(nullptr);
  out["larger_gpu"] = hardware_json(advice.larger_gpu);
  out["more_gpus"] = hardware_json(advice.more_gpus);
  out["other_tasks"] = std::move(other_tasks);
  out["left_out"] = std::move(left_out);
  out["notes"] = std::move(notes);
  return dumped(out);
}

std::string to_json(const std::vector<Problem>& problems) {
  Json out = heading("oomplan.error/1");
  Json rows = Json::array();
  out["kind"] = name(InputError(problems).kind());
  for (const auto& problem : problems) {
    Json row = Json::object();
    put_place(row, problem.place);
    if (!problem.found.empty()) row["found"] = problem.found;
    if (!problem.expected.empty()) row["expected"] = problem.expected;
    if (!problem.nearest.empty()) row["nearest"] = problem.nearest;
    if (!problem.why.empty()) row["why"] = problem.why;
    row["kind"] = name(problem.kind);
    row["text"] = to_text(problem);
    rows.push_back(std::move(row));
  }
  out["problems"] = std::move(rows);
  return dumped(out);
}

}  // namespace oomplan
