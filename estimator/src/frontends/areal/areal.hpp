// Reads AReaL's own configuration: a YAML file and the arguments behind `--config FILE`, as the release named composes them.
//
//     yaml + overrides --compose--> tree --structured--> over the release's defaults --resolve--> values
//         --meaning--> facts --job--> roles and settings of a Job
//
// docs/areal.md is the user's side of it.
#pragma once
#include <string>
#include <vector>

#include "frontends/areal/job.hpp"
#include "frontends/areal/meaning.hpp"
#include "frontends/areal/reading_store.hpp"

namespace oomplan::areal {

struct ArealText {
  Release release;
  bool release_stated = false;
  std::string root_class;  ///< "PPOConfig", or the one of the example's own script
  compose::Node composed;  ///< the file and its arguments, interpolations as written
  compose::Node root;      ///< composed, over the defaults, resolved
  Meaning meaning;
  NativeText native;        ///< roles, settings and every problem found
  std::vector<Note> notes;  ///< choices made, keys that nothing reads
};

/// Do these keys of a file's top level belong to AReaL?
bool recognises(const std::vector<std::string>& keys);

/// Throws InputError when the text is no YAML or the version is none of AReaL's; everything else is collected in `native`.
ArealText read_areal(const Source&);
/// The same, by who reads a file more than once.
ArealText read_areal(const Source&, ReadingStore&);

}  // namespace oomplan::areal
