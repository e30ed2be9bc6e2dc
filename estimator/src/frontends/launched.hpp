// A script or a command as a job: what it starts is handed to the reader of its framework (docs/launch.md).
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/launch/launch.hpp"

namespace oomplan {

/// Is the source a script or a command, and no job file?
bool is_launch(const Source&);
/// The source that the framework's reader takes, with notes on the way. Throws InputError: the script is broken, starts nothing
/// that is known, starts several jobs, or needs a value that nobody gave.
Source resolved(const Source&, const Catalog&);
/// What the script would start. Throws InputError where it cannot be read.
launch::ScriptReading commands_of(const Source&);

/// Words with placeholders for what is not known, and their way back.
class Placeholders {
 public:
  Placeholders(const std::vector<launch::Unknown>& unknowns, std::string salt) : unknowns_(unknowns), salt_(std::move(salt)) {}
  std::string text(const launch::Text&);
  bool any() const { return !used_.empty(); }
  /// Variables that nobody set, and other unknowns that stand in the words.
  std::vector<launch::Unknown> used() const;
  /// The problems in the words of the script; why: which variable, and how to give it. False: none is about a placeholder.
  bool explain(std::vector<Problem>&) const;

 private:
  std::string name_of(std::size_t index) const;
  const std::vector<launch::Unknown>& unknowns_;
  std::string salt_;
  std::vector<std::size_t> used_;
};
/// How to give what is not known: "MODEL is not set: MODEL=... oomplan ..., or --set MODEL=...".
std::string how_to_give(const launch::Unknown&);

/// The framework whose configuration a YAML text is; "": none of those that oomplan knows by name and does not read.
std::string foreign_framework(std::string_view text);

}  // namespace oomplan
