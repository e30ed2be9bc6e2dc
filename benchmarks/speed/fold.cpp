// The fold alone: what one event of a description costs, and that a loop costs the same however often it runs.
#include <benchmark/benchmark.h>

#include <oomplan/program.hpp>

namespace {

using namespace oomplan;

/// One layer of a training step: eight saved tensors, two temporaries.
template <class Recorder>
void layer(Recorder& r, const SiteRef& saved, const SiteRef& temporary, Index i) {
  for (int k = 0; k < 8; ++k) r.alloc(saved, i, Index(k));
  r.alloc(temporary, i);
  r.free(temporary, i);
}

void events(benchmark::State& state) {
  const SiteRef saved{0, 64 * kMiB, Pool::torch}, temporary{1, 128 * kMiB, Pool::torch};
  for (auto _ : state) {
    PeakRecorder r;
    layer(r, saved, temporary, Index(0));
    benchmark::DoNotOptimize(r.span());
  }
  state.SetItemsProcessed(state.iterations() * 10);
}
BENCHMARK(events);

void loop(benchmark::State& state) {
  const SiteRef saved{0, 64 * kMiB, Pool::torch}, temporary{1, 128 * kMiB, Pool::torch};
  for (auto _ : state) {
    PeakRecorder r;
    r.repeat(state.range(0), [&](Index i) { layer(r, saved, temporary, i); });
    benchmark::DoNotOptimize(r.span());
  }
}
BENCHMARK(loop)->Arg(1)->Arg(80)->Arg(1 << 20);

}  // namespace
