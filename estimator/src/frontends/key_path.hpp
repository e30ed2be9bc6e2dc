// Keys with dots, "actor.optimizer.lr".
#pragma once
#include <string>

namespace oomplan {

/// Are they the same key, or is one in what the other names?
inline bool one_holds_the_other(const std::string& a, const std::string& b) {
  return a == b || a.starts_with(b + ".") || b.starts_with(a + ".");
}

}  // namespace oomplan
