// A bash script read without running it: which commands it would start, word by word.
//
// Nothing is executed, and no file is opened but through `open`. What cannot be known stays unknown, with its name: a variable
// that nothing sets, what a program prints, what differs with a condition that only the machine can decide.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/launch/text.hpp"

namespace oomplan::launch {

/// The machine that probes such as nvidia-smi are answered for.
struct Machine {
  std::string gpu = "NVIDIA H100 80GB HBM3";  ///< as nvidia-smi names it
  std::optional<std::int64_t> gpus;           ///< of one node; nullopt: 8, which is noted where a probe asks
};

struct ScriptInput {
  std::string text, name;
  std::vector<std::string> arguments = {};
  std::map<std::string, std::string> environment = {};  ///< all that the script may see
  std::string folder = {};                              ///< the working folder; "": "."
  /// Text of a file that the script reads; nullopt: there is none. Empty: no file is opened.
  std::function<std::optional<std::string>(const std::string& path)> open = {};
  Machine machine = {};
};

/// A word of a command.
struct StartedWord {
  Text text;
  bool vanishes = false;  ///< only variables that nobody set, outside of quotes: bash passes no word
};
/// A program that the script starts.
struct Started {
  std::vector<StartedWord> words;
  std::map<std::string, Text> environment = {};  ///< what the script exports, and what stands in front of the command
  std::string file = {};
  int line = 0;
  std::vector<StartedWord> outer = {};  ///< the command that started the shell that starts this one
  std::string condition = {};           ///< "": for certain
  bool background = false;
  Text folder = {};
};

struct ScriptReading {
  std::vector<Started> started;
  std::vector<Unknown> unknowns;  ///< what the units of texts refer to
  std::vector<Note> notes;
  std::map<Text, Text> written;   ///< files that the script writes, by their names
  std::optional<Place> ended_at;  ///< where it gives up (exit, set -e), if it does
  int status = 0;
  std::string said;                   ///< the last line that it printed before it ended
  std::string ended_by;               ///< the command that ended it
  std::vector<std::string> rests_on;  ///< variables that nobody set and that decided about that
  std::optional<Problem> broken;      ///< where the script is no bash
};

/// Throws InputError when the script cannot be read at all: it does not end, or is broken before its first command.
ScriptReading read_script(const ScriptInput&);

}  // namespace oomplan::launch
