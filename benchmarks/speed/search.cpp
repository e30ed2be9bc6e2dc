// What a search is made of: one GPU's timeline folded, one configuration of each side judged, a pair put together.
#include <benchmark/benchmark.h>

#include "estimate/assemble.hpp"
#include "search/megatron_search.hpp"
#include "search/server_side.hpp"
#include "search/trainer_side.hpp"
#include "training/fsdp2.hpp"

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

/// What the roles of an RL job do in one step, each as Spans: the actor trains one micro-batch, actor and reference compute
/// log-probs, the server starts and generates, weights go out.
void rl_step(benchmark::State& state) {
  const Example e;
  const RoleRun &actor = e.runs[1], &ref = e.runs[2];
  for (auto _ : state) {
    PeakRecorder r;
    FoldedTape scores(*actor.plan.log_probs, actor.plan.log_prob_counts.counts);  // of the reference too, when it runs alike
    for (const RoleRun* run : {&actor, &ref}) {
      Fsdp2<PeakRecorder> engine(r, run->plan, "");
      engine.load();
      const auto& [counts, chunks] = run->plan.log_prob_counts;
      const bool alike = scores.is_of(*run->plan.log_probs, counts);
      Player<PeakRecorder> log_probs(r, *run->plan.log_probs, counts, chunks, "", alike ? &scores : nullptr);
      engine.forward(log_probs, Index(0));
      if (run != &actor) continue;
      Player<PeakRecorder> train(r, *run->plan.train, run->plan.train_counts.counts, run->plan.train_counts.chunks, "");
      engine.make_states();
      engine.forward(train, Index(0));
      engine.backward(train, Index(0), true, true);
      engine.optimizer_step();
      engine.drop_gradients(train);
      record_send(r, *run->send[0]);
    }
    benchmark::DoNotOptimize(r.span());
    const ServerPlan server = plan(e.runs[0].model, e.runs[0].facts, e.runs[0].point);
    PeakRecorder s;
    const ServerSites sites = make_sites(s, server);
    for (const ServerPhase phase : {ServerPhase::load, ServerPhase::start, ServerPhase::generate})
      record(s, server, sites, phase);
    benchmark::DoNotOptimize(s.span());
  }
}
BENCHMARK(rl_step)->Unit(benchmark::kMicrosecond);

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

/// DeepSeek-V3 on 1,024 GPUs: every point of all axes, bounded.
void megatron_judged(benchmark::State& state) {
  Source source;
  source.text =
      "oomplan: 1\nframework: torch\ngpus: 1024 x H100-80GB\nmodel: deepseek-ai/DeepSeek-V3\nsequences_per_step: 4096\ntrainer: "
      "{engine: megatron, layout: "
      "d64p16e64, first_stage_layers: 4, last_stage_layers: 1, sequences_per_micro_batch: 1, sequence_tokens: 4k, "
      "router_dtype: fp32, cross_entropy: te, recompute: full}\n";
  const Job job = read(source).job;
  const Bytes usable = Catalog::builtin().gpu("h100").usable;
  std::int64_t points = 0;
  for (auto _ : state) {
    MegatronBound bound(job, job.roles[0], Catalog::builtin());
    points = judge_megatron(megatron_axes(job, job.roles[0], {}), bound, job.cluster.gpus, megatron_batch(job, job.roles[0], {}),
                            usable, {})
                 .points;
  }
  state.counters["points"] = static_cast<double>(points);
}
BENCHMARK(megatron_judged)->Unit(benchmark::kMillisecond);

}  // namespace
