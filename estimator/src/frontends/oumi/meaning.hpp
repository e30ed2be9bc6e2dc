// What a configuration of Oumi means, fact by fact, before any of it is estimated ("roles.trainer.sequences_per_gpu" = 2).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/oumi/read.hpp"
#include "frontends/telling.hpp"

namespace oomplan::oumi {

struct OumiMeaning {
  std::string trainer;    ///< "TRL_SFT"; "" of what trains nothing
  std::string engine;     ///< "fsdp1", "deepspeed", "ddp", "single"; of a server "VLLM"
  std::int64_t gpus = 0;  ///< 0: nobody says
  std::vector<ToldFact> facts;
  const ToldFact* find(std::string_view key) const { return find_fact(facts, key); }
};
OumiMeaning meaning_of(const OumiText&);

/// Does the trainer belong to TRL, so that model_max_length is its max_length (training_config.py)?
bool takes_max_length(std::string_view trainer);

}  // namespace oomplan::oumi
