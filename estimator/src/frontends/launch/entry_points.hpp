// Which program starts which framework: a row each.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "frontends/launch/wrappers.hpp"

namespace oomplan::launch {

/// Who reads the arguments of a program.
enum class Reader : std::uint8_t {
  none,            ///< known by name, not read yet
  areal_launcher,  ///< entry.py --config FILE key=value ...
  areal_script,    ///< the same, the script itself: AReaL's if its --config file is
  megatron,
  server,
};

struct EntryPoint {
  Entry::Kind kind;
  std::string_view name;       ///< of the module, script or program; a "*" at its end stands for any end
  std::string_view argument;   ///< first argument of a program (vllm serve), or a flag that must be among the arguments
  std::string_view framework;
  std::string_view what;       ///< "its PPO trainer"
  Reader reader = Reader::none;
  bool trains = true;
};

/// nullptr: not known. `has`: is this among the arguments?
const EntryPoint* entry_point(const Entry&, const std::string& first_argument, const std::function<bool(std::string_view)>& has);

}  // namespace oomplan::launch
