// The servers of slime: SGLang's own flags behind --sglang-, read as a command of SGLang's.
#pragma once
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "frontends/assemble.hpp"
#include "frontends/slime/meaning.hpp"

namespace oomplan::slime {

struct ServerSettings {
  std::vector<Setting> settings;  ///< "mem_fraction_static", ... each with the flag as its place
  std::vector<Problem> problems;
  std::vector<Note> notes;
};
/// What no flag of SGLang says.
struct ServerOf {
  std::string model, version;
  std::string gpu;  ///< "": H100-80GB
};
/// What slime itself decides (degrees, model, release) is not among the settings.
ServerSettings server_settings(const SlimeText&, const SlimeMeaning&, const ServerOf&, const Catalog&);

}  // namespace oomplan::slime
