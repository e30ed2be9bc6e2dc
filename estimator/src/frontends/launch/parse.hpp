// Reads bash: a recursive descent over the grammar of the Bash Reference Manual 5.2, chapter 3. Nothing is run.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <oomplan/units/errors.hpp>

#include "frontends/launch/syntax.hpp"

namespace oomplan::launch {

/// What could be read. Bash runs a script line by line: what stands in front of a broken line is run all the same.
struct Parsed {
  std::shared_ptr<const Script> script;
  std::optional<Problem> broken;
};

/// `first_line`: number of the first line in `file`.
Parsed parse(std::string_view text, const std::string& file, int first_line = 1);

}  // namespace oomplan::launch
