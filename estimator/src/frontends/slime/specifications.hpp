// Layers that slime brings itself (--spec, slime_plugins/models) or patches into Megatron (docker/patch): which of them are
// described, and whether a command's are those of its checkpoint.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "catalog/architecture.hpp"
#include "frontends/slime/read.hpp"

namespace oomplan::slime {

struct Specification {
  std::string_view module, function;
  std::string_view since;  ///< the first release whose layers were executed
  std::string_view what;   ///< the layers that it makes
  bool text_alone;         ///< no tower, whatever the checkpoint has
  bool (*fits)(const Architecture&);
  std::vector<std::string_view> flags;  ///< of Megatron, that are described beside it
};

/// Megatron-Bridge makes the model of the checkpoint, whatever Megatron's arguments say of its layers.
bool is_made_by_bridge(const SlimeText&);
/// Gemma 4, of which Relax trains the text alone (scripts/models/gemma4-31B.sh, redai-studio/Relax 7a346d39).
bool bridges_text_alone(const SlimeText&, const Architecture&);
/// The command's; nullptr: it has none, or one that is not described.
const Specification* specification_of(const SlimeText&);
/// Arguments of Megatron that are described because the specification is.
std::vector<std::string_view> described_flags(const SlimeText&);
/// A flag of slime's patch.
bool is_patched(std::string_view flag);
/// What of the command does not agree with the checkpoint's layers.
void check_layers(SlimeText&, const Architecture&, const std::string& name);

}  // namespace oomplan::slime
