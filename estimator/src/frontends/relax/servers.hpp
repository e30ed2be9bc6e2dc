// Servers that Relax starts beside those of the rollout: a generative reward model (--genrm-*) and teachers of on-policy
// distillation (--teacher-hf-checkpoint, --opd-teacher-routes), each with another model and flags of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "frontends/slime/meaning.hpp"

namespace oomplan::relax {

/// Those that start. REQUIRES: numbers of GPUs and `colocated` are known.
std::vector<slime::Served> servers_beside(const slime::SlimeText&, const slime::SlimeMeaning&);

/// Checkpoints of --opd-teacher-routes, or the one of --teacher-hf-checkpoint; empty: the flag has no such object.
std::vector<std::string> teachers_of(const slime::SlimeText&);

/// A generative reward model: of --genrm-model-path, or one of --genrm-instances of a later state, which has the last word.
struct Judge {
  std::string model;
  std::int64_t gpus = 1, engine_gpus = 1;
  std::string config;  ///< an object of JSON for its engines; "": none
};
std::vector<Judge> judges_of(const slime::SlimeText&);

}  // namespace oomplan::relax
