// Which program starts which framework: rows that the front ends bring, and rows of those that are known by name alone.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/launch/wrappers.hpp"

namespace oomplan::launch {

struct EntryPoint {
  Entry::Kind kind;
  std::string_view name;      ///< of the module, script or program; a "*" at its end stands for any end
  std::string_view argument;  ///< first argument of a program (vllm serve), or a flag that must be among the arguments
  std::string_view framework;
  std::string_view what;          ///< "its PPO trainer"
  std::string_view dialect = {};  ///< that reads its arguments; "": known by name, not read yet
  bool trains = true;
  bool last_resort = false;  ///< asked when no other row fits
};

/// The first of the rows that fits, rows of last resort behind all others. nullptr: not known. `has`: is this among the
/// arguments?
const EntryPoint* entry_point(std::span<const std::span<const EntryPoint>> rows, const Entry&, const std::string& first_argument,
                              const std::function<bool(std::string_view)>& has);

}  // namespace oomplan::launch
