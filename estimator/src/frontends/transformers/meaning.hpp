// What arguments of a trainer mean, fact by fact, before any of it is estimated ("roles.trainer.sequences_per_gpu" = 2).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/telling.hpp"
#include "frontends/transformers/engine.hpp"
#include "frontends/transformers/read.hpp"

namespace oomplan::transformers {

struct HfMeaning {
  Engine engine;
  std::int64_t gpus = 0;  ///< 0: nobody says
  std::string
      loaded;  ///< format of the model as it is loaded: "bf16"; "auto" as the checkpoint has it; "" no format of 16 or 32 bits
  std::string loaded_by;                  ///< the key that says so
  bool adapters = false, packed = false;  ///< LoRA, and a base of 4 or 8 bits
  bool recompute = false, reentrant = false;
  std::string recompute_by;  ///< the key that turns it on
  bool padding_free = false;
  std::string cap;           ///< the key that caps a sample; "": none does
  std::int64_t longest = 0;  ///< tokens that it may have; 0: nobody says
  std::vector<ToldFact> facts;
  const ToldFact* find(std::string_view key) const { return find_fact(facts, key); }
};
HfMeaning meaning_of(const HfText&);

}  // namespace oomplan::transformers
