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
/// Flags of SGLang, and what none of them says.
struct ServerOf {
  const std::vector<ServerFlag>& flags;
  std::int64_t engine_gpus = 1, stages = 1, groups = 1, experts = 1;
  std::string model, version;
  std::string gpu;                                            ///< "": H100-80GB
  std::string model_flag = "--hf-checkpoint";                 ///< what names the model
  std::string engine_flag = "--rollout-num-gpus-per-engine";  ///< what counts the GPUs of an engine
  std::string prefix = "--sglang-";                           ///< of flags that nobody gave
};
/// What slime itself decides (degrees, model, release) is not among the settings.
ServerSettings server_settings(const SlimeText&, const ServerOf&, const Catalog&);

}  // namespace oomplan::slime
