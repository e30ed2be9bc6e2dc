// Brace expansion: a{b,c} and {1..8} (Bash Reference Manual 5.2, 3.5.1). It comes before all others and knows no variables.
#pragma once
#include <vector>

#include "frontends/launch/budget.hpp"
#include "frontends/launch/syntax.hpp"

namespace oomplan::launch {

std::vector<Word> without_braces(const Word&, Budget&);

}  // namespace oomplan::launch
