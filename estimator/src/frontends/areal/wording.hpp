// One of our knobs in AReaL's words: which key of a release's file sets it, and how its value is written there.
//
// A knob that no key of the release sets has a reason in place of edits; advice leaves it out and says so.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/areal/areal.hpp"

namespace oomplan::areal {

/// A key of the file and what it shall be.
struct Edit {
  std::string path;
  FactValue value;
  bool operator==(const Edit&) const = default;
};
/// Edits, or why there are none.
struct Wording {
  std::vector<Edit> edits;
  std::string refusal;
};
/// `knob`, set to `text` (as in a job file), in the words of the file as it is read now.
Wording wording_of(std::string_view knob, std::string_view text, const ArealText&);

/// The key of the file that sets one of our knobs ("actor.tokens_per_micro_batch" -> "actor.mb_spec.max_tokens_per_mb"); ""
/// when none does alone.
std::string theirs(std::string_view knob, const Meaning&);

}  // namespace oomplan::areal
