// AReaL's Megatron engine: its settings as those of a job file, and what of them is not described.
#pragma once
#include <string>
#include <vector>

#include "frontends/areal/lora.hpp"

namespace oomplan::areal {

/// Settings of a training role, without its name in front. Its backend is Megatron.
std::vector<LoraSetting> megatron_of_trainer(const Meaning&, const compose::Node& root, const BuiltRole&);

/// A key and what it asks for.
struct MegatronRefusal {
  std::string path, what;
  bool theirs = false;  ///< AReaL itself refuses it
};
std::vector<MegatronRefusal> megatron_refusals(const Meaning&, const compose::Node& root, const BuiltRole&);

}  // namespace oomplan::areal
