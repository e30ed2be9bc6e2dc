// YAML files that flags of slime name: --custom-config-path, --megatron-config-path, --sglang-config.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/yaml.hpp"

namespace oomplan::slime {

/// An argument and its value: the word behind a flag; "true" and "false" of a switch.
struct FileArgument {
  std::string name, value;
  int line = 0;
};
/// Arguments of one role (--megatron-config-path: megatron: [{role: critic, overrides: {...}}]).
struct RoleArguments {
  std::string role;
  std::vector<FileArgument> arguments;
};
/// Servers that are started alike (--sglang-config: server_groups of a model).
struct ServerGroup {
  std::string model;  ///< model_path; "": --hf-checkpoint
  std::string worker = "regular";
  std::int64_t gpus = 0, engine_gpus = 0;  ///< engine_gpus 0: --rollout-num-gpus-per-engine
  std::vector<FileArgument> overrides;     ///< of SGLang's ServerArgs
};

/// Are they one kind of ordinary servers, of which there are several?
bool alike(const std::vector<ServerGroup>&);

/// All of them throw InputError for texts that slime itself refuses.
std::vector<FileArgument> read_arguments(std::string_view text, const std::string& file);
std::vector<RoleArguments> read_roles(std::string_view text, const std::string& file);
std::vector<ServerGroup> read_server_groups(std::string_view text, const std::string& file);

}  // namespace oomplan::slime
