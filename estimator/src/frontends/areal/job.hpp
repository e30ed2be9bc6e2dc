// From what an AReaL configuration means to roles and settings in our own words, which frontends/assemble makes a Job of. Every
// setting keeps the place of the fact it rests on. What the estimator cannot do yet is refused by name.
#pragma once
#include <string>

#include "frontends/areal/meaning.hpp"
#include "frontends/native.hpp"

namespace oomplan::areal {

/// What an AReaL file leaves open.
struct Surroundings {
  std::string gpu;  ///< kind of the GPUs, which no key says
  Origin gpu_origin;
  bool refusals_only = false;  ///< the file has other problems: only what is not supported is told
};

/// Roles, settings and the problems of both. `root` as for meaning_of. Assumptions are added to `notes`.
NativeText job_of(const Meaning&, const compose::Node& root, const Surroundings&, std::vector<Note>& notes);

}  // namespace oomplan::areal
