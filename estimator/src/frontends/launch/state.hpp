// What a shell remembers while it reads a script: variables, functions, arguments, options, the working folder.
//
// A State is a value. A subshell works on a copy; where a condition is not known both sides are read, each on a copy, and joined.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontends/launch/syntax.hpp"
#include "frontends/launch/text.hpp"

namespace oomplan::launch {

struct Variable {
  enum class Kind : std::uint8_t { scalar, indexed, associative } kind = Kind::scalar;
  bool set = false;  ///< false: declared, without a value
  bool exported = false, integer = false, readonly = false;
  char letters = 0;  ///< 'l', 'u': values are kept in these letters
  Text value = {};
  std::map<std::int64_t, Text> elements = {};            ///< indexed
  std::vector<std::pair<std::string, Text>> named = {};  ///< associative, in the order of the script
  bool operator==(const Variable&) const = default;
};

struct Function {
  const Command* body = nullptr;
  std::string file;
  bool operator==(const Function&) const = default;
};

struct State {
  std::vector<std::map<std::string, Variable>> scopes = {{}};  ///< the outermost first; one more in each function
  std::set<std::string> erased = {};                           ///< of the environment, by unset
  std::map<std::string, Function> functions = {};
  std::vector<Text> positional = {};
  Text folder = {};
  bool errexit = false, nounset = false, pipefail = false;
  std::string sourced_in_vain = {};  ///< a file that is not here and might have set more

  /// The variable in the innermost scope that has it; nullptr: none.
  const Variable* find(const std::string& name) const;
  Variable* find(const std::string& name);
  /// Steps of the budget that a copy takes, or a comparison with one.
  std::int64_t steps_of_a_copy() const;
  bool operator==(const State&) const = default;
};

/// What differs becomes unknown: `unknown` makes its text for a variable's name.
State joined(const State& a, const State& b, const std::function<Text(const std::string& name)>& unknown);

}  // namespace oomplan::launch
