// From settings to a Job: what was written, the framework's defaults, and what follows from both.
//
// Every front end ends here. It brings the roles and a list of settings in our own spelling, each with its origin; of two
// settings of one key the later wins. What nobody wrote is the default of the framework's version (frontends/defaults), taken
// over from the actor (ref and critic), or derived (layouts, sync); the origin says which. Problems are collected, not thrown.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/facts.hpp"
#include "frontends/derivation.hpp"

namespace oomplan {

struct Setting {
  std::string key;  ///< dotted, in our spelling: "actor.layout"
  std::string text;
  Origin origin;
};
struct RoleAsked {
  RoleKind kind;
  Place place;
  std::string name = {};  ///< "": its kind's
};
/// Finds the architecture of a model by the user's name for it. Throws InputError; may return nullptr (then nothing is derived).
using FindModel = std::function<std::shared_ptr<const Architecture>(const std::string&)>;

/// `file` is where things are missing from.
AssembledJob assemble(const std::vector<RoleAsked>&, std::vector<Setting>, const FindModel&, const Facts&,
                      const std::string& file);

}  // namespace oomplan
