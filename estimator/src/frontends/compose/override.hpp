// One argument behind a launch command, as Hydra's override grammar reads it: key=value, +key=value, ++key=value, ~key,
// ~key=value, group=option, group@package=option.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "frontends/compose/node.hpp"

namespace oomplan::compose {

/// Of one command line; the longest seen have some dozens. Every one goes through the whole tree.
inline constexpr std::size_t kMostOverrides = 2000;

struct Override {
  enum class Kind : std::uint8_t { change, add, force, remove };
  Kind kind = Kind::change;
  std::string key;                     ///< "actor.optimizer.lr", or a group: "db/store"
  std::optional<std::string> package;  ///< behind '@'
  std::optional<Node> value;           ///< absent only behind "~key"
  std::string typed;                   ///< the argument as it was typed

  /// "db@store": what a group override replaces in a defaults list.
  std::string group_key() const { return package ? key + "@" + *package : key; }
};
/// Throws InputError with what is wrong and why; sweeps (a=1,2 and choice(), range(), ...) and functions are refused by name.
Override read_override(const std::string& typed);
/// The place and origin of what an override says.
Origin origin_of(const std::string& typed, const std::string& key);

}  // namespace oomplan::compose
