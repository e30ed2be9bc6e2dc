// Arithmetic of the shell (Bash Reference Manual 5.2, 6.5): 64-bit integers, variables by their names, assignments.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "frontends/launch/budget.hpp"
#include "frontends/launch/text.hpp"

namespace oomplan::launch {

/// The variables that an expression sees. `subscript` is "" for a plain variable.
struct Names {
  std::function<Text(const std::string& name, const std::string& subscript)> get;
  std::function<void(const std::string& name, const std::string& subscript, std::int64_t)> set;
  std::function<bool(char32_t unit)> is_unset;  ///< an unknown that counts as 0 where a name is also assigned to
};

/// The expression is none; `why` as bash would say it.
struct NoArithmetic {
  std::string why;
};
/// It needs what is unknown.
struct NeedsUnknown {
  char32_t unit;
};

/// Throws NoArithmetic, NeedsUnknown and TooMuch. An empty expression is 0.
std::int64_t calculate(const Text& expression, const Names&, Budget&);

}  // namespace oomplan::launch
