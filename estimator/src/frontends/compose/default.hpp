// One element of a defaults list, and where it lands: the file it names, the package its content goes under, the key by which it
// is overridden. As hydra/core/default_element.py (Hydra 1.3.2).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "frontends/compose/node.hpp"

namespace oomplan::compose {

struct Default {
  std::string path;                   ///< a config ("base", "../math/base", "_self_") or, with `group`, the group
  bool group = false;                 ///< "group: option"
  std::optional<std::string> option;  ///< of a group; nullopt: null, nothing is chosen
  std::vector<std::string> options;   ///< of a group with a list of them
  bool several = false;               ///< `options` counts
  std::optional<std::string> package;
  std::optional<std::string> header;  ///< package that the file's header names, absolute
  bool optional = false, override_ = false, deleted = false, appended = false, primary = false;
  std::string base, parent_package;  ///< folder and package of the file whose list this is
  Place place;

  bool is_self() const { return group ? option == "_self_" : path == "_self_"; }
  void set_parent(const std::string& folder, const std::string& package_above);
  void set_header(const std::optional<std::string>& name);

  /// "db" of "db/mysql" and of "db: mysql", from the top.
  std::string group_path() const;
  /// "mysql"; nullopt: nothing is chosen.
  std::optional<std::string> name() const;
  /// "db/mysql", from the top.
  std::string config_path() const;
  std::string final_package(bool with_header = true) const;
  /// "db", or "db@store" where its content does not go under its own name.
  std::string override_key() const;
  bool is_interpolation() const;

 private:
  std::string relative_group() const;
};

/// The `defaults:` of a file. Throws InputError with Hydra's reason.
std::vector<Default> read_defaults(const Node& list, const std::string& config);

}  // namespace oomplan::compose
