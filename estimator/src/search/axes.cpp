#include "search/axes.hpp"

#include <algorithm>

#include "job/workload.hpp"
#include "layout/rules.hpp"

namespace oomplan {
namespace {

template <class T>
void include(std::vector<T>& values, const T& own) {
  if (std::find(values.begin(), values.end(), own) == values.end()) values.push_back(own);
}

std::int64_t longest(const Job& job) { return job.prompt_tokens + job.response_tokens; }

std::vector<std::int64_t> token_budgets(const Job& job, const Role& role) {
  const Trainer& t = role.trainer;
  std::vector<std::int64_t> out;
  // A sequence is never cut: the budget is at least the longest one.
  for (std::int64_t k = 1; k <= 128; k = k < 16 ? k + 1 : k < 32 ? k + 2 : k + 8)
    if (k * 1024 >= longest(job)) out.push_back(k * 1024);
  if (t.tokens_per_micro_batch >= least_budget(job, role)) include(out, t.tokens_per_micro_batch);
  include(out, round_up(std::max<std::int64_t>(longest(job), 256), 256));
  return out;
}

}  // namespace

bool held(const Space& s, const Role* role, std::string_view knob) {
  return std::any_of(s.fixed.begin(), s.fixed.end(), [&](const std::string& f) {
    return f == knob || (role != nullptr && f == role->name + "." + std::string(knob));
  });
}

Axes axes_of(const Job& job, const Space& space, const Role* trainer, const Role* server, bool shared) {
  Axes a;
  const bool speed = space.allow >= Effect::speed, numerics = space.allow >= Effect::numerics;
  if (trainer != nullptr) {
    const Trainer& t = trainer->trainer;
    const auto free_to = [&](bool allowed, std::string_view key) { return allowed && !held(space, trainer, key); };
    // All training roles sit on the same GPUs: one fixed layout holds the others.
    a.trainer_layout_held =
        std::any_of(job.roles.begin(), job.roles.end(), [&](const Role& r) { return !r.serves() && held(space, &r, "layout"); });
    const bool packs = t.sequences_per_micro_batch == 0;
    a.tokens =
        free_to(speed && packs, "tokens_per_micro_batch") ? token_budgets(job, *trainer) : std::vector{t.tokens_per_micro_batch};
    a.recompute = {t.recompute};
    if (free_to(speed, "recompute")) include(a.recompute, t.recompute == Recompute::full ? Recompute::none : Recompute::full);
    a.forms = {t.optimizer_form};
    if (free_to(speed, "optimizer_form")) include(a.forms, OptimizerForm::fused);
    a.offload = {{t.offload_parameters, t.offload_optimizer}};
    if (shared && free_to(speed, "offload"))
      for (const auto& o : {std::pair{false, false}, std::pair{false, true}, std::pair{true, true}}) include(a.offload, o);
    a.efficient_load = {t.memory_efficient_load};
    if (t.loop.loads_on_gpu && t.kernels != Kernels::archon && free_to(true, "memory_efficient_load"))
      include<bool>(a.efficient_load, true);
    a.storage = {t.storage};
    if (free_to(numerics, "precision.storage")) include(a.storage, DType::bf16);
  }
  if (server != nullptr) {
    const Server& s = server->server;
    // ranks that share experts or requests stay as the job has them
    a.server_layout_held = held(space, server, "layout") || server->server.layout.expert > 1 || server->server.attention_data > 1;
    a.fractions = {s.memory_fraction};
    const std::string_view key = server->engine == EngineKind::vllm ? "gpu_memory_utilization" : "mem_fraction_static";
    if (speed && !held(space, server, key))
      for (int percent = 30; percent <= 95; percent += percent < 70 ? 5 : 1) include(a.fractions, percent / 100.0);
    a.max_running = {s.max_running};
    if (speed && !held(space, server, "max_running_requests"))
      for (const std::int64_t n : {32, 64, 128, 256, 512, 1024}) include<std::int64_t>(a.max_running, n);
    a.kv = {s.kv};
    if (numerics && !held(space, server, "kv")) include(a.kv, std::optional(DType::fp8));
  }
  return a;
}

std::vector<TrainerPoint> trainer_points(const Axes& a, const Role& role, std::int64_t gpus) {
  const Mixer& m = role.architecture->runs.front().layer.mixer;
  const ModelShape shape{m.heads, m.kv_heads, 0, role.architecture->layers()};
  std::vector<std::int64_t> degrees = ulysses_degrees(gpus, shape);
  const Layout& own = role.trainer.layout;
  if (a.trainer_layout_held || own.tensor > 1) degrees = {own.context};
  std::vector<TrainerPoint> out;
  if (gpus % own.tensor != 0) return out;
  for (const auto context : degrees)
    for (const auto recompute : a.recompute)
      for (const auto storage : a.storage)
        for (const auto tokens : a.tokens)
          // inside: what does not change the passes
          for (const auto form : a.forms)
            for (const auto& [parameters, optimizer] : a.offload)
              for (const bool load : a.efficient_load)
                out.push_back({gpus, context, tokens, recompute, form, parameters, optimizer, load, storage});
  return out;
}

std::vector<ServerChoice> server_choices(const Axes& a, const Role& role, std::int64_t gpus, std::int64_t gpus_per_node) {
  const Mixer& m = role.architecture->runs.front().layer.mixer;
  const ModelShape shape{m.heads, m.kv_heads, 0, role.architecture->layers()};
  std::vector<std::int64_t> degrees = tensor_degrees(std::min(gpus, gpus_per_node), shape);
  const std::int64_t stages = std::max<std::int64_t>(1, role.server.layout.pipeline);
  std::vector<ServerChoice> out;
  for (const auto tensor : degrees) {
    if (gpus % (tensor * stages) != 0 || (a.server_layout_held && tensor != role.server.layout.tensor)) continue;
    for (const auto kv : a.kv)
      for (const auto running : a.max_running)
        for (const double fraction : a.fractions) out.push_back({gpus, tensor, fraction, running, kv});
  }
  return out;
}

}  // namespace oomplan
