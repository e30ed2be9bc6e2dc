// The job that a script or a command starts: its program without what stands in front of it, and what that says about nodes, GPUs
// and the environment.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frontends/launch/entry_points.hpp"
#include "frontends/launch/script.hpp"

namespace oomplan::launch {

/// A number, and who says it.
struct Stated {
  std::int64_t value = 0;
  std::string by;  ///< "srun --nodes", "#SBATCH --gres"
};

struct Launch {
  std::vector<StartedWord> argv;            ///< torchrun and its like included
  std::size_t first = 0;                    ///< of the program's own arguments in argv
  Entry entry;                              ///< places are those in argv
  std::map<std::string, Text> environment;  ///< what the script, env, docker -e and a Ray runtime environment set
  std::optional<Stated> nodes, gpus_per_node;
  const EntryPoint* starts = nullptr;  ///< nullptr: no program that is known
  std::string condition;               ///< "": for certain
  bool background = false;
  Text folder;  ///< the working folder
  Place place;
  std::string written;  ///< for messages, shortened
};

/// Every program of the script that a table knows, or that is a Python script, in order.
std::vector<Launch> launches_of(const ScriptReading&, const std::string& script_text,
                                std::span<const std::span<const EntryPoint>> programs);

/// Is this text a script, and no job file? By its name, its first line, or its first command.
bool is_script(std::string_view text, std::string_view name);

}  // namespace oomplan::launch
