// verl's configuration files and entry points as facts, release by release (models/frameworks/verl.json, written by
// verl_schema.py).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oomplan::verl {

/// A release whose files are known, by its place in their order: 0.3.0, 0.4.0 ... 0.9.0, and 0.10.0, the development version of
/// August 2026 (1dda039b).
struct Release {
  int number = 0;
  auto operator<=>(const Release&) const = default;
};
/// "0.8.0", "0.8", "v0.7.0", "0.10.0.dev", "head". A release between known ones is the one before it. nullopt: none, or before
/// 0.3.
std::optional<Release> find_release(std::string_view text);
/// Is the text a name of that very release ("0.8", "v0.8.0"), and not one between or behind those that are known?
bool names(std::string_view text, Release);
/// REQUIRES: it is known.
Release release_named(std::string_view name);
std::string name_of(Release);
Release newest_release();
/// "0.3.0 to 0.10.0".
std::string known_releases();

/// What `python -m MODULE` composes when no argument says otherwise.
struct EntryRow {
  std::string module;
  std::string folder;  ///< "verl/trainer/config"
  std::string config;  ///< "ppo_trainer"
};
/// nullopt: the release has no such module, or it composes nothing.
std::optional<EntryRow> entry_row(std::string_view module, Release);
/// Releases that have the module, oldest first.
std::vector<std::string> releases_with(std::string_view module);

/// The file of that path in the repository, as YAML; nullopt: the release has none.
std::optional<std::string> config_file(std::string_view path, Release);
/// Names of the files in a folder; nullopt: none.
std::optional<std::vector<std::string>> config_folder(std::string_view folder, Release);

}  // namespace oomplan::verl
