// An allocation string with the layout of one part changed: backends, names and the other parts stay as they were written.
#pragma once
#include <string>

#include "frontends/areal/allocation.hpp"

namespace oomplan::areal {

/// The changed text, or why the release cannot say it.
struct Relayout {
  std::string text, why;
  explicit operator bool() const { return why.empty(); }
};
/// `part` is what `text` says of the role today. `engine`: the text is one engine's own (`actor.backend`), not `allocation_mode`.
Relayout with_layout(const std::string& text, Release, const Part& part, const Layout&, bool engine);

}  // namespace oomplan::areal
