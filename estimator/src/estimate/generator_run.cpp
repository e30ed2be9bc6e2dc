#include "estimate/generator_run.hpp"

#include <algorithm>

#include "catalog/facts.hpp"
#include "training/generation.hpp"

namespace oomplan {
namespace {

void make(RoleRun& run, const GenerationPasses& passes, TapeStore& store) {
  run.tapes = {};
  run.tapes.log_probs = store.get(passes.architecture, passes.whole);
  if (passes.grows) run.tapes.decode = store.get(passes.architecture, passes.token);
  run.plan = generation_plan(passes, run.tapes);
}

/// Of the whole model.
ModuleBytes modules_of(const RoleRun& run) {
  ModuleBytes out;
  const Tape& tape = run.plan.tape();
  std::vector<Bytes> of_station(tape.stations.size());
  for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
    const TapeLeaf& leaf = tape.leaves[i];
    const Bytes bytes = bytes_of(leaf.elements(), run.plan.storage[i]);
    of_station[leaf.station] += bytes;
    out.largest_parameter = std::max(out.largest_parameter, bytes);
  }
  for (std::size_t s = 0; s < tape.stations.size(); ++s) {
    const Station& station = tape.stations[s];
    if (station.place == StationPlace::layers && station.run < static_cast<int>(run.role->architecture->runs.size()))
      out.layers.insert(out.layers.end(), static_cast<std::size_t>(station.count), of_station[s]);
    else  // a tower is taken to lie beside the embedding
      (station.place == StationPlace::head   ? out.head
       : station.place == StationPlace::norm ? out.norm
                                             : out.embedding) += of_station[s];
  }
  return out;
}

bool by_parameter(std::string_view release) { return release.empty() || compare_versions(release, "5.0.0") >= 0; }

}  // namespace

void update_generator(RoleRun& run, const Job& job, TapeStore& store) {
  const Role& role = *run.role;
  const Trainer& t = role.trainer;
  const KernelInternals internals(t.kernel_internals, *run.gpu);
  const auto passes_of = [&](const LayerShare& share) {
    return generation_passes(t, role.architecture, job.prompt_tokens, share, internals);
  };
  std::int64_t layers = 0;
  for (const LayerRun& layer : role.architecture->runs) layers += layer.count;
  run.parts.clear();
  make(run, passes_of({0, layers, true, true}), store);
  run.full_storage = run.plan.resident;
  if (t.layout.pipeline == 1) return;
  std::vector<RoleRun> parts;
  for (const LayerShare& share : spread_layers(modules_of(run), t.layout.pipeline, by_parameter(t.transformers_version))) {
    RoleRun& part = parts.emplace_back();
    part.role = run.role;
    part.index = run.index;
    part.gpu = run.gpu;
    part.constants = run.constants;
    if (!share.empty()) make(part, passes_of(share), store);
  }
  run.parts = std::move(parts);
}

const RoleRun* run_on(const RoleRun& run, std::int64_t stage) {
  if (run.parts.empty()) return &run;
  const RoleRun& part = run.parts[static_cast<std::size_t>(stage)];
  return part.plan.log_probs != nullptr ? &part : nullptr;
}

}  // namespace oomplan
