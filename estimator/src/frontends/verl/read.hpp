// Reads what starts verl: its command line, or a YAML file of it, as the release composes them.
//
//     module + overrides --compose--> the release's configuration (tree.hpp) --resolve--> values
//         --meaning--> facts --job--> roles and settings of a Job
//
// docs/verl.md is the user's side of it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/verl/arguments.hpp"
#include "frontends/verl/tree.hpp"

namespace oomplan::verl {

struct VerlText {
  Release release;
  bool release_stated = false;
  Arguments arguments;                             ///< of a YAML file: those behind it, and the module that its keys belong to
  compose::Node root;                              ///< composed and resolved
  std::map<std::string, std::string> environment;  ///< variables that the command sees, and so its workers
  std::vector<Problem> problems;                   ///< verl would not start
  std::vector<Note> notes;
};

/// Throws InputError when the text is neither, or the release is none of verl's; everything else is collected in `problems`.
VerlText read_verl(const Source&);

}  // namespace oomplan::verl
