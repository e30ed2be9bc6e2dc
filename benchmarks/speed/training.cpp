// Training plans: a tape (the model run once in the simulator), a plan of sizes, and the fold of a step.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "training/fsdp2.hpp"

namespace {

using namespace oomplan;

/// Qwen2.5-7B on eight GPUs, 16k tokens a micro-batch, every layer recomputed.
struct Example {
  std::shared_ptr<const Architecture> architecture = Catalog::builtin().model("Qwen/Qwen2.5-7B").architecture;
  Trainer trainer;
  TrainTapes tapes;
  Example() {
    trainer.layout.data = 8;
    trainer.tokens_per_micro_batch = 16384;
    trainer.recompute = Recompute::full;
    tapes.train =
        make_tape(*architecture, train_pass(trainer, EngineKind::fsdp2, *architecture, false, trainer.tokens_per_micro_batch));
  }
  TrainPlan plan(std::int64_t micro_batches) const {
    return make_plan(*architecture, trainer, EngineKind::fsdp2, false, true, tapes, micro_batches);
  }
};

void tape(benchmark::State& state) {
  const Example e;
  const PassOptions options = train_pass(e.trainer, EngineKind::fsdp2, *e.architecture, false, e.trainer.tokens_per_micro_batch);
  for (auto _ : state) benchmark::DoNotOptimize(make_tape(*e.architecture, options));
}
BENCHMARK(tape)->Unit(benchmark::kMicrosecond);

void plan_of_sizes(benchmark::State& state) {
  const Example e;
  for (auto _ : state) benchmark::DoNotOptimize(e.plan(4));
}
BENCHMARK(plan_of_sizes)->Unit(benchmark::kMicrosecond);

/// Every station's summary for one set of token counts.
void tape_evaluated(benchmark::State& state) {
  const Example e;
  const TrainPlan plan = e.plan(4);
  for (auto _ : state) {
    const auto values = monomial_values(*e.tapes.train, plan.train_counts.counts);
    Bytes highest = 0;
    for (const auto& station : e.tapes.train->stations)
      for (const bool back : {false, true})
        for (const Unit u : {Unit::first, Unit::inner, Unit::last})
          highest = std::max(highest, evaluate(station.segment(back, u).summary, values).peak);
    benchmark::DoNotOptimize(highest);
  }
}
BENCHMARK(tape_evaluated)->Unit(benchmark::kMicrosecond);

void fold_of_a_step(benchmark::State& state) {
  const Example e;
  const std::int64_t micro_batches = state.range(0);
  const TrainPlan plan = e.plan(micro_batches);
  for (auto _ : state) {
    PeakRecorder r;
    Fsdp2<PeakRecorder> engine(r, plan, "");
    Player<PeakRecorder> player(r, *plan.train, plan.train_counts.counts, plan.train_counts.chunks, "");
    engine.load();
    engine.make_states();
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      engine.forward(player, Index(m));
      engine.backward(player, Index(m), m == 0, m == micro_batches - 1);
    }
    engine.optimizer_step();
    engine.drop_gradients(player);
    benchmark::DoNotOptimize(r.span());
  }
}
BENCHMARK(fold_of_a_step)->Arg(1)->Arg(4)->Unit(benchmark::kMicrosecond);

/// From settings to figures, as benchmarks/accuracy asks.
void figures_of_a_case(benchmark::State& state) {
  const Example e;
  const TrainingCase c{e.architecture, e.trainer, EngineKind::fsdp2, false, 4};
  for (auto _ : state) benchmark::DoNotOptimize(training_figures(c));
}
BENCHMARK(figures_of_a_case)->Unit(benchmark::kMicrosecond);

}  // namespace
