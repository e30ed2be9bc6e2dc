// Figures of one role that others have measured or executed, for comparison: phases of a training step, a server's start.
//
// A case is a job with one role, and a few facts that no job file has because only a comparison needs them. The job was read
// from a user's file or command, or is JSON written in full (nothing is defaulted but what is named here). Nothing is estimated
// here that estimate() would not: the same refusals, tapes, plans and folds, without the constants of a process (context, NCCL)
// and without phases around the step.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>
#include <oomplan/units/bytes.hpp>

#include "catalog/architecture.hpp"
#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace oomplan {

struct TrainingCase {
  std::shared_ptr<const Architecture> architecture;
  Trainer trainer;
  EngineKind engine = EngineKind::fsdp2;
  bool forward_only = false;  ///< a log-prob pass without gradients and optimizer
  std::int64_t passes = 1;    ///< ... so many in turn: a later one finds gathered what the first one did not return
  std::int64_t micro_batches = 1;
  std::int64_t stage = 0;               ///< Megatron: of the pipeline
  const Gpu* gpu = nullptr;             ///< the catalog's, which outlives the case; null: one as kernels are described for
  bool shows_casts_of_softmax = false;  ///< without kernel_internals too: an execution on fake tensors of "cuda" shows them
};

/// Highest level of torch's allocations in each phase of the second step (optimizer states exist), inputs included.
struct TrainingFigures {
  Bytes forward = 0, backward = 0, optimizer = 0, peak = 0;
  Bytes load = 0;                    ///< Megatron: while it is made
  Bytes parameters = 0, states = 0;  ///< resident: parameters and optimizer states of this rank
};
TrainingFigures training_figures(const TrainingCase&);

/// Of a job of one role that trains, as read() gives it. `apart`: JSON with forward_only, passes, shows_casts_of_softmax,
/// stage (Megatron), fp8_transposes (Megatron: the GPU is older than Blackwell). Throws InputError.
TrainingCase training_case(const Job&, std::string_view apart, const Catalog&);
/// `job`: JSON {"model": name, "gpus": "8 x H100-80GB", "trainer": {knob: value}, "apart": {...}}; values are numbers, flags,
/// words, or maps of them ("precision"). Without "gpus" it has as many as the layout asks for. `config`: text of a config.json
/// that stands for the model; empty: the model is looked up. Throws InputError for all that estimate() would refuse, but of the
/// knobs that "apart" lists as `beyond`: parts of a step that were executed by themselves, which no job has so.
TrainingCase read_training_case(std::string_view job, std::string_view config, const Catalog&);

struct ServingCase {
  std::shared_ptr<const Architecture> architecture;
  EngineKind engine = EngineKind::vllm;
  Server server;
  Gpu gpu;
  bool logprobs = false;  ///< requests ask for log-probabilities
};
/// The same for {"model": .., "gpus": "8 x H100-80GB", "server": {knob: value}, "apart": {...}}. Keys of
/// `apart`: total_bytes (what the driver of the measured machine reported), weights and kv (formats that no knob has), logprobs.
ServingCase read_serving_case(std::string_view job, std::string_view config, const Catalog&);

struct ServingFigures {
  ServerFigures logged;  ///< what the engine writes at start-up
  Bytes device = 0;      ///< the highest level of the whole GPU until the end of a generation
};
ServingFigures serving_figures(const ServingCase&, const Catalog&);

/// One phase of a job that shares one GPU, as it was measured there: through the caching allocator on a roomy device.
struct ColocatedPhase {
  std::string phase;    ///< "actor.backward"
  Bytes allocated = 0;  ///< torch's figure, which counts a sleeping server's unmapped weights and cache
  Bytes reserved = 0;   ///< the same
  Bytes device = 0;     ///< what the process takes of the device
};
struct ColocatedFigures {
  std::vector<ColocatedPhase> phases;
  Bytes asleep = 0;     ///< of the device, behind the start: the server sleeps, the trainer's parameters are on the host
  Bytes kept_back = 0;  ///< of the card by the driver: not in `device`, but in what NVML calls used
};
/// The start and the first `iterations` of a job of one process on one GPU. Throws InputError for any other job.
ColocatedFigures colocated_figures(const Job&, int iterations, const Catalog&);

}  // namespace oomplan
