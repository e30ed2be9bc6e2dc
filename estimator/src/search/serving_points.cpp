#include "search/serving_points.hpp"

#include <algorithm>

#include <oomplan/units/errors.hpp>

#include "inference/cache_format.hpp"
#include "job/validate_server.hpp"
#include "layout/rules.hpp"
#include "search/axes.hpp"

namespace oomplan {
namespace {

template <class T>
void include_value(std::vector<T>& values, const T& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

}  // namespace

ServingPoints::ServingPoints(const Job& job, const Space& space, const Catalog& catalog)
    : job_(job), space_(space), role_(job.roles[0]), own_(role_.server), gpu_(catalog.gpu(job.cluster.gpu)) {
  make_variants(catalog);
}

void ServingPoints::add(const Catalog& catalog, DType weights, bool as_stored, std::optional<DType> kv, int changes) {
  Server s = own_;
  s.weights = weights;
  s.as_stored = as_stored && role_.kind == RoleKind::server;
  s.kv = kv;
  try {
    ServingVariant v{weights,
                     kv,
                     as_stored,
                     server_model(*role_.architecture, role_.engine,
                                  with_cache_format(*role_.architecture, role_.engine, s, catalog.facts(), gpu_.sm)),
                     {},
                     changes};
    v.facts = resolve(catalog.facts(), role_.engine, s, catalog.gpu(job_.cluster.gpu), v.model);
    variants_.push_back(std::move(v));
  } catch (const InputError&) {  // the engine has no such format
    if (changes == 0) throw;
  }
}

/// An fp8 cache and weights converted to fp8 only where numerics may change.
void ServingPoints::make_variants(const Catalog& catalog) {
  add(catalog, own_.weights, own_.as_stored, own_.kv, 0);
  const bool cache = variants_[0].model.kv != DType::fp8 && free_to(Effect::numerics, "kv");
  const bool weights =
      own_.weights != DType::fp8 && role_.architecture->quantization.method.empty() && free_to(Effect::numerics, "weights");
  if (cache) add(catalog, own_.weights, own_.as_stored, DType::fp8, 1);
  if (weights) add(catalog, DType::fp8, false, own_.kv, 1);
  if (cache && weights) add(catalog, DType::fp8, false, DType::fp8, 2);
}

std::vector<double> ServingPoints::fractions() const {
  if (own_.kv_cache_bytes > 0 || !free_to(Effect::speed, fraction_key())) return {own_.memory_fraction};
  std::vector<double> out;
  if (own_.memory_fraction > 0) out.push_back(own_.memory_fraction);
  for (int percent = 96; percent >= 30; percent -= percent > 70 ? 1 : 5) include_value(out, percent / 100.0);
  std::sort(out.rbegin(), out.rend());
  return out;
}

Job ServingPoints::job_of(const ServingPoint& p) const {
  Job out = job_;
  Server& s = out.roles[0].server;
  const ServingVariant& v = variants_[p.variant];
  s.layout.tensor = p.tensor;
  s.layout.pipeline = p.pipeline;
  s.layout.expert = p.expert;
  s.layout.data = p.data;
  s.attention_data = p.attention_data;
  out.cluster.gpus = p.tensor * p.pipeline * p.data;
  s.memory_fraction = p.fraction;
  s.max_running = p.max_running;
  s.batched_tokens = p.batched;
  s.max_model_len = p.max_model_len;
  s.eager = p.eager;
  s.kv = v.kv;
  s.weights = v.weights;
  s.as_stored = v.as_stored;
  return out;
}

int ServingPoints::changes_of(const ServingPoint& p) const {
  const Layout& l = own_.layout;
  return variants_[p.variant].changes +
         (p.tensor != l.tensor || p.pipeline != l.pipeline || p.expert != l.expert || p.data != l.data ||
                  p.attention_data != own_.attention_data
              ? 1
              : 0) +
         (p.fraction != own_.memory_fraction ? 1 : 0) + (p.max_running != own_.max_running ? 1 : 0) +
         (p.batched != own_.batched_tokens ? 1 : 0) + (p.max_model_len != own_.max_model_len ? 1 : 0) +
         (p.eager != own_.eager ? 1 : 0);
}

const char* ServingPoints::fraction_key() const {
  return role_.engine == EngineKind::vllm ? "gpu_memory_utilization" : "mem_fraction_static";
}
bool ServingPoints::free_to(Effect effect, const char* knob) const {
  return space_.allow >= effect && !held(space_, &role_, knob);
}

std::vector<ServingPoint> ServingPoints::layouts(std::int64_t gpus) const {
  std::vector<ServingPoint> out;
  const bool vllm = role_.engine == EngineKind::vllm;
  const auto put = [&](std::int64_t tensor, std::int64_t pipeline, std::int64_t expert, std::int64_t attention_data) {
    ServingPoint p;
    p.tensor = tensor;
    p.pipeline = pipeline;
    p.expert = expert;
    p.data = gpus / (tensor * pipeline);
    p.attention_data = attention_data;
    p.groups = p.data * (vllm ? 1 : attention_data);
    if (runs(p)) out.push_back(p);
  };
  if (held(space_, &role_, "layout")) {
    put(own_.layout.tensor, own_.layout.pipeline, own_.layout.expert, own_.attention_data);
    return out;
  }
  const Mixer& m = role_.architecture->runs.front().layer.mixer;
  const ModelShape shape{m.heads, m.kv_heads, 0, role_.architecture->layers()};
  const std::int64_t node = std::max<std::int64_t>(1, job_.cluster.gpus_per_node);
  for (const auto tensor : tensor_degrees(std::min(gpus, node), shape))
    for (std::int64_t pipeline = 1; pipeline <= std::min<std::int64_t>(8, role_.architecture->layers()); pipeline *= 2) {
      if (gpus % (tensor * pipeline) != 0) continue;
      put(tensor, pipeline, 1, 1);
      if (!variants_[0].model.moe) continue;
      if (tensor > 1) put(tensor, pipeline, tensor, 1);
      if (held(space_, &role_, "attention_data")) continue;
      const std::int64_t groups = vllm ? gpus / (tensor * pipeline) : tensor;  // all replicas one server; one rank a group
      if (groups == 1) continue;
      put(tensor, pipeline, 1, groups);
      put(tensor, pipeline, vllm ? tensor * groups : tensor, groups);
    }
  return out;
}

/// What the engine itself refuses of the layout is no candidate.
bool ServingPoints::runs(const ServingPoint& p) const {
  if (own_.exchange != ExpertExchange::collectives && p.expert != own_.layout.expert) return false;  // its buffers are of them
  Role role = role_;
  role.server.layout.tensor = p.tensor;
  role.server.layout.pipeline = p.pipeline;
  role.server.layout.expert = p.expert;
  role.server.layout.data = p.data;
  role.server.attention_data = p.attention_data;
  return server_problems(role, gpu_).empty();
}

std::vector<bool> ServingPoints::eagers() const {
  if (own_.eager || !free_to(Effect::speed, "enforce_eager")) return {own_.eager};
  return {false, true};
}
/// A context that the stated requests do not need may be cut; below that only where semantics may change.
std::vector<std::int64_t> ServingPoints::lengths() const {
  std::vector<std::int64_t> out{own_.max_model_len};
  const std::int64_t asked = job_.prompt_tokens + job_.response_tokens;
  const std::int64_t full = own_.max_model_len > 0 ? own_.max_model_len : role_.architecture->max_positions;
  if (held(space_, &role_, "max_model_len")) return out;
  if (asked > 0 && own_.max_model_len == 0 && round_up(asked, 1024) < full) include_value(out, round_up(asked, 1024));
  if (space_.allow >= Effect::semantics)
    for (std::int64_t n = full / 2; n >= std::max<std::int64_t>(asked, 2048); n /= 2) include_value(out, n);
  return out;
}
/// SGLang's setting is of all groups of data-parallel attention together.
std::vector<std::int64_t> ServingPoints::runnings(const ServingPoint& layout) const {
  std::vector<std::int64_t> out{own_.max_running};
  if (!free_to(Effect::speed, "max_running_requests")) return out;
  for (const std::int64_t n : {16, 64, 256, 1024}) include_value(out, n);
  if (own_.concurrency > 0) include_value(out, ceil_div(own_.concurrency, layout.groups) * layout.groups / layout.data);
  return out;
}
std::vector<std::int64_t> ServingPoints::batches() const {
  std::vector<std::int64_t> out{own_.batched_tokens};
  if (!free_to(Effect::speed, "batched_tokens")) return out;
  for (const std::int64_t n : {2048, 4096, 8192, 16384}) include_value(out, n);
  return out;
}

/// The engines themselves refuse batches of fewer tokens than requests, and pages that do not divide a chunk.
bool ServingPoints::allowed(const ServingPoint& p) const {
  if (p.batched == 0) return true;
  if (role_.engine == EngineKind::vllm) return p.max_running <= p.batched;
  return own_.page_tokens == 0 || p.batched % own_.page_tokens == 0;
}

}  // namespace oomplan
