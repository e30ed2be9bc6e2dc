// What would make a server start: single changes of its command line, each judged by an estimate.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "inference/cache_format.hpp"
#include "job/knobs.hpp"
#include "report/serve_report.hpp"
#include "report/serve_search.hpp"

namespace oomplan {
namespace {

struct Try {
  std::string key, value;
};

/// The least intrusive first: the share of the card, then what costs speed, the context, numbers, and last more GPUs.
std::vector<Try> tries(const ServeCommand& c, const ServerPlan& p) {
  std::vector<Try> out;
  const bool vllm = c.engine == EngineKind::vllm;
  const char* const share = vllm ? "gpu_memory_utilization" : "mem_fraction_static";
  for (const double f : {0.95, 0.92, 0.9, 0.88, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5})
    if (std::abs(f - p.fraction) > 0.001) out.push_back({share, fmt::format("{}", f)});
  std::stable_sort(out.begin(), out.end(), [&](const Try& a, const Try& b) {
    return std::abs(std::stod(a.value) - p.fraction) < std::abs(std::stod(b.value) - p.fraction);
  });
  for (std::int64_t n = 512; n >= 16; n /= 2)
    if (n < p.max_running) out.push_back({"max_running_requests", std::to_string(n)});
  for (std::int64_t n = 8192; n >= 1024; n /= 2)
    if (n < p.batched_tokens) out.push_back({"batched_tokens", std::to_string(n)});
  out.push_back({"enforce_eager", "true"});
  if (p.longest > 0) out.push_back({"max_model_len", std::to_string(p.longest)});
  for (std::int64_t n = p.max_model_len / 2; n >= 1024; n /= 2) out.push_back({"max_model_len", std::to_string(n)});
  out.push_back({"kv", "fp8"});
  const Layout& layout = c.reading.job.roles.at(0).server.layout;
  for (std::int64_t t = 2 * layout.tensor; t <= 16; t *= 2) out.push_back({"tensor", std::to_string(t)});
  return out;
}

bool put(Job& job, const Try& t) {
  try {
    if (t.key != "tensor") {
      set(job, "server." + t.key, t.value);
      return true;
    }
    Layout& layout = job.roles.at(0).server.layout;
    layout.tensor = std::stoll(t.value);
    const Role& role = job.roles.at(0);
    if (layout.expert > 1) layout.expert = layout.tensor * (role.engine == EngineKind::vllm ? role.server.attention_data : 1);
    job.cluster.gpus = layout.data * layout.tensor * layout.pipeline;
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Where no single change is enough: the best candidate of a search on the same number of GPUs, said in the command's own flags.
void several(const ServeCommand& c, const Catalog& catalog, ServeAnswer& out) {
  const Found found = search(c.reading.job, {}, 1, &catalog);
  if (found.best.empty()) return;
  ServeRewrite changed = rewritten(c, found.best[0].job);
  if (!changed.what.empty() && !changed.words.empty() && changed.servers == 1)
    out.changes.push_back({std::move(changed.what), std::move(changed.words)});
}

}  // namespace

ServeAnswer answer(const ServeCommand& c, const Catalog& catalog) {
  const Job& job = c.reading.job;
  const Role& role = job.roles.at(0);
  ServeAnswer out;
  const Gpu& gpu = catalog.gpu(job.cluster.gpu);
  out.figures = serve(*role.architecture, role.engine, role.server, gpu, catalog.facts());
  const Server server = with_cache_format(*role.architecture, role.engine, role.server, catalog.facts(), gpu.sm);
  const ServerModel model = server_model(*role.architecture, role.engine, server);
  out.plan = plan(model, resolve(catalog.facts(), role.engine, role.server, gpu, model), point_of(role.server));
  out.estimate = estimate(job, &catalog);
  out.estimate.notes.insert(out.estimate.notes.begin(), c.reading.notes.begin(), c.reading.notes.end());
  if (out.fits()) return out;
  constexpr std::size_t kMost = 4;
  std::vector<std::string> done;  // one change of a key is enough
  for (const Try& t : tries(c, out.plan)) {
    if (out.changes.size() == kMost) break;
    if (std::find(done.begin(), done.end(), t.key) != done.end()) continue;
    Job changed = job;
    if (!put(changed, t)) continue;
    try {
      if (!estimate(changed, &catalog).fits()) continue;
    } catch (const InputError&) {
      continue;
    }
    auto words = with_flag(c, t.key, t.value);
    if (words.empty()) continue;
    done.push_back(t.key);
    out.changes.push_back({fmt::format("{} {}", t.key, t.value), std::move(words)});
  }
  if (out.changes.empty()) several(c, catalog, out);
  return out;
}

}  // namespace oomplan
