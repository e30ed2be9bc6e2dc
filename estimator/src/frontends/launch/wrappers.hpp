// What stands in front of a program: srun, docker run, uv run, torchrun, env A=1 ... (one row each in wrappers.cpp).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontends/launch/script.hpp"

namespace oomplan::launch {

/// One wrapper of a command, with its options as they are written.
struct Wrapper {
  std::string name;  ///< "srun", "ray job submit", "torchrun"
  std::size_t begin = 0, end = 0;
  std::vector<std::pair<std::string, Text>> options = {};      ///< without "="; a switch has an empty value
  std::vector<std::pair<std::string, Text>> environment = {};  ///< A=1 of env
};

/// How the program itself is named.
struct Entry {
  enum class Kind : std::uint8_t {
    none,     ///< nothing is left, or a name that is not known
    program,  ///< vllm serve
    script,   ///< python3 train.py
    module,   ///< python3 -m verl.trainer.main_ppo
    code,     ///< python3 -c ...
    text,     ///< of a shell: sbatch --wrap '...'
  } kind = Kind::none;
  std::string name = {};  ///< the program, script or module
  Text whole = {};        ///< of `text` and `code`
  std::size_t at = 0;     ///< of the program, script or module in the words
  std::size_t first = 0;  ///< of its arguments
};

struct Unwrapped {
  std::vector<Wrapper> wrappers;  ///< the outermost first
  Entry entry;
};
/// Words that vanish are passed over.
Unwrapped unwrap(const std::vector<StartedWord>&);

/// Told of a script that a shell is to run.
inline constexpr std::string_view kNotHere = " is not here, so what it starts is not known";
/// At the end of a note about the number of GPUs that a probe was answered with.
inline constexpr std::string_view kNobodySaid = ", which nobody said";

/// Is this the name of a shell that reads bash?
bool is_shell(const std::string& program);

}  // namespace oomplan::launch
