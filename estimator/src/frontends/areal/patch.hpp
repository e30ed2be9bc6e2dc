// Settings of ours, changed in an AReaL file: which keys get which values, and the arguments that say so behind the launch
// command. Nothing is guessed: after every key the configuration is composed again, so that what follows by an interpolation is
// not said twice.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontends/areal/wording.hpp"

namespace oomplan::areal {

struct Rewritten {
  std::vector<Edit> edits;             ///< every path once, in the order in which they were needed
  std::vector<std::string> overrides;  ///< the same as arguments, in Hydra's grammar
  std::string why;                     ///< "": done; otherwise nothing else is filled
  /// What read_areal() makes of the file with `overrides`; empty when it was not needed.
  std::shared_ptr<const ArealText> text = {};
};
/// `wanted`: knobs and their texts, as in a job file. `start` is what read_areal(source) gives.
Rewritten rewrite(const Source&, const ArealText& start, const std::vector<std::pair<std::string, std::string>>& wanted,
                  ReadingStore&);

/// "actor.backend=fsdp:d4", "+actor.fsdp.offload_params=true": an argument in Hydra's grammar, quoted where that needs it.
std::string argument(std::string_view path, const FactValue& value, bool add);

/// Do both configurations hold the same values?
bool same_values(const compose::Node& a, const compose::Node& b);

}  // namespace oomplan::areal
