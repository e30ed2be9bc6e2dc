// The calls that a user makes: read, estimate, explain, search.
#include <benchmark/benchmark.h>

#include <fstream>
#include <sstream>

#include <oomplan/oomplan.hpp>

namespace {

using namespace oomplan;

Source example() {
  std::ostringstream text;
  text << std::ifstream(std::string(OOMPLAN_SOURCE_DIR) + "/examples/grpo.yaml").rdbuf();
  return {text.str(), "grpo.yaml", "", {}};
}

void read_job(benchmark::State& state) {
  const Source source = example();
  for (auto _ : state) benchmark::DoNotOptimize(read(source));
}
BENCHMARK(read_job)->Unit(benchmark::kMicrosecond);

/// AReaL's own file, grown to 500 lines by the environment of its workers: composed, checked, understood and estimated.
void answer_areal(benchmark::State& state) {
  std::ostringstream file;
  file << std::ifstream(std::string(OOMPLAN_SOURCE_DIR) + "/examples/areal/grpo_7b.yaml").rdbuf();
  std::string text = file.str(), workers = "  scheduling_spec:\n    - gpu: 1\n      env_vars:\n";
  for (int i = 0; i < 420; ++i) workers += "        VARIABLE_" + std::to_string(i) + ": \"value\"\n";
  text.insert(text.find("  kl_ctl:"), workers);
  Source source{text, "grpo.yaml", "areal"};
  source.framework_version = "1.0.4";
  for (auto _ : state) benchmark::DoNotOptimize(estimate_quick(read(source).job));
}
BENCHMARK(answer_areal)->Unit(benchmark::kMillisecond);

void quick_job(benchmark::State& state) {
  const Job job = read(example()).job;
  for (auto _ : state) benchmark::DoNotOptimize(estimate_quick(job));
}
BENCHMARK(quick_job)->Unit(benchmark::kMicrosecond);

void explain_job(benchmark::State& state) {
  const Job job = read(example()).job;
  for (auto _ : state) benchmark::DoNotOptimize(explain(job));
}
BENCHMARK(explain_job)->Unit(benchmark::kMillisecond);

/// On 8 GPUs half a million configurations, on 16 more than a million; the best ten with their replay.
void search_job(benchmark::State& state) {
  const Job job = default_job("qwen2.5-7b", state.range(0)).job;
  std::int64_t judged = 0;
  for (auto _ : state) judged += search(job).judged;
  state.SetItemsProcessed(judged);
  state.counters["configurations"] = static_cast<double>(judged) / static_cast<double>(state.iterations());
}
BENCHMARK(search_job)->Arg(8)->Arg(16)->Unit(benchmark::kMillisecond);

}  // namespace
