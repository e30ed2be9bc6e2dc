// What AReaL's keys of Archon mean for a job, and which of them cannot be followed.
//
// Sources: areal-project/AReaL areal/api/cli_args.py ArchonEngineConfig, areal/experimental/engine/archon_engine.py and
// archon_utils.py, 0.5.2 to 2.0.0.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/areal/meaning.hpp"
#include "frontends/areal/wording.hpp"

namespace oomplan::areal {

struct ArchonSetting {
  std::string knob, text;  ///< of the role: "recompute", "selective"
  Origin origin;
};

/// Empty when Archon does not train the role. `root`: as for meaning_of().
std::vector<ArchonSetting> archon_settings(const Meaning&, const compose::Node& root, const BuiltRole&);

/// Keys of Archon that cannot be followed, and why. `key`: the one whose string lays the role out.
std::vector<Problem> archon_problems(const Meaning&, const compose::Node& root, const BuiltRole&, std::string_view key);

/// Archon pads a micro-batch to whole pages of hidden states, which the model's width decides; nothing is added where
/// pad_to_maximum makes it as long as the budget.
bool pads_to_pages(const compose::Node& root, const BuiltRole&);

/// What a knob of a role that Archon trains is in its keys; nothing where the key is that of every engine.
std::optional<Wording> archon_wording(const BuiltRole&, std::string_view knob, std::string_view text);

}  // namespace oomplan::areal
