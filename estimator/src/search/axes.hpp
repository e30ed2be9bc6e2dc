// What a search may change, as lists of values. Every value is judged; nothing is bisected, because the peak is not monotone in
// the token budget (a larger budget may mean fewer micro-batches and so less memory).
#pragma once
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

/// Settings of all training roles on one group of GPUs.
struct TrainerPoint {
  std::int64_t gpus = 0, context = 1, tokens = 0;
  Recompute recompute = Recompute::full;
  OptimizerForm form = OptimizerForm::foreach;
  bool offload_parameters = false, offload_optimizer = false, efficient_load = false;
  DType storage = DType::fp32;
  bool operator==(const TrainerPoint&) const = default;
};
/// Settings of the server role.
struct ServerChoice {
  std::int64_t gpus = 0, tensor = 1;
  double fraction = 0;
  std::int64_t max_running = 0;
  std::optional<DType> kv = DType::bf16;
  bool operator==(const ServerChoice&) const = default;
};

/// Values of every axis that the effects allow and that are not held fixed; the job's own value is always among them.
struct Axes {
  std::vector<std::int64_t> tokens;
  std::vector<Recompute> recompute;
  std::vector<OptimizerForm> forms;
  std::vector<std::pair<bool, bool>> offload;  ///< parameters, optimizer
  std::vector<bool> efficient_load;
  std::vector<DType> storage;
  std::vector<double> fractions;
  std::vector<std::int64_t> max_running;
  std::vector<std::optional<DType>> kv;
  bool trainer_layout_held = false, server_layout_held = false;
};
/// `shared`: trainers and servers take turns on the same GPUs.
Axes axes_of(const Job&, const Space&, const Role* trainer, const Role* server, bool shared);

/// Is a knob of the role named in Space::fixed, with the role's name or for all roles?
bool held(const Space&, const Role*, std::string_view knob);

/// Points on `gpus` GPUs. Layouts are those that the model's heads allow.
std::vector<TrainerPoint> trainer_points(const Axes&, const Role& trainer, std::int64_t gpus);
std::vector<ServerChoice> server_choices(const Axes&, const Role& server, std::int64_t gpus, std::int64_t gpus_per_node);

}  // namespace oomplan
