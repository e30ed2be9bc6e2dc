// The passes of a training role: which tape each of them is, and how many tokens it has.
#pragma once
#include <cstdint>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "catalog/gpus.hpp"
#include "layers/tape.hpp"

namespace oomplan {

/// Buffers inside of fused kernels: whether they are counted, and of which GPU.
struct KernelInternals {
  bool counted = true;
  bool casts_softmax = true;  ///< of bf16 in fp32: the copy is an operator of its own, which fake tensors on "cuda" show
  std::int64_t multiprocessors = 132;
  SharedMemory memory = SharedMemory::large;
  KernelInternals(bool given = true)  // NOLINT: whether they are counted is most of what is asked for
      : counted(given), casts_softmax(given) {}
  KernelInternals(bool given, const Gpu& gpu)
      : counted(given), casts_softmax(given), multiprocessors(gpu.sms), memory(shared_memory(gpu.sm)) {}
};

/// Which tapes a trainer needs: the key under which they can be kept.
PassOptions train_pass(const Trainer&, EngineKind, const Architecture&, bool critic, std::int64_t kept_tokens,
                       KernelInternals = {});
PassOptions log_prob_pass(const Trainer&, EngineKind, const Architecture&, bool critic, std::int64_t kept_tokens,
                          KernelInternals = {});

/// The second model that `reference: model` runs: reference_model, or one like the policy.
const Architecture& reference_architecture(const Trainer&, const Architecture& policy);
/// How that model is stored and computes.
Trainer reference_trainer(const Trainer&);
/// Of that model. REQUIRES: the trainer's reference is not none.
PassOptions reference_pass(const Trainer&, EngineKind, const Architecture&, KernelInternals = {});

struct PassCounts {
  TokenCounts counts;
  std::int64_t chunks = 1;
};
/// Token counts of a pass from tokens of one data-parallel rank: divided by Ulysses, cut into chunks.
PassCounts pass_counts(const Trainer&, std::int64_t tokens, LossHead head, const Architecture&);

/// fms-acceleration runs transformers' Trainer, whose FSDP units were inside of the checkpoints.
bool checkpoints_units(const Trainer&);

}  // namespace oomplan
