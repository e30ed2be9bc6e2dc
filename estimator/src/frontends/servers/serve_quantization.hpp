// --quantization NAME of a server's command: what it asks of a checkpoint in 16 bits.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

/// A name that converts weights while they are loaded.
struct OnlineName {
  EngineKind engine;
  std::string_view name;
  OnlineFormat format;     ///< none: fp8 with a scale for each matrix, Server::weights
  std::string_view from;   ///< first release that has it
  std::string_view until;  ///< first one that has it no more; "" all others
};

/// Null for a name that converts nothing.
const OnlineName* online_name(EngineKind, std::string_view name);

/// What a release has.
std::vector<std::string> online_names(EngineKind, const std::string& version);

/// Names of checkpoints' own formats: without such a checkpoint the engine does not start.
bool names_checkpoint_format(std::string_view name);

}  // namespace oomplan
