// What a search is made of: one GPU's timeline folded, one configuration of each side judged, a pair put together.
#include <benchmark/benchmark.h>

#include "estimate/assemble.hpp"
#include "search/server_side.hpp"
#include "search/trainer_side.hpp"

namespace {

using namespace oomplan;

/// The default job of a search: Qwen2.5-7B, four GPUs train (actor and reference), four generate.
struct Example {
  Job job = default_job("qwen2.5-7b", 8).job;
  Space space;
  const Catalog& catalog = Catalog::builtin();
  TapeStore store;
  std::vector<RoleRun> runs = resolve_roles(job, catalog, store);
  TrainerSide trainers{job, space, catalog, store, runs};
  ServerSide servers{job, catalog, runs};
  Axes axes = axes_of(job, space, &trainers.leader(), &servers.role(), false);
};

/// The class of GPUs with the index: 0 generates, 1 is rank 0 of actor and reference.
void fold_of_a_class(benchmark::State& state) {
  const Example e;
  const auto classes = gpu_classes(e.job, e.runs);
  const Timeline timeline = timeline_of(e.job);
  const auto& c = classes.at(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(fold_class(e.job, e.runs, c, timeline));
}
BENCHMARK(fold_of_a_class)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

void trainers_judged(benchmark::State& state) {
  Example e;
  const auto points = trainer_points(e.axes, e.trainers.leader(), 4);
  std::size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(e.trainers.judge(points[i++ % points.size()]));
}
BENCHMARK(trainers_judged)->Unit(benchmark::kMicrosecond);

void servers_judged(benchmark::State& state) {
  Example e;
  const auto choices = server_choices(e.axes, e.servers.role(), 4, 8);
  std::size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(e.servers.judge(choices[i++ % choices.size()], 0, nullptr));
}
BENCHMARK(servers_judged)->Unit(benchmark::kMicrosecond);

}  // namespace
