// How a change of a Job is spelt in the flags of slime's command: appended to it, as the last one of a name counts.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/slime/meaning.hpp"
#include "frontends/words.hpp"

namespace oomplan::slime {

/// A flag with its value; "": a switch.
struct Edit {
  std::string flag, value;
  bool operator==(const Edit&) const = default;
};
struct Spelt {
  std::vector<Edit> edits;
  std::string why;  ///< "": done; otherwise why no flag says it
};
/// The change of one knob ("actor.recompute") to a value as a job file has it; `asked`: of all that change with it.
Spelt spell(const SlimeText&, const SlimeMeaning&, std::string_view knob, const std::string& value, const Settings& asked);
/// The flag that a knob is read from; "": none.
std::string flag_of(const SlimeText&, std::string_view knob);
/// What the command gives the flag now; "": nothing.
std::string said(const SlimeText&, const std::string& flag);

}  // namespace oomplan::slime
